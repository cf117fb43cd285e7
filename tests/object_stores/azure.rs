//! Azure, as Azurite does it, which is no crate:
//!
//! ```text
//! npm install --prefix /tmp/azurite azurite
//! ROLLSTREAM_AZURITE=/tmp/azurite/node_modules/.bin/azurite-blob cargo test --test object_stores -- --ignored azure
//! ```

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::spawn;

use bytes::Bytes;
use tempfile::TempDir;

use super::place::Place;
use super::suite;
use crate::s3_server::BUCKET;

/// Makes a container that anybody may read, so that the test's own reader needs no signatures.
const MAKE_CONTAINER: &str = r#"
const [url, container] = process.argv.slice(1);
const key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const account = "devstoreaccount1";
const date = new Date().toUTCString();
const headers = `x-ms-blob-public-access:container\nx-ms-date:${date}\nx-ms-version:2021-08-06`;
const resource = `/${account}/${account}/${container}\nrestype:container`;
const text = ["PUT", "", "", "", "", "", "", "", "", "", "", "", headers, resource].join("\n");
const signature = require("crypto").createHmac("sha256", Buffer.from(key, "base64")).update(text, "utf8").digest("base64");
fetch(`${url}/${account}/${container}?restype=container`, {
    method: "PUT",
    headers: {
        "x-ms-blob-public-access": "container",
        "x-ms-date": date,
        "x-ms-version": "2021-08-06",
        "authorization": `SharedKey ${account}:${signature}`,
    },
}).then(async (answer) => {
    if (answer.status !== 201) {
        console.error(answer.status, await answer.text());
        process.exit(1);
    }
});
"#;

/// The server, ended when dropped.
pub struct Azurite {
    child: Child,
    url: String,
    _directory: TempDir,
}

impl Azurite {
    fn start() -> Self {
        let program = env::var_os("ROLLSTREAM_AZURITE");
        let program = program.expect("ROLLSTREAM_AZURITE must name azurite-blob");
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new(program)
            .args([
                "--blobHost",
                "127.0.0.1",
                "--blobPort",
                "0",
                "--inMemoryPersistence",
            ])
            .args(["--skipApiVersionCheck", "--disableTelemetry"])
            .current_dir(directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut azurite = Self {
            child,
            url: String::new(),
            _directory: directory,
        };
        let mut lines = output.lines().map(Result::unwrap);
        let listening = lines.find(|line| line.contains("successfully listen"));
        let listening = listening.unwrap();
        // It logs every request, and ends if nobody takes that.
        spawn(move || lines.for_each(drop));
        let url = listening
            .split_whitespace()
            .find(|word| word.starts_with("http://"));
        azurite.url = url.unwrap().to_owned();
        let made = Command::new("node")
            .args(["-e", MAKE_CONTAINER, &azurite.url, BUCKET])
            .status();
        assert!(made.unwrap().success());
        azurite
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        let container = format!("{}/devstoreaccount1/{BUCKET}", self.url);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let get = async |url: String| {
                let answered = reqwest::get(url).await.unwrap().error_for_status().unwrap();
                answered.bytes().await.unwrap()
            };
            let listed = get(format!("{container}?restype=container&comp=list")).await;
            let listed = String::from_utf8(listed.to_vec()).unwrap();
            let mut objects = BTreeMap::new();
            for name in listed.split("<Name>").skip(1) {
                let name = name.split_once("</Name>").unwrap().0;
                objects.insert(name.to_owned(), get(format!("{container}/{name}")).await);
            }
            objects
        })
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // Fails where it has ended, which is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "Azurite must be installed, and ROLLSTREAM_AZURITE name it"]
fn a_run_on_azure_is_as_anywhere() {
    for test in [
        suite::a_sweep_is_there_whole_and_once,
        suite::a_profile_is_put_beside_the_run_or_elsewhere,
        suite::a_sweep_that_was_stopped_goes_on,
        suite::a_run_is_neither_continued_nor_replaced_unasked,
        suite::overwriting_replaces_the_run_and_nothing_else,
    ] {
        test(Place::azure(Azurite::start()));
    }
}
