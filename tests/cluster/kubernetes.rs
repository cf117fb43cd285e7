//! The manifests that `rollstream cluster template` prints. A container runs as a process: with its command, its arguments,
//! its environment and its probe, with folders for its volumes, and loopback for the names of the cluster.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use rollstream::sim::{Latency, SimConfig};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::{Folder, Program, Simulated, free_port, instant, sums, until};
use crate::s3_server::{ACCESS_KEY, S3Server, SECRET_KEY};

const SCHEMA: &str = include_str!("../data/kubernetes-1.32.json");

const ROLLOUTS: u64 = 240;

fn template(folder: &Folder, name: &str) -> String {
    let printed = folder.rollstream("cluster template").arg(name).run();
    printed.succeeded().stdout
}

/// A cluster of Kubernetes that is this machine, with an object store and an agent.
struct Kubernetes {
    folder: Folder,
    objects: Vec<Value>,
    /// What stands for an address within the cluster.
    addresses: Vec<(String, String)>,
    port: u16,
    secret: BTreeMap<&'static str, String>,
    agents: Simulated,
    _store: S3Server,
}

impl Kubernetes {
    /// What is marked with EDIT becomes the addresses of the test's servers and a small cluster.
    fn apply(manifest: &str) -> Self {
        let folder = Folder::new();
        let agents = Simulated::start(SimConfig {
            latency: Latency::Fixed(Duration::from_millis(300)),
            ..instant(["math"])
        });
        let store = S3Server::start();
        let tasks: Vec<String> = sums(ROLLOUTS)
            .iter()
            .map(|task| format!("{task}\n"))
            .collect();
        store.put("tasks.jsonl", tasks.concat());
        let text = template(&folder, manifest)
            .replace("s3://bucket/", "s3://sweeps/")
            .replace("http://agents:11000", agents.sim().head_url())
            .replace("concurrency = 1024", "concurrency = 8")
            .replace("replicas: 4", "replicas: 2")
            .replace("--slots=4", "--slots=2")
            .replace("--cluster-slots=16", "--cluster-slots=4");
        let documents = serde_yaml_ng::Deserializer::from_str(&text);
        let objects: Vec<Value> = documents
            .map(|document| Value::deserialize(document).unwrap())
            .collect();
        let port = free_port();
        let mut addresses = Vec::new();
        for service in objects.iter().filter(|object| object["kind"] == "Service") {
            let name = service["metadata"]["name"].as_str().unwrap();
            let given = service["spec"]["ports"][0]["port"].as_u64().unwrap();
            for (address, local) in [
                (format!("{name}:{given}"), format!("127.0.0.1:{port}")),
                (format!("{name}/{given}"), format!("127.0.0.1/{port}")),
                (format!("0.0.0.0:{given}"), format!("127.0.0.1:{port}")),
            ] {
                addresses.push((address, local));
            }
        }
        let secret = [
            ("AWS_ENDPOINT", format!("http://{}", store.address())),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("ROLLSTREAM_BEARER_TOKEN", "token-77ae".to_owned()),
        ];
        Self {
            folder,
            objects,
            addresses,
            port,
            secret: secret.into(),
            agents,
            _store: store,
        }
    }

    #[track_caller]
    fn object(&self, kind: &str) -> &Value {
        let mut objects = self.objects.iter();
        objects.find(|object| object["kind"] == kind).unwrap()
    }

    fn container(&self, kind: &str) -> &Value {
        &self.object(kind)["spec"]["template"]["spec"]["containers"][0]
    }

    /// The container of a pod.
    fn start(&self, kind: &str, pod: &str, more: &[(&str, &str)]) -> Program {
        let container = self.container(kind);
        let command = match &container["command"] {
            Value::Null => entrypoint(&template(&self.folder, "container")),
            command => words(command),
        };
        self.program(kind, pod, command, words(&container["args"]), more)
    }

    /// Waits until the readiness probe of a pod succeeds.
    #[track_caller]
    fn until_ready(&self, kind: &str, pod: &str) {
        let probe = &self.container(kind)["readinessProbe"];
        if probe["tcpSocket"].is_object() {
            let port = &self.container(kind)["ports"][0];
            assert_eq!(port["name"], probe["tcpSocket"]["port"]);
            assert_eq!(port["containerPort"], 50_050);
            return until("the port is closed", || {
                TcpStream::connect(("127.0.0.1", self.port)).is_ok()
            });
        }
        until("a pod does not become ready", || {
            let command = words(&probe["exec"]["command"]);
            let probed = self.program(kind, pod, command, Vec::new(), &[]).run();
            probed.code == Some(0)
        });
    }

