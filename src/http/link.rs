//! [`Link`]: an open connection, driven by the task of whoever uses it. No task of its own means no hop between threads
//! for each request and each part of an answer. The clients of `hyper-util` and `reqwest` have one for each connection.
//! HTTP itself is hyper's.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep_until};

use super::call::Problem;

/// A request whose body is whole.
pub(super) type Outgoing = Request<Full<Bytes>>;

/// The bytes that are read at a time, ahead of their use: a body for which there is no room must stay with
/// its sender. One less than the buffer, which hyper doubles when it is full.
const READ: u64 = 16 * 1024 - 1;

/// If a connection ends later than this after a request, the server had received the request: the end of a
/// connection that was idle shows only after a round trip.
pub(super) const UNREAD: Duration = Duration::from_secs(5);

/// The longest time limit: longer than anybody waits, and within the range of a clock.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Returns the end of a time limit that begins now.
pub(super) fn end_of(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}

/// An open connection.
pub(super) struct Link {
    sender: SendRequest<Full<Bytes>>,
    /// None once it is closed.
    connection: Option<Connection<TokioIo<Watched>, Full<Bytes>>>,
    /// Whether something was received since the last request was sent.
    heard: Arc<AtomicBool>,
    read_timeout: Duration,
    /// The timer, kept from request to request: setting it costs more than an early wake-up.
    alarm: Pin<Box<Sleep>>,
    pub(super) idle_since: Instant,
}

/// The reason why a request got no answer.
pub(super) enum Unanswered {
    /// The connection was closed before any part of the request was sent.
    Unsent,
    /// The connection ended at once, without a byte of an answer. If it had been idle, the other side had most likely
    /// closed it before the request came.
    Unread(Problem),
    /// The request may have been received.
    Failed(Problem),
}

impl Link {
    pub(super) async fn open(
        io: TokioIo<TcpStream>,
        read_timeout: Duration,
    ) -> Result<Self, Problem> {
        let heard = Arc::new(AtomicBool::new(false));
        let io = Watched {
            stream: io.into_inner().take(READ),
            heard: Arc::clone(&heard),
        };
        let (sender, connection) = http1::Builder::new()
            .max_headers(MOST_HEADERS)
            .max_buf_size(MOST_BYTES)
            .handshake(TokioIo::new(io))
            .await
            .map_err(Problem::Broken)?;
        Ok(Self {
            sender,
            connection: Some(connection),
            heard,
            read_timeout,
            alarm: Box::pin(sleep_until(end_of(read_timeout).into())),
            idle_since: Instant::now(),
        })
    }

    /// Reads and writes as much as possible.
    fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(context).is_ready()
        {
            // Dropping the connection ends the request under way.
            self.connection = None;
        }
    }

    /// Returns whether another request can be sent, because the other side has not closed the connection.
    pub(super) async fn is_usable(&mut self) -> bool {
        poll_fn(|context| {
            self.drive(context);
            let ready = self.sender.poll_ready(context);
            Poll::Ready(self.connection.is_some() && matches!(ready, Poll::Ready(Ok(()))))
        })
        .await
    }

    /// Sends a request and waits for the head of the answer, until `first_byte` at the latest.
    pub(super) async fn send(
        &mut self,
        request: Outgoing,
        first_byte: Option<Instant>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let began = Instant::now();
        let silent = end_of(self.read_timeout);
        self.heard.store(false, Relaxed);
        let mut sending = pin!(self.sender.try_send_request(request));
        poll_fn(|context| {
            self.drive(context);
            if let Poll::Ready(sent) = sending.as_mut().poll(context) {
                return Poll::Ready(sent.map_err(|mut error| {
                    if error.take_message().is_some() {
                        return Unanswered::Unsent;
                    }
                    let problem = Problem::Broken(error.into_error());
                    if self.heard.load(Relaxed) || began.elapsed() > UNREAD {
                        Unanswered::Failed(problem)
                    } else {
                        Unanswered::Unread(problem)
                    }
                }));
            }
            let problem = match first_byte {
                Some(limit) if limit < silent => self.rings(context, limit, Problem::NoHead),
                _ => self.rings(context, silent, Problem::Silent),
            };
            problem.map(|problem| Err(Unanswered::Failed(problem)))
        })
        .await
    }

    /// Reads the next part of a body.
    pub(super) async fn chunk(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, Problem> {
        let silent = end_of(self.read_timeout);
        poll_fn(|context| {
            let mut driven = false;
            loop {
                match Pin::new(&mut *body).poll_frame(context) {
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => return Poll::Ready(Ok(Some(data))),
                        Err(_trailers) => driven = false,
                    },
                    Poll::Ready(Some(Err(error))) => {
                        return Poll::Ready(Err(Problem::Broken(error)));
                    }
                    Poll::Ready(None) => return Poll::Ready(Ok(None)),
                    Poll::Pending if driven => {
                        return self.rings(context, silent, Problem::Silent).map(Err);
                    }
                    Poll::Pending => {
                        self.drive(context);
                        driven = true;
                    }
                }
            }
        })
        .await
    }

    fn rings(
        &mut self,
        context: &mut Context<'_>,
        limit: Instant,
        problem: Problem,
    ) -> Poll<Problem> {
        if self.alarm.deadline() > limit.into() {
            self.alarm.as_mut().reset(limit.into());
        }
        while self.alarm.as_mut().poll(context).is_ready() {
            if Instant::now() >= limit {
                return Poll::Ready(problem);
            }
            self.alarm.as_mut().reset(limit.into());
        }
        Poll::Pending
    }
}

/// A stream that bounds the bytes read at a time, and records whether anything was received.
struct Watched {
    stream: Take<TcpStream>,
    heard: Arc<AtomicBool>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.set_limit(READ);
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.stream.limit() < READ {
            self.heard.store(true, Relaxed);
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(context)
    }
}

/// The most headers of an answer.
pub(super) const MOST_HEADERS: usize = 256;

/// The most bytes of a head: status line and headers.
pub(super) const MOST_BYTES: usize = 64 * 1024;
