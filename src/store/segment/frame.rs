//! Frames: what a segment's file is made of, so that damage is found and what is intact after it is still read.
//!
//! ```text
//!   | magic 8 | length of the payload 8 | CRC-32 of the payload 4 | CRC-32 of these 20 bytes 4 | payload |
//! ```
//!
//! Crates for write-ahead logs (`wal-db`, `walogs`) cut a torn tail off when they open a log. Here others read a segment,
//! or a copy of its beginning, while it is written.
//!
//! Numbers are little-endian. A reader that meets a damaged header looks for the next intact one.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"\xf6rsframe";
const HEADER: usize = 24;

/// Bytes that are searched at a time for the next intact header.
const SEARCH: usize = 64 * 1024;

/// Bytes that are written at a time: the page cache takes several megabytes at once a fifth as fast.
const WRITE: usize = 1024 * 1024;

/// Smaller pieces of a payload are gathered up to this many bytes, so that each does not cost a call of the system.
const GATHERED: usize = 64 * 1024;

/// Writes a frame, whose payload may be in pieces.
pub(super) fn write(
    file: &mut impl Write,
    payload: &[impl Deref<Target = [u8]>],
) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(GATHERED, file);
    file.write_all(&header(payload))?;
    let mut pieces = payload.iter().flat_map(|piece| piece.chunks(WRITE));
    pieces.try_for_each(|piece| file.write_all(piece))?;
    file.flush()
}

fn header(payload: &[impl Deref<Target = [u8]>]) -> Vec<u8> {
    let (mut length, mut checksum) = (0_u64, crc32fast::Hasher::new());
    for piece in payload {
        length += piece.len() as u64;
        checksum.update(piece);
    }
    let mut header = Vec::with_capacity(HEADER);
    header.extend(MAGIC);
    header.extend(length.to_le_bytes());
    header.extend(checksum.finalize().to_le_bytes());
    header.extend(crc32fast::hash(&header).to_le_bytes());
    header
}

/// Length and checksum of the payload, if the header is intact.
fn parse(header: &[u8]) -> Option<(u64, u32)> {
    let (fields, checked) = header.split_at_checked(HEADER - 4)?;
    let intact = checked.get(..4)? == crc32fast::hash(fields).to_le_bytes();
    let fields = fields.strip_prefix(&MAGIC)?;
    let (length, checksum) = fields.split_at_checked(8)?;
    let length = u64::from_le_bytes(length.try_into().ok()?);
    let checksum = u32::from_le_bytes(checksum.try_into().ok()?);
    intact.then_some((length, checksum))
}

/// What stands next in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The payload of an intact frame.
    Payload { offset: u64, payload: Vec<u8> },
    /// Bytes that were written whole once and are not what was written.
    Damage(Damage),
}

/// Damaged bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
}

/// The frames of a file, of which the first `length` bytes are looked at.
#[derive(Debug)]
pub(super) struct Frames {
    file: Arc<File>,
    position: u64,
    length: u64,
}

impl Frames {
    pub(super) fn new(file: Arc<File>, length: u64) -> Self {
        Self {
            file,
            position: 0,
            length,
        }
    }

    /// The next piece. None at the end, and where what follows is a torn tail: a frame that was being written when
    /// the writer or its machine died, or zeros that the file system left in its place.
    pub(super) fn next(&mut self) -> io::Result<Option<Piece>> {
        let left = self.length - self.position;
        if left < HEADER as u64 {
            return Ok(None);
        }
        let offset = self.position;
        let mut header = [0; HEADER];
        self.file.read_exact_at(&mut header, offset)?;
        let Some((length, checksum)) = parse(&header) else {
            return self.after_damage(offset);
        };
        if length > left - HEADER as u64 {
            return Ok(None);
        }
        let mut payload = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        let begin = offset + HEADER as u64;
        self.file.read_exact_at(&mut payload, begin)?;
        self.position = begin + length;
        Ok(Some(if crc32fast::hash(&payload) == checksum {
            Piece::Payload { offset, payload }
        } else {
            self.damage(offset)
        }))
    }

    /// Goes to the next intact header.
    fn after_damage(&mut self, offset: u64) -> io::Result<Option<Piece>> {
        let mut buffer = vec![0; SEARCH + HEADER];
        let mut only_zeros = true;
        let mut position = offset;
        while position < self.length {
            let left = usize::try_from(self.length - position).unwrap_or(usize::MAX);
            let buffer = buffer
                .get_mut(..left.min(SEARCH + HEADER))
                .unwrap_or_default();
            self.file.read_exact_at(buffer, position)?;
            only_zeros &= buffer.iter().all(|byte| *byte == 0);
            let intact = |at: &usize| parse(buffer.get(*at..).unwrap_or_default()).is_some();
            if let Some(at) = memchr::memmem::find_iter(buffer, &MAGIC).find(intact) {
                self.position = position + at as u64;
                return Ok(Some(self.damage(offset)));
            }
            position += SEARCH as u64;
        }
        self.position = self.length;
        Ok((!only_zeros).then(|| self.damage(offset)))
    }

    fn damage(&self, offset: u64) -> Piece {
        Piece::Damage(Damage {
            offset,
            length: self.position - offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(bytes: &[u8]) -> (Arc<File>, u64) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        (Arc::new(file), bytes.len() as u64)
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<Damage>) {
        let (file, length) = file(bytes);
        let mut frames = Frames::new(file, length);
        let (mut payloads, mut damages) = (Vec::new(), Vec::new());
        while let Some(piece) = frames.next().unwrap() {
            match piece {
                Piece::Payload { payload, .. } => payloads.push(payload),
                Piece::Damage(damage) => damages.push(damage),
            }
        }
        (payloads, damages)
    }

    fn framed(payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for payload in payloads {
            // In two pieces.
            let (begin, rest) = payload.split_at(payload.len() / 2);
            write(&mut bytes, &[begin, rest]).unwrap();
        }
        bytes
    }

    #[test]
    fn a_torn_tail_is_no_damage() {
        let payloads = vec![vec![1; 100], vec![2; 50]];
        let bytes = framed(&payloads);
        for length in 0..=bytes.len() {
            let (read, damages) = read(&bytes[..length]);
            let whole = [0, 124, 198].iter().filter(|end| **end <= length).count() - 1;
            assert_eq!((read.len(), damages.len()), (whole, 0), "{length}");
        }
        let mut zeros = bytes.clone();
        zeros.extend([0; 4096]);
        assert_eq!(read(&zeros), (payloads, Vec::new()));
    }

    proptest! {
        /// Whatever byte changes, one frame at most is lost, and its place is told.
        #[test]
        fn a_changed_byte_costs_its_frame_and_no_other(
            sizes in prop::collection::vec(0_usize..300, 1..6),
            at in any::<prop::sample::Index>(),
            change in 1_u8..=255,
        ) {
            let payloads: Vec<Vec<u8>> =
                sizes.iter().zip(1_u8..).map(|(size, fill)| vec![fill; *size]).collect();
            let mut bytes = framed(&payloads);
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            let mut end = 0;
            let hit = payloads.iter().position(|payload| {
                end += HEADER + payload.len();
                at < end
            }).unwrap();
            let mut expected = payloads.clone();
            expected.remove(hit);
            let (read, damages) = read(&bytes);
            prop_assert_eq!(read, expected);
            let length = (HEADER + payloads[hit].len()) as u64;
            prop_assert_eq!(damages, vec![Damage { offset: end as u64 - length, length }]);
        }
    }
}
