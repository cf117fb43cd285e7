use std::io::Read;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use hyper::header::HeaderValue;

use super::problem::Problem;

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

    fn reader<'a>(self, packed: &'a [u8]) -> std::io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Self::Zstd => Box::new(zstd::Decoder::with_buffer(packed)?),
        })
    }

    /// The bytes that were packed, of which there may be `max`.
    ///
    /// # Errors
    /// There are more, or these are none that were packed so.
    pub(super) fn unpack(self, packed: &[u8], max: u64) -> Result<Bytes, Problem> {
        let mut unpacked = Vec::new();
        let mut reader = self
            .reader(packed)
            .map_err(Problem::Encoding)?
            .take(max + 1);
        reader
            .read_to_end(&mut unpacked)
            .map_err(Problem::Encoding)?;
        if unpacked.len() as u64 > max {
            return Err(Problem::TooLarge(max));
        }
        Ok(unpacked.into())
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