    fn program(
        &self,
        kind: &str,
        pod: &str,
        command: Vec<String>,
        args: Vec<String>,
        more: &[(&str, &str)],
    ) -> Program {
        let container = self.container(kind);
        let mounts = self.mounts(kind, pod);
        let mut environment: BTreeMap<String, String> = BTreeMap::new();
        for source in container["envFrom"].as_array().into_iter().flatten() {
            assert_eq!(source["secretRef"]["name"], "rollstream");
            let secret = self.secret.iter();
            environment.extend(secret.map(|(name, value)| ((*name).to_owned(), value.clone())));
        }
        for variable in container["env"].as_array().into_iter().flatten() {
            let value = match &variable["valueFrom"] {
                Value::Null => variable["value"].as_str().unwrap(),
                field => {
                    assert_eq!(field["fieldRef"]["fieldPath"], "metadata.name");
                    pod
                }
            };
            let name = variable["name"].as_str().unwrap().to_owned();
            environment.insert(name, local(value, &mounts));
        }
        let own = env::var("PATH").unwrap();
        let binary = Path::new(env!("CARGO_BIN_EXE_rollstream")).parent();
        let path = format!("{}:{own}", binary.unwrap().display());
        // Containers have no home, and may write to their volumes only.
        let program = Program::shell(&self.folder.path(""), "exec \"$@\"").arg("sh");
        let mut program = program
            .env("PATH", &path)
            .env("HOME", "/nonexistent")
            .env("TMPDIR", &local("/tmp", &mounts));
        for word in command.into_iter().chain(args) {
            let mut word = word;
            for (name, value) in &environment {
                word = word.replace(&format!("$({name})"), value);
            }
            for (address, here) in &self.addresses {
                word = word.replace(address, here);
            }
            program = program.arg(local(&word, &mounts));
        }
        for (name, value) in &environment {
            program = program.env(name, value);
        }
        for (name, value) in more {
            program = program.env(name, value);
        }
        program
    }

    /// The folders of a pod's volumes, by their paths in its container.
    fn mounts(&self, kind: &str, pod: &str) -> Vec<(String, String)> {
        let object = self.object(kind);
        let volumes = &object["spec"]["template"]["spec"]["volumes"];
        let claims = &object["spec"]["volumeClaimTemplates"];
        let named = |list: &Value, name: &Value, at: &str| {
            let mut list = list.as_array().into_iter().flatten().cloned();
            list.find(|volume| volume.pointer(at) == Some(name))
        };
        let mounts = self.container(kind)["volumeMounts"].as_array().unwrap();
        let folder_of = |mount: &Value| {
            let name = &mount["name"];
            let own = format!("{pod}-{}", name.as_str().unwrap());
            let Some(volume) = named(volumes, name, "/name") else {
                assert!(named(claims, name, "/metadata/name").is_some(), "{name}");
                fs::create_dir_all(self.folder.path(&own)).unwrap();
                return own;
            };
            if volume["secret"].is_object() {
                assert_eq!(volume["secret"]["secretName"], "rollstream-tls");
                return "tls".to_owned();
            }
            fs::create_dir_all(self.folder.path(&own)).unwrap();
            if volume["configMap"].is_object() {
                let map = self.object("ConfigMap");
                assert_eq!(volume["configMap"]["name"], map["metadata"]["name"]);
                for (name, content) in map["data"].as_object().unwrap() {
                    let content = content.as_str().unwrap();
                    self.folder.write(&format!("{own}/{name}"), content);
                }
            } else {
                assert_eq!(volume["emptyDir"], json!({}));
            }
            own
        };
        let local = mounts.iter().map(|mount| {
            let path = mount["mountPath"].as_str().unwrap().to_owned();
            let folder = self.folder.path(&folder_of(mount));
            (path, folder.to_str().unwrap().to_owned())
        });
        local.collect()
    }

    /// The answer of a query of the run, as CSV without a header.
    fn sql(&self, query: &str) -> String {
        let mut program = self.folder.rollstream("sql --format csv s3://sweeps/run");
        for (name, value) in &self.secret {
            program = program.env(name, value);
        }
        let answer = program.arg("-c").arg(query).run().succeeded().stdout;
        answer.lines().skip(1).collect::<Vec<_>>().join("\n")
    }

    /// Every rollout is in the run once, and at most `again` calls were made in vain.
    #[track_caller]
    fn has_every_rollout_once(&self, again: u64) {
        let found = self.sql("SELECT count(*), count(DISTINCT task_index) FROM rollouts");
        assert_eq!(found, format!("{ROLLOUTS},{ROLLOUTS}"));
        let asked = self.agents.requests();
        assert!((ROLLOUTS..=ROLLOUTS + again).contains(&asked), "{asked}");
        for secret in [SECRET_KEY, "token-77ae"] {
            assert_eq!(self.folder.holding(secret), [""; 0]);
        }
    }

    #[track_caller]
    fn until_asked(&self, requests: u64) {
        until("the agent is not asked", || {
            self.agents.requests() >= requests
        });
    }
}

/// A path in a container, where it is here.
fn local(text: &str, mounts: &[(String, String)]) -> String {
    let words = text.split(' ').map(|word| {
        let (before, path) = match word.split_once('=') {
            Some((option, path)) => (format!("{option}="), path),
            None => (String::new(), word),
        };
        for (mount, folder) in mounts {
            if let Some(rest) = path.strip_prefix(mount.as_str())
                && (rest.is_empty() || rest.starts_with('/'))
            {
                return format!("{before}{folder}{rest}");
            }
        }
        word.to_owned()
    });
    words.collect::<Vec<_>>().join(" ")
}

