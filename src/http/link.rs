//! [`Link`]: an open connection, driven by the task of whoever uses it. No task of its own means no
//! hop between threads for each request and each part of an answer.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep_until};

use super::problem::Problem;

/// What is sent: a head and a body that is there as a whole.
pub(super) type Outgoing = Request<Full<Bytes>>;

/// What is read ahead of whoever wants it: a body for which there is no room must stay with whoever
/// sends it. The head of an answer has to fit in.
const BUFFER: usize = 16 * 1024;

/// Longer than anybody waits, and no further than a clock can be told.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The end of a time limit that begins now.
pub(super) fn end_of(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}

/// An open connection.
pub(super) struct Link {
    sender: SendRequest<Full<Bytes>>,
    /// None once it is closed.
    connection: Option<Connection<TokioIo<TcpStream>, Full<Bytes>>>,
    read_timeout: Duration,
    /// Kept from request to request: setting a timer costs more than finding that it rang too early.
    alarm: Pin<Box<Sleep>>,
    pub(super) idle_since: Instant,
}

/// Why a request came to nothing.
pub(super) enum Unanswered {
    /// Nothing of it was sent: the other side had closed the connection.
    Unsent(Box<Outgoing>),
    /// It may have been received.
    Failed(Problem),
}

impl Link {
    pub(super) async fn open(
        io: TokioIo<TcpStream>,
        read_timeout: Duration,
    ) -> Result<Self, Problem> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER)
            .handshake(io)
            .await
            .map_err(Problem::Broken)?;
        Ok(Self {
            sender,
            connection: Some(connection),
            read_timeout,
            alarm: Box::pin(sleep_until(end_of(read_timeout).into())),
            idle_since: Instant::now(),
        })
    }

    /// Reads and writes what can be.
    fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(context).is_ready()
        {
            // What it ended with is told to the request that was under way.
            self.connection = None;
        }
    }

    /// Whether another request can be sent: the other side has not closed it.
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
        let silent = end_of(self.read_timeout);
        let mut sending = pin!(self.sender.try_send_request(request));
        poll_fn(|context| {
            self.drive(context);
            if let Poll::Ready(sent) = sending.as_mut().poll(context) {
                return Poll::Ready(sent.map_err(|mut error| match error.take_message() {
                    Some(request) => Unanswered::Unsent(Box::new(request)),
                    None => Unanswered::Failed(Problem::Broken(error.into_error())),
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

    /// The next part of a body.
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
