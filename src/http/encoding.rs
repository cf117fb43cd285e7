use std::io::Read;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use hyper::header::HeaderValue;

use super::problem::Problem;
use super::room::{Taken, Wanted};

/// The first bytes of an unpacked body.
const FIRST: usize = 8 * 1024;

/// zstd may look back at most 2^23 bytes (RFC 9659): what it keeps of them is memory as well.
const ZSTD_WINDOW: u32 = 23;

/// How a body is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    Zstd,
}

impl Encoding {
    /// What is accepted.
    pub(super) const ACCEPTED: &str = "gzip, zstd";

    /// That of a `content-encoding`; none where the body is to be taken as it is.
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

    /// The bytes that were packed, of which there may be `max`. Waits for room for them as they grow.
    ///
    /// # Errors
    /// There are more, or these are none that were packed so.
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
                // One more shows that there are more.
                most: max + 1,
                beside: packed.len(),
            };
            taken.reserve(&mut unpacked, wanted).await;
        }
    }

    /// What the beginning of something packed gives, up to some `wanted` bytes.
    pub(super) fn unpack_start(self, packed: &[u8], wanted: usize) -> Vec<u8> {
        let mut unpacked = Vec::new();
        if let Ok(reader) = self.reader(packed) {
            // It ends early; what came before is what is wanted.
            let _ = reader.take(wanted as u64).read_to_end(&mut unpacked);
        }
        unpacked
    }
}
