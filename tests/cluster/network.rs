//! Who may connect to a scheduler, and who listens.

use std::fs;

use super::executors::{executor, scheduler};
use super::sweeps::{ROLLOUTS, Scene};
use crate::common::{Program, instant};

/// Makes certificates for a scheduler on this machine.
fn certificates(scene: &Scene, directory: &str) {
    let printed = scene.folder.rollstream("cluster template certificates");
    let script = printed.run().succeeded().stdout;
    scene.folder.write("certificates.sh", &script);
    let line = format!("exec sh certificates.sh {directory} localhost 127.0.0.1");
    let made = Program::shell(&scene.folder.path(""), &line);
    let path = std::env::var("PATH").unwrap();
    made.env("PATH", &path).run().succeeded();
}

#[test]
fn whoever_has_a_certificate_is_admitted_and_nobody_else() {
    let scene = Scene::slow();
    certificates(&scene, "tls");
    certificates(&scene, "others");
    // Without them it would have to be an insecure network.
    let line = "cluster scheduler --bind 0.0.0.0:0 --cluster-tls tls";
    let scheduler = scene.folder.rollstream(line).start();
    let said = scheduler.until_it_says("listens at grpc://");
    let (_, port) = said.trim_end().rsplit_once(':').unwrap();
    let address = format!("grpc://127.0.0.1:{port}");
    let _executor = executor(&scene, &address, "a")
        .args("--cluster-tls tls")
        .start();
    let collect = |tls: &str| {
        let options = format!("--cluster {address} --cluster-slots 2 {tls}");
        scene.collect("run", &options)
    };
    for tls in ["", "--cluster-tls others"] {
        let refused = collect(tls).run().exited_with(1).stderr;
        assert!(
            refused.contains("the scheduler at grpc://127.0.0.1"),
            "{refused}"
        );
    }
    assert!(!scene.folder.has("run"));
    collect("--cluster-tls missing")
        .run()
        .exited_with(2)
        .complaining(&["missing/tls.crt", "--cluster-tls"]);
    collect("--cluster-tls tls").run().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
}

#[test]
fn executors_listen_nowhere() {
    let scene = Scene::new(instant(["sim"]));
    let (_scheduler, address) = scheduler(&scene, "0");
    let executor = executor(&scene, &address, "a").start();
    let options = format!("--cluster {address} --cluster-slots 2");
    scene.collect("run", &options).run().succeeded();
    let table = |kind: &str| fs::read_to_string(format!("/proc/{}/net/{kind}", executor.pid()));
    let tables = ["tcp", "tcp6"].map(|kind| table(kind).unwrap_or_default());
    let sockets = tables.iter().flat_map(|table| table.lines().skip(1));
    // State 0A is LISTEN; the tenth column is the inode.
    let listening: Vec<String> = sockets
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|columns| columns[3] == "0A")
        .map(|columns| format!("socket:[{}]", columns[9]))
        .collect();
    assert!(!listening.is_empty(), "the scheduler listens");
    let files = fs::read_dir(format!("/proc/{}/fd", executor.pid())).unwrap();
    let own = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    let own: Vec<_> = own
        .filter(|file| {
            listening
                .iter()
                .any(|socket| file.as_os_str() == socket.as_str())
        })
        .collect();
    assert_eq!(own, [""; 0].map(std::path::PathBuf::from));
}
