//! A client that shows every byte, and the rows that it sends.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::sim::{Counts, Latency, Sim, SimConfig};

/// Far longer than anything here takes: a test that fails must not hang.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn config() -> SimConfig {
    SimConfig {
        latency: Latency::Fixed(Duration::ZERO),
        ..SimConfig::default()
    }
}

pub fn with_fault(at: &str) -> SimConfig {
    SimConfig {
        fault_at: vec![at.parse().unwrap()],
        ..config()
    }
}

pub fn row(task: u64, rollout: u64, attempt: u64) -> String {
    format!(
        r#"{{"responses_create_params": {{"input": [{{"role": "user", "content": "6 rows of 7?"}}]}}, "expected_answer": 42, "_ng_task_index": {task}, "_ng_rollout_index": {rollout}, "_ng_attempt_index": {attempt}}}"#
    )
}

/// A connection that is kept.
pub struct Client(pub TcpStream);

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub promised: usize,
    pub body: Vec<u8>,
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.split("\r\n");
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub fn holds(&self, text: &str) -> bool {
        memchr::memmem::find(&self.body, text.as_bytes()).is_some()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn is_whole(&self) -> bool {
        self.body.len() == self.promised
    }
}

impl Client {
    pub async fn connect(url: &str) -> Self {
        let address = url.strip_prefix("http://").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        // Head and body are written one after the other.
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub async fn agent(sim: &Sim) -> Self {
        Self::connect(&sim.agent_url("sim").unwrap()).await
    }

    pub async fn send(&mut self, method: &str, path: &str, body: &[u8]) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: sim\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.0.write_all(head.as_bytes()).await.unwrap();
        self.0.write_all(body).await.unwrap();
    }

    /// Reads an answer, or as much of it as comes before the connection ends. A body that does not
    /// say how long it is stays unread.
    pub async fn receive(&mut self) -> std::io::Result<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        let length = header(&head, "content-length");
        let promised = length.map_or(0, |length| length.parse().unwrap());
        let mut body = Vec::new();
        (&mut self.0)
            .take(promised as u64)
            .read_to_end(&mut body)
            .await?;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok(Answer {
            status,
            head,
            promised,
            body,
        })
    }

    pub async fn call(&mut self, method: &str, path: &str, body: &[u8]) -> std::io::Result<Answer> {
        self.send(method, path, body).await;
        timeout(PATIENCE, self.receive()).await.unwrap()
    }

    pub async fn run(&mut self, row: &str) -> Answer {
        self.call("POST", "/run", row.as_bytes()).await.unwrap()
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.call("GET", path, b"").await.unwrap()
    }
}

pub fn counts(sim: &Sim) -> Counts {
    sim.counters()["sim"].clone()
}

pub async fn until(sim: &Sim, holds: impl Fn(&Counts) -> bool) {
    let reached = async {
        while !holds(&counts(sim)) {
            yield_now().await;
        }
    };
    timeout(PATIENCE, reached)
        .await
        .unwrap_or_else(|_| panic!("stays at {:?}", counts(sim)));
}