fn words(list: &Value) -> Vec<String> {
    let words = list.as_array().into_iter().flatten();
    words
        .map(|word| word.as_str().unwrap().to_owned())
        .collect()
}

/// What the image runs.
fn entrypoint(containerfile: &str) -> Vec<String> {
    let mut lines = containerfile.lines();
    let command = lines.find_map(|line| line.strip_prefix("ENTRYPOINT "));
    serde_json::from_str(command.unwrap()).unwrap()
}

#[test]
fn the_manifest_collects_a_sweep_while_its_pods_come_and_go() {
    let cluster = Kubernetes::apply("kubernetes");
    let slots = |kind: &str, option: &str| -> u64 {
        let args = words(&cluster.container(kind)["args"]).into_iter();
        let mut values = args.filter_map(|arg| arg.strip_prefix(option)?.parse().ok());
        values.next().unwrap()
    };
    let replicas = cluster.object("StatefulSet")["spec"]["replicas"].as_u64();
    let of_all = replicas.unwrap() * slots("StatefulSet", "--slots=");
    assert_eq!(slots("Job", "--cluster-slots="), of_all);

    cluster.folder.write(
        "certificates.sh",
        &template(&cluster.folder, "certificates"),
    );
    let line = "exec sh certificates.sh tls rollstream-scheduler 127.0.0.1";
    let path = env::var("PATH").unwrap();
    let made = Program::shell(&cluster.folder.path(""), line).env("PATH", &path);
    made.run().succeeded();
    let _scheduler = cluster.start("Deployment", "scheduler-x", &[]).start();
    cluster.until_ready("Deployment", "scheduler-x");
    let pods = ["rollstream-executor-0", "rollstream-executor-1"];
    let executor = |pod: &str| cluster.start("StatefulSet", pod, &[]).start();
    let [first, second] = pods.map(executor);
    cluster.until_ready("StatefulSet", pods[0]);

    // A node is drained, and the driver's next pod goes on.
    let driver = cluster.start("Job", "driver-x", &[]).start();
    cluster.until_asked(20);
    driver.signal("TERM");
    driver.end().exited_with(130);
    let asked = cluster.agents.requests();
    assert!(asked < ROLLOUTS, "{asked}");
    let driver = cluster.start("Job", "driver-y", &[]).start();
    cluster.until_asked(asked + 20);

    // The executors are rolled out again: a pod ends, and its successor has its name and its volume.
    first.signal("TERM");
    first.end().succeeded();
    let _first = executor(pods[0]);
    cluster.until_ready("StatefulSet", pods[0]);
    // Memory runs out: the container starts again in its pod, under the name of the one that died.
    cluster.until_asked(asked + 60);
    second.signal("KILL");
    second.end();
    // One executor has two shards, of which each has two calls in flight.
    let in_flight = || cluster.agents.counts("math").in_flight;
    until("the calls of a killed executor last", || in_flight() <= 4);
    let _second = executor(pods[1]);
    until("the container gets no work", || in_flight() > 4);
    driver.end().succeeded();
    // The calls in flight of one executor, and their answers of 0.3 s each that it had not copied: those of a second, and of
    // as long as a busy machine takes for the copy.
    cluster.has_every_rollout_once(4 * (1 + 10));
}

#[test]
fn the_indexed_job_collects_a_sweep_in_shares() {
    let cluster = Kubernetes::apply("kubernetes-shards");
    let spec = &cluster.object("Job")["spec"];
    let completions = spec["completions"].as_u64().unwrap();
    let shares: Vec<_> = (0..completions)
        .map(|index| {
            let index = index.to_string();
            let more = [("JOB_COMPLETION_INDEX", index.as_str())];
            cluster
                .start("Job", &format!("share-{index}"), &more)
                .start()
        })
        .collect();
    for share in shares {
        share.end().succeeded();
    }
    cluster.has_every_rollout_once(0);
}

#[test]
fn the_manifests_fit_the_api_of_kubernetes() {
    let folder = Folder::new();
    let mut schema: Value = serde_json::from_str(SCHEMA).unwrap();
    for name in ["kubernetes", "kubernetes-shards"] {
        let text = template(&folder, name);
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let object = Value::deserialize(document).unwrap();
            let of_kind = |definition: &Value| {
                definition.pointer("/properties/kind/enum/0") == Some(&object["kind"])
                    && definition.pointer("/properties/apiVersion/enum/0")
                        == Some(&object["apiVersion"])
            };
            let definitions = schema["$defs"].as_object().unwrap();
            let found = definitions
                .iter()
                .find(|(_, definition)| of_kind(definition));
            let (definition, _) = found.unwrap_or_else(|| panic!("{object}"));
            schema["$ref"] = json!(format!("#/$defs/{definition}"));
            let validator = jsonschema::validator_for(&schema).unwrap();
            let errors = validator.iter_errors(&object);
            let wrong: Vec<String> = errors
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            assert_eq!(wrong, [""; 0], "{name}, {}", object["kind"]);
        }
    }
}
