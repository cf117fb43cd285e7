//! The script that `rollstream cluster template slurm` prints, with stand-ins for Slurm's commands.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Folder, Program, Running};

use super::sweeps::{REPEATS, ROLLOUTS, Scene};

/// Runs a task on each of two nodes, and passes SIGTERM on.
const SRUN: &str = r#"#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 1 2; do SLURMD_NODENAME=node-$node "$@" & done
trap 'kill -TERM $(jobs -p)' TERM
until wait; do :; done
"#;

const SCONTROL: &str = r#"#!/bin/bash
echo "$@" >> "$HOME/scontrol"
"#;

const HOSTNAME: &str = "#!/bin/sh\necho localhost\n";

/// A job, whose processes end with it.
struct Job(Option<Running>);

impl Job {
    fn submit(folder: &Folder, id: u16) -> Self {
        let binary = Path::new(env!("CARGO_BIN_EXE_rollstream")).parent();
        let path = format!(
            "{}:{}:{}",
            folder.path("bin").display(),
            binary.unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        let job = Program::shell(&folder.path(""), "exec setsid bash slurm.sh")
            .env("PATH", &path)
            .env("SLURM_JOB_ID", &id.to_string())
            .env("SLURM_JOB_NUM_NODES", "2")
            .env("SLURM_CPUS_PER_TASK", "4");
        Self(Some(job.start()))
    }

    fn running(&self) -> &Running {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(job) = &self.0 {
            let group = format!("-{}", job.pid());
            // Fails where all have ended, which is well.
            let _ = Command::new("sh")
                .args(["-c", "kill -KILL -- \"$0\" 2> /dev/null", &group])
                .status();
        }
    }
}

/// A number for a job, whose port is free.
fn job() -> u16 {
    let mut candidates = (0..10_000).map(|n| (n + std::process::id() % 100 * 97) % 10_000);
    let is_free = |id: &u32| TcpListener::bind(("0.0.0.0", 20_000 + *id as u16)).is_ok();
    candidates.find(is_free).unwrap() as u16
}

#[test]
fn the_job_is_queued_again_when_its_time_ends_and_goes_on() {
    let scene = Scene::slow();
    let folder = &scene.folder;
    let script = folder
        .rollstream("cluster template slurm")
        .run()
        .succeeded();
    folder.write("slurm.sh", &script.stdout.replace("slots=4", "slots=2"));
    fs::create_dir(folder.path("bin")).unwrap();
    for (name, text) in [
        ("srun", SRUN),
        ("scontrol", SCONTROL),
        ("hostname", HOSTNAME),
    ] {
        let path = folder.write(&format!("bin/{name}"), text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let settings = format!(
        "input = ['tasks.jsonl']\noutput = 'run'\nagent = 'sim'\nhead_server = '{}'\n\
         num_repeats = {REPEATS}\nconcurrency = 4\n",
        scene.agents.sim().head_url()
    );
    folder.write("sweep.toml", &settings);
    let id = job();

    let mut first = Job::submit(folder, id);
    scene.until_asked(20);
    first.running().signal("TERM");
    let ended = first.0.take().unwrap().end();
    ended.exited_with(130);
    assert_eq!(folder.read("scontrol"), format!("requeue {id}\n"));
    let asked = scene.agents.requests();
    assert!(asked < ROLLOUTS, "{asked}");
    assert_eq!(folder.json("run/run.json")["state"], "interrupted");

    let mut second = Job::submit(folder, id);
    let ended = second.0.take().unwrap().end().succeeded();
    assert!(ended.stderr.contains("executor 'node-2' has 2 slots"));
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
    assert_eq!(folder.read("scontrol"), format!("requeue {id}\n"));
    assert!(!folder.has(&format!(".rollstream-{id}")));
}
