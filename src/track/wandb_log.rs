//! [`Log`]: the records of a W&B run in the format of its package; [`Message`] is one of them, or a part of one.
//!
//! The log is that of LevelDB, after seven bytes of its own: frames in blocks of 32 KiB. Each record is a protocol buffer whose
//! numbers are those of W&B's `wandb_internal.proto`. It is written at once, so whoever kills the process leaves whole ones.
//! The crate `prost` would bring a compiler of protocols for seven kinds of records that hold numbers and texts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How a log begins: the service, a number, and the version of the format.
const MAGIC: [u8; 7] = *b":W&B\xe1\xbe\x00";
/// Bytes of a block of a log.
const BLOCK: u64 = 32 * 1024;
/// Bytes before the payload of a frame: its checksum, its length, and which part of a record it is.
const FRAME: u64 = 7;

/// The log of a run.
pub(super) struct Log {
    file: File,
    /// Bytes that it has.
    bytes: u64,
    /// Records that it has.
    records: u64,
}

impl Log {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = File::create_new(path)?;
        file.write_all_at(&MAGIC, 0)?;
        Ok(Self {
            file,
            bytes: MAGIC.len() as u64,
            records: 0,
        })
    }

    pub(super) fn append(&mut self, kind: u32, body: Message) -> io::Result<()> {
        let record = Message::default().number(1, self.records + 1);
        let Message(record) = record.with(kind, body);
        let (mut rest, mut frames) = (record.as_slice(), Vec::new());
        let mut is_first = true;
        loop {
            let left = BLOCK - (self.bytes + frames.len() as u64) % BLOCK;
            if left < FRAME {
                frames.resize(frames.len() + left as usize, 0);
                continue;
            }
            let room = (left - FRAME) as usize;
            let (payload, more) = rest.split_at(rest.len().min(room));
            let part: u8 = match (is_first, more.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let mut checksum = crc32fast::Hasher::new();
            checksum.update(&[part]);
            checksum.update(payload);
            frames.extend(checksum.finalize().to_le_bytes());
            frames.extend((payload.len() as u16).to_le_bytes());
            frames.push(part);
            frames.extend(payload);
            (rest, is_first) = (more, false);
            if rest.is_empty() {
                break;
            }
        }
        // What a full disk has cut off is written over.
        self.file.write_all_at(&frames, self.bytes)?;
        self.bytes += frames.len() as u64;
        self.records += 1;
        Ok(())
    }
}

/// A message of protocol buffers.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Message {
    /// Adds a number.
    pub(super) fn number(mut self, field: u32, value: u64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    /// Adds a text or a message.
    pub(super) fn with(mut self, field: u32, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
