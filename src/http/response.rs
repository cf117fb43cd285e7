//! [`Response`]: the head of an answer, and its body as it comes, unpacked.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_ENCODING, HeaderValue};
use hyper::http::response::Parts;
use hyper::{HeaderMap, StatusCode};
use tokio::time::timeout;

use super::call::Problem;
use super::link::Link;
use super::pool::Pool;
use super::room::{Holder, Room, Taken, Wanted};

/// Bodies up to this size are copied out of the buffer that they were read into.
const COPIED_BYTES: usize = 8 * 1024;

/// The head of an answer, and its body as it comes.
#[derive(Debug)]
pub enum Response {
    /// An answer over a connection of our own.
    Own(Received),
    /// An answer over TLS or a proxy.
    Client(reqwest::Response),
}

impl Response {
    /// Returns the status code.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Own(received) => received.head.status,
            Self::Client(response) => response.status(),
        }
    }

    /// Returns the headers.
    pub fn headers(&self) -> &HeaderMap {
        match self {
            Self::Own(received) => &received.head.headers,
            Self::Client(response) => response.headers(),
        }
    }

    /// Reads and decompresses the whole body, of at most `max` bytes, as there is room for it.
    ///
    /// # Errors
    /// The connection broke or fell silent, or the body is too large or can't be unpacked.
    pub(super) async fn body(
        mut self,
        max: u64,
        room: &Room,
        holder: Holder,
    ) -> Result<Bytes, Problem> {
        let announced = self.announced();
        if announced.is_some_and(|length| length > max) {
            return Err(Problem::TooLarge(max));
        }
        let mut taken = room.take();
        taken.grow(announced.unwrap_or_default()).await;
        let body = self.read(max, announced, &mut taken).await?;
        let body = match self.encoding() {
            Some(encoding) => encoding.unpack(&body, max, &mut taken).await?,
            None => body,
        };
        Ok(taken.hold(body, holder))
    }

    async fn read(
        &mut self,
        max: u64,
        announced: Option<u64>,
        taken: &mut Taken,
    ) -> Result<Bytes, Problem> {
        let Some(first) = self.chunk().await? else {
            return Ok(Bytes::new());
        };
        if announced == Some(first.len() as u64) {
            // A part of the connection's buffer would keep all of it from being used again.
            let mut body = first;
            if body.len() <= COPIED_BYTES {
                body = Bytes::copy_from_slice(&body);
            }
            self.end().await;
            return Ok(body);
        }
        // The announced length is only a hint: memory for a large body is reserved as it arrives.
        let hint = announced.unwrap_or_default().min(64 * 1024 * 1024) as usize;
        let mut body = Vec::with_capacity(hint);
        let mut next = Some(first);
        while let Some(chunk) = next {
            let length = body.len() + chunk.len();
            if length as u64 > max {
                return Err(Problem::TooLarge(max));
            }
            let wanted = Wanted {
                length,
                most: max,
                beside: 0,
            };
            taken.reserve(&mut body, wanted).await;
            body.extend_from_slice(&chunk);
            if announced == Some(length as u64) {
                break;
            }
            next = self.chunk().await?;
        }
        self.end().await;
        Ok(body.into())
    }

    /// Returns the start of the decompressed body: about `wanted` bytes, or those that come within `limit`.
    pub async fn start(mut self, wanted: usize, limit: Duration) -> Vec<u8> {
        let mut start = Vec::new();
        let read = async {
            loop {
                match self.chunk().await {
                    Ok(Some(chunk)) if start.len() < wanted => start.extend_from_slice(&chunk),
                    Ok(None) => break self.end().await,
                    _ => break,
                }
            }
        };
        // Only the bytes that came within the time can be quoted.
        let _ = timeout(limit, read).await;
        match self.encoding() {
            Some(encoding) => encoding.unpack_start(&start, wanted),
            None => start,
        }
    }

    /// Returns the next part of the body, as it was sent.
    async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        match self {
            Self::Own(received) => received.chunk().await,
            Self::Client(response) => Ok(response.chunk().await?),
        }
    }

    /// Gives the connection back, because nothing more is read.
    async fn end(&mut self) {
        if let Self::Own(received) = self {
            received.end().await;
        }
    }

    fn announced(&self) -> Option<u64> {
        match self {
            Self::Own(received) => received.body.size_hint().exact(),
            Self::Client(response) => response.content_length(),
        }
    }

    /// Returns the encoding of the chunks.
    fn encoding(&self) -> Option<Encoding> {
        match self {
            Self::Own(received) => Encoding::of(received.head.headers.get(CONTENT_ENCODING)?),
            Self::Client(_) => None,
        }
    }
}

