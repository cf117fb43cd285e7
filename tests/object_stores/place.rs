use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bytes::Bytes;

use super::azure::Azurite;
use crate::common::{Folder, Program, Task};
use crate::s3_server::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY};
use crate::store_proxy::{Fault, StoreProxy};

/// Where a test's run is kept, and a folder beside it where the program runs.
pub struct Place {
    pub folder: Folder,
    kept: Kept,
}

enum Kept {
    Disk,
    S3(S3Server, StoreProxy),
    Google(S3Server),
    Azure(Azurite),
}

impl Place {
    pub fn disk() -> Self {
        Self::new(Kept::Disk)
    }

    pub fn s3() -> Self {
        Self::s3_with([])
    }

    /// An S3 server that is reached by a road with accidents.
    pub fn s3_with(faults: impl IntoIterator<Item = Fault>) -> Self {
        let server = S3Server::start();
        let proxy = StoreProxy::start(server.address(), faults);
        Self::new(Kept::S3(server, proxy))
    }

    pub fn google() -> Self {
        Self::new(Kept::Google(S3Server::google()))
    }

    pub fn azure(azurite: Azurite) -> Self {
        Self::new(Kept::Azure(azurite))
    }

    fn new(kept: Kept) -> Self {
        let folder = Folder::new();
        Self { folder, kept }
    }

    pub fn with_tasks(self, tasks: impl IntoIterator<Item = Task>) -> Self {
        self.folder.tasks("tasks.jsonl", tasks);
        self
    }

    /// The same bucket by a road of its own, from now on.
    pub fn reached_with(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.kept = match self.kept {
            Kept::S3(server, _) => {
                let proxy = StoreProxy::start(server.address(), faults);
                Kept::S3(server, proxy)
            }
            _ => panic!("only the road to S3 has accidents"),
        };
        self
    }

    /// What `--output` names.
    pub fn run(&self) -> String {
        match &self.kept {
            Kept::Disk => "sweeps/run".to_owned(),
            Kept::S3(..) => format!("s3://{BUCKET}/a/run"),
            Kept::Google(_) => format!("gs://{BUCKET}/a/run"),
            Kept::Azure(_) => format!("az://{BUCKET}/a/run"),
        }
    }

    /// The program with what it needs to reach the place.
    pub fn rollstream(&self, line: &str) -> Program {
        let program = self.folder.rollstream(line);
        let environment = self.environment().into_iter();
        environment.fold(program, |program, (name, value)| program.env(name, &value))
    }

    /// How the program learns to reach the place.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        match &self.kept {
            Kept::Disk => Vec::new(),
            Kept::S3(_, proxy) => vec![
                ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
                ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
                ("AWS_REGION", "us-east-1".to_owned()),
                ("AWS_ENDPOINT", format!("http://{}", proxy.address())),
                ("AWS_ALLOW_HTTP", "true".to_owned()),
            ],
            Kept::Google(server) => {
                let account = serde_json::json!({
                    "gcs_base_url": format!("http://{}", server.address()),
                    "disable_oauth": true,
                    "client_email": "", "private_key": "", "private_key_id": "",
                });
                vec![
                    ("GOOGLE_SERVICE_ACCOUNT_KEY", account.to_string()),
                    ("GOOGLE_ALLOW_HTTP", "true".to_owned()),
                ]
            }
            Kept::Azure(azurite) => vec![
                ("AZURE_STORAGE_USE_EMULATOR", "true".to_owned()),
                ("AZURITE_BLOB_STORAGE_URL", azurite.url()),
            ],
        }
    }

    /// Collects `tasks.jsonl` with these options too.
    pub fn collect(&self, options: &str) -> Program {
        let run = self.run();
        self.rollstream(&format!(
            "collect -i tasks.jsonl --agent sim -o {run} {options}"
        ))
    }

    /// The answer of `rollstream sql` as CSV, without its header.
    pub fn sql(&self, query: &str) -> Vec<String> {
        let program = self.rollstream("sql --format csv").args(&self.run());
        let ended = program.arg("-c").arg(query).run().succeeded();
        ended.stdout.lines().skip(1).map(str::to_owned).collect()
    }

    /// Everything at the place, by its name within the run, as anybody finds it who knows nothing of us.
    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        match &self.kept {
            Kept::Disk => {
                let mut found = BTreeMap::new();
                walk(&self.folder.path("sweeps/run"), "", &mut found);
                found
            }
            Kept::S3(server, _) | Kept::Google(server) => relative(server.objects()),
            Kept::Azure(azurite) => relative(azurite.objects()),
        }
    }

    pub fn server(&self) -> &S3Server {
        match &self.kept {
            Kept::S3(server, _) | Kept::Google(server) => server,
            _ => panic!("there is no such server here"),
        }
    }

    /// Accidents that happened on the road.
    pub fn accidents(&self) -> usize {
        match &self.kept {
            Kept::S3(_, proxy) => proxy.accidents(),
            _ => 0,
        }
    }

    /// Waits for the first accident on the road.
    pub fn until_an_accident_happens(&self) {
        match &self.kept {
            Kept::S3(_, proxy) => proxy.until_an_accident_happens(),
            _ => panic!("only the road to S3 has accidents"),
        }
    }

    /// `run.json`.
    pub fn record(&self) -> serde_json::Value {
        serde_json::from_slice(&self.objects()["run.json"]).unwrap()
    }
}

fn relative(objects: BTreeMap<String, Bytes>) -> BTreeMap<String, Bytes> {
    let of_run = |(key, content): (String, Bytes)| {
        let key = key
            .strip_prefix("a/run/")
            .unwrap_or_else(|| panic!("{key}"));
        (key.to_owned(), content)
    };
    objects.into_iter().map(of_run).collect()
}

fn walk(directory: &Path, prefix: &str, found: &mut BTreeMap<String, Bytes>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            walk(&path, &format!("{prefix}{name}/"), found);
        } else {
            found.insert(format!("{prefix}{name}"), fs::read(&path).unwrap().into());
        }
    }
}
