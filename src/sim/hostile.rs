//! Answers that harm a client that trusts them: [`gzip_bomb`] and [`endless_body`].

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::LazyLock;

use bytes::Bytes;
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};
use futures::stream::{self, StreamExt};
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::header::{CONTENT_ENCODING, HeaderValue};

use super::http::{Reply, detail, json, streamed};

/// What stands before and after the spaces of a bomb. It has a reward, so that who unpacks all of
/// it and takes it for a rollout is found out.
const BOMB_START: &[u8] = br#"{"response":{"id":"bomb","output":[],"text":""#;
const BOMB_END: &[u8] = br#""},"reward":1.0}"#;

/// Spaces in a segment of a bomb.
const SEGMENT_BYTES: usize = 1 << 20;

/// Segments of a bomb: a little more than 1 GiB of spaces.
const SEGMENTS: usize = 1025;

static BOMB: LazyLock<io::Result<Bytes>> = LazyLock::new(|| bomb(SEGMENTS));

const ENDLESS_START: &[u8] = br#"{"response":{"id":"endless","output":[],"text":""#;
static ENDLESS_CHUNK: [u8; 64 << 10] = [b'x'; 64 << 10];

/// 200 with a small body that is more than 1 GiB when it is unpacked. Made once, in no time: the
/// spaces of one segment are compressed, and stand there many times over.
pub(super) fn gzip_bomb() -> Reply {
    match &*BOMB {
        Ok(bomb) => {
            let mut reply = json(bomb.clone());
            reply
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            reply
        }
        Err(error) => detail(hyper::StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

/// 200 with a body that never ends, made as the client takes it.
pub(super) fn endless_body() -> Reply {
    let frame = |bytes: &'static [u8]| Ok::<_, Infallible>(Frame::data(Bytes::from_static(bytes)));
    let start = stream::iter([frame(ENDLESS_START)]);
    let rest = stream::repeat_with(move || frame(&ENDLESS_CHUNK));
    streamed("application/json", StreamBody::new(start.chain(rest)))
}

/// A gzip file by RFC 1952, whose deflate blocks are `BOMB_START`, the same segment of spaces
/// `segments` times, and `BOMB_END`.
fn bomb(segments: usize) -> io::Result<Bytes> {
    let spaces = vec![b' '; SEGMENT_BYTES];
    let segment = blocks(&spaces)?.0;
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    file.extend(blocks(BOMB_START)?.0);
    file.extend(segment.repeat(segments));
    file.extend(blocks(BOMB_END)?.1);
    let mut crc = Crc::new();
    crc.update(BOMB_START);
    let mut of_segment = Crc::new();
    of_segment.update(&spaces);
    (0..segments).for_each(|_| crc.combine(&of_segment));
    let mut of_end = Crc::new();
    of_end.update(BOMB_END);
    crc.combine(&of_end);
    file.extend(crc.sum().to_le_bytes());
    file.extend(crc.amount().to_le_bytes());
    Ok(file.into())
}

/// Deflate blocks of `bytes` that refer to nothing before them: such that other blocks can follow,
/// and such that are the last.
fn blocks(bytes: &[u8]) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.flush()?;
    Ok((encoder.get_ref().clone(), encoder.finish()?))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn a_bomb_is_gzip_of_json_with_a_reward() {
        let mut text = String::new();
        let bomb = bomb(3).unwrap();
        GzDecoder::new(&*bomb).read_to_string(&mut text).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let spaces = value["response"]["text"].as_str().unwrap();
        assert_eq!(spaces.len(), 3 * SEGMENT_BYTES);
        assert_eq!(value["reward"], 1.0);
    }

    #[test]
    fn the_bomb_is_small_until_it_is_unpacked() {
        let bomb = BOMB.as_ref().unwrap();
        assert!(bomb.len() < 1_200_000, "{}", bomb.len());
        let size = bomb.last_chunk().copied().map(u32::from_le_bytes).unwrap();
        assert!(size > 1 << 30, "{size}");
    }
}
