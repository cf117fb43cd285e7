//! An agent that writes what it answers to the socket by itself: what no well-behaved server sends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

use serde_json::Value;

use crate::common::{Folder, Program, sums};

/// The smallest answer that is a rollout.
pub const ANSWER: &str = r#"{"response":{"output":[]},"reward":1.0}"#;

/// A request that came whole.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What stands after POST.
    pub target: String,
    pub body: Value,
}

/// Serves until the test process ends.
pub struct RawAgent {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl RawAgent {
    /// `answer` writes an answer, and fails where the connection is to be closed.
    pub fn start(
        answer: impl Fn(&Asked, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::default();
        let (answer, log) = (Arc::new(answer), Arc::clone(&asked));
        spawn(move || {
            for stream in listener.incoming() {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                // How a connection ends is what is tested, and seen on the other side.
                spawn(move || stream.and_then(|stream| serve(stream, &*answer, &log)));
            }
        });
        Self { address, asked }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What came so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// A sweep of the tasks of `folder`, with 4 rollouts each.
    pub fn collect(&self, folder: &Folder, options: &str) -> Program {
        let program = folder.rollstream(super::scene::COLLECT).args("--agent raw");
        let program = program.args(&format!("--agent-url raw={}", self.url()));
        program.args(options)
    }
}

/// A folder with so many tasks.
pub fn folder(tasks: u64) -> Folder {
    Folder::with_tasks(sums(tasks))
}

/// Status 200 with more headers, each with its line end, and a body.
pub fn ok(stream: &mut TcpStream, headers: &str, body: &[u8]) -> io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{headers}\r\n"
    )?;
    stream.write_all(body)
}

/// Status 200 and the head of a body in chunks.
pub fn chunked(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
}

pub fn chunk(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    write!(stream, "{:x}\r\n", bytes.len())?;
    stream.write_all(bytes)?;
    stream.write_all(b"\r\n")
}

fn serve(
    mut stream: TcpStream,
    answer: &dyn Fn(&Asked, &mut TcpStream) -> io::Result<()>,
    log: &Mutex<Vec<Asked>>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let target = line.split(' ').nth(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        let target = target.to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = serde_json::from_slice(&body)?;
        let asked = Asked { target, body };
        log.lock().unwrap().push(asked.clone());
        answer(&asked, &mut stream)?;
    }
}