/// An answer over a connection of [`Pool`].
pub struct Received {
    head: Parts,
    body: Incoming,
    /// None once it went back.
    link: Option<Box<Link>>,
    pool: Arc<Pool>,
}

impl fmt::Debug for Received {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Received({} over {:?})",
            self.head.status, self.pool
        )
    }
}

impl Received {
    pub(super) fn new(
        response: hyper::Response<Incoming>,
        link: Box<Link>,
        pool: Arc<Pool>,
    ) -> Self {
        let (head, body) = response.into_parts();
        Self {
            head,
            body,
            link: Some(link),
            pool,
        }
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        match &mut self.link {
            Some(link) => link.chunk(&mut self.body).await,
            None => Ok(None),
        }
    }

    async fn end(&mut self) {
        if let Some(mut link) = self.link.take()
            && link.is_usable().await
        {
            self.pool.put(link);
        }
    }
}

/// The initial size of a decompressed body in bytes.
const FIRST: usize = 8 * 1024;

/// The window of zstd: it looks back at most 2^23 bytes (RFC 9659), which it keeps in memory.
const ZSTD_WINDOW: u32 = 23;

/// The compression of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    Zstd,
}

impl Encoding {
    /// The encodings that are accepted.
    pub(super) const ACCEPTED: &str = "gzip, zstd";

    /// Reads a `content-encoding`; none if the body needs no decompression.
    pub(super) fn of(value: &HeaderValue) -> Option<Self> {
        match value.as_bytes() {
            b"gzip" | b"x-gzip" => Some(Self::Gzip),
            b"zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    fn reader<'a>(self, packed: &'a [u8]) -> std::io::Result<Box<dyn Read + Send + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Self::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(packed)?;
                decoder.window_log_max(ZSTD_WINDOW)?;
                Box::new(decoder)
            }
        })
    }

    /// Unpacks a body, of `max` bytes at most. Waits for room as it grows.
    ///
    /// # Errors
    /// The body is larger, or not in this encoding.
    pub(super) async fn unpack(
        self,
        packed: &[u8],
        max: u64,
        taken: &mut Taken,
    ) -> Result<Bytes, Problem> {
        let mut unpacked = Vec::with_capacity(FIRST);
        let mut reader = self.reader(packed).map_err(Problem::Encoding)?;
        loop {
            let free = unpacked.capacity() - unpacked.len();
            let read = reader.by_ref().take(free as u64).read_to_end(&mut unpacked);
            let read = read.map_err(Problem::Encoding)?;
            if unpacked.len() as u64 > max {
                return Err(Problem::TooLarge(max));
            }
            if read < free {
                return Ok(unpacked.into());
            }
            let wanted = Wanted {
                length: unpacked.len() + 1,
                // One byte beyond the limit shows that the body is too large.
                most: max + 1,
                beside: packed.len(),
            };
            taken.reserve(&mut unpacked, wanted).await;
        }
    }

    /// Unpacks the beginning of a body, up to some `wanted` bytes.
    pub(super) fn unpack_start(self, packed: &[u8], wanted: usize) -> Vec<u8> {
        let mut unpacked = Vec::new();
        if let Ok(reader) = self.reader(packed) {
            // The input ends early, which is an error; the output before it is enough.
            let _ = reader.take(wanted as u64).read_to_end(&mut unpacked);
        }
        unpacked
    }
}
