//! Tests of requests over real connections to scripted servers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::HeaderMap;
use url::Url;

use super::*;
use crate::retry::{Failure, FailureClass};

const LONG: Duration = Duration::from_secs(60);

fn settings() -> HttpSettings {
    HttpSettings {
        connections: 4,
        connect_timeout: LONG,
        first_byte_timeout: None,
        read_timeout: LONG,
        max_body: 1 << 20,
        body_memory: 1 << 20,
    }
}

fn to(url: &str, settings: &HttpSettings) -> Destination {
    let http = HttpClients::new(settings).unwrap();
    Destination::new(Url::parse(url).unwrap(), HeaderMap::new(), http)
}

async fn post(to: &Destination) -> Result<Bytes, Failure> {
    let call = Call {
        what: "POST it",
        began: Instant::now(),
        secrets: &Secrets::default(),
    };
    let body = Bytes::from_static(b"{}");
    let response = to.post(to.headers(), &body, &call).await?;
    match response.status().as_u16() {
        200 => to.http().body(response, Holder::Lander, &call).await,
        _ => Err(call.status_error(response).await),
    }
}

/// Serves one connection after another, each by its own function. Returns the address.
fn server<const N: usize>(connections: [fn(TcpStream); N]) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/run", listener.local_addr().unwrap());
    let thread = thread::spawn(move || {
        for serve in connections {
            let (stream, _) = listener.accept().unwrap();
            serve(stream);
        }
    });
    (url, thread)
}

/// Reads one request; false at the end of the connection.
fn request(stream: &mut TcpStream) -> bool {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n{}") {
        match stream.read(&mut byte) {
            Ok(1) => request.push(byte[0]),
            _ => return false,
        }
    }
    true
}

fn answer(stream: &mut TcpStream, headers: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
}

#[tokio::test]
async fn one_connection_serves_requests_that_follow_each_other() {
    let (url, thread) = server([|mut stream| {
        for _ in 0..3 {
            assert!(request(&mut stream));
            answer(&mut stream, "", b"yes");
        }
        assert!(!request(&mut stream), "it is closed with its clients");
    }]);
    let to = to(&url, &settings());
    for _ in 0..3 {
        assert_eq!(post(&to).await.unwrap(), "yes");
    }
    drop(to);
    thread.join().unwrap();
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_no_request() {
    let (url, thread) = server([
        |mut stream| {
            assert!(request(&mut stream));
            answer(&mut stream, "", b"first");
        },
        |mut stream| {
            assert!(request(&mut stream));
            answer(&mut stream, "", b"second");
        },
    ]);
    let to = to(&url, &settings());
    assert_eq!(post(&to).await.unwrap(), "first");
    assert_eq!(post(&to).await.unwrap(), "second");
    thread.join().unwrap();
}

#[tokio::test]
async fn a_request_that_an_idle_connection_lost_is_sent_again_over_a_new_one() {
    let (url, thread) = server([
        |mut stream| {
            assert!(request(&mut stream));
            answer(&mut stream, "", b"first");
            stream.peek(&mut [0]).unwrap();
        },
        |mut stream| {
            assert!(request(&mut stream));
            answer(&mut stream, "", b"second");
        },
    ]);
    let to = to(&url, &settings());
    assert_eq!(post(&to).await.unwrap(), "first");
    assert_eq!(post(&to).await.unwrap(), "second");
    thread.join().unwrap();
}

#[tokio::test]
async fn a_request_that_was_received_is_not_sent_again() {
    let fails = async |to: &Destination| {
        let failure = post(to).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Infra, "{failure:?}");
        assert!(!failure.unreachable, "{failure:?}");
    };
    // The request came over a new connection.
    let next: fn(TcpStream) = |mut stream| {
        assert!(request(&mut stream));
        answer(&mut stream, "", b"another request");
    };
    let (url, thread) = server([|mut stream| assert!(request(&mut stream)), next]);
    let new = to(&url, &settings());
    fails(&new).await;
    assert_eq!(post(&new).await.unwrap(), "another request");
    thread.join().unwrap();
    // Its answer began.
    let (url, thread) = server([
        |mut stream| {
            assert!(request(&mut stream));
            answer(&mut stream, "", b"first");
            assert!(request(&mut stream));
            stream.write_all(b"H").unwrap();
        },
        next,
    ]);
    let idle = to(&url, &settings());
    assert_eq!(post(&idle).await.unwrap(), "first");
    fails(&idle).await;
    assert_eq!(post(&idle).await.unwrap(), "another request");
    thread.join().unwrap();
}

#[tokio::test]
async fn silence_ends_a_call_before_and_within_an_answer() {
    let short = Duration::from_millis(50);
    for (limited, why) in [
        (
            HttpSettings {
                read_timeout: short,
                ..settings()
            },
            "--read-timeout",
        ),
        (
            HttpSettings {
                first_byte_timeout: Some(short),
                ..settings()
            },
            "--first-byte-timeout",
        ),
    ] {
        let (url, thread) = server([|mut stream| {
            assert!(request(&mut stream));
            assert!(!request(&mut stream), "given up");
        }]);
        let failure = post(&to(&url, &limited)).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Timeout, "{failure:?}");
        assert!(failure.message.contains(why), "{failure:?}");
        thread.join().unwrap();
    }
    let (url, thread) = server([|mut stream| {
        assert!(request(&mut stream));
        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhal";
        stream.write_all(half).unwrap();
        assert!(!request(&mut stream), "given up");
    }]);
    let limited = HttpSettings {
        read_timeout: short,
        ..settings()
    };
    let failure = post(&to(&url, &limited)).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Timeout, "{failure:?}");
    thread.join().unwrap();
}

#[tokio::test]
async fn a_limit_that_no_clock_reaches_is_none() {
    let (url, thread) = server([|mut stream| {
        assert!(request(&mut stream));
        answer(&mut stream, "", b"yes");
    }]);
    let unlimited = HttpSettings {
        connect_timeout: Duration::MAX,
        first_byte_timeout: Some(Duration::MAX),
        read_timeout: Duration::MAX,
        ..settings()
    };
    assert_eq!(post(&to(&url, &unlimited)).await.unwrap(), "yes");
    thread.join().unwrap();
}

#[tokio::test]
async fn packed_bodies_are_unpacked_and_bad_ones_are_data() {
    let (url, thread) = server([|mut stream| {
        let zstd = zstd::encode_all(&b"zstd"[..], 1).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"gzip").unwrap();
        let gzip = gzip.finish().unwrap();
        for (encoding, body) in [("zstd", &zstd), ("gzip", &gzip), ("gzip", &zstd)] {
            assert!(request(&mut stream));
            let header = format!("content-encoding: {encoding}\r\n");
            answer(&mut stream, &header, body);
        }
    }]);
    let to = to(&url, &settings());
    assert_eq!(post(&to).await.unwrap(), "zstd");
    assert_eq!(post(&to).await.unwrap(), "gzip");
    let failure = post(&to).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Data, "{failure:?}");
    thread.join().unwrap();
}

#[tokio::test]
async fn where_nobody_listens_nothing_was_sent() {
    let failure = post(&to("http://127.0.0.1:1/run", &settings()))
        .await
        .unwrap_err();
    assert_eq!(failure.class, FailureClass::Infra, "{failure:?}");
    assert!(failure.unreachable, "{failure:?}");
    assert!(
        failure.message.contains("Connection refused"),
        "{failure:?}"
    );
}
