//! [`Room`]: the memory for the bodies of answers.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies up to this size are not counted: the memory of a call in flight covers them.
const SMALL: u64 = 8 * 1024;

/// Memory for bodies, from the start of reading one until nobody holds it. A call that finds none waits before it
/// reads on, and so its sender waits, too.
///
/// Many half-read bodies may fill the room, each waiting for the others. So one body at a time may exceed the limit,
/// until it is dropped. No more than the room and the largest body is ever taken.
#[derive(Debug, Clone)]
pub(super) struct Room {
    free: Arc<Semaphore>,
    kib: u32,
    beyond: Arc<Semaphore>,
}

/// The holder of a body that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Somebody who drops it without waiting for another body: an answer on its way to the journal.
    Lander,
    /// Somebody who may wait for other bodies first. If others could not go beyond the room until this one is dropped, they
    /// might wait for ever.
    Caller,
}

/// A part of [`Room`] that is taken for one body.
#[derive(Debug)]
pub(super) struct Taken {
    room: Room,
    permit: Option<OwnedSemaphorePermit>,
    beyond: Option<OwnedSemaphorePermit>,
}

/// The size that a body needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Bytes that it needs now.
    pub(super) length: usize,
    /// The most bytes that it may need in the end.
    pub(super) most: u64,
    /// The bytes that are held at the same time, such as the compressed body.
    pub(super) beside: usize,
}

impl Room {
    /// Creates room for this many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).max(1);
        Self {
            free: Arc::new(Semaphore::new(kib as usize)),
            kib,
            beyond: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns the room for a body of which nothing was read yet.
    pub(super) fn take(&self) -> Taken {
        Taken {
            room: self.clone(),
            permit: None,
            beyond: None,
        }
    }
}

impl Taken {
    /// Waits for room for a body of `bytes` bytes in all.
    pub(super) async fn grow(&mut self, bytes: u64) {
        if bytes <= SMALL || self.beyond.is_some() {
            return;
        }
        let wanted = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let taken = self.permit.as_ref().map_or(0, |held| held.num_permits());
        let more = wanted.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
        if more == 0 {
            return;
        }
        let beyond = Arc::clone(&self.room.beyond).acquire_owned();
        if wanted > self.room.kib {
            self.beyond = beyond.await.ok();
            return;
        }
        let free = Arc::clone(&self.room.free).acquire_many_owned(more);
        tokio::select! {
            biased;
            Ok(permit) = free => match &mut self.permit {
                Some(held) => held.merge(permit),
                held => *held = Some(permit),
            },
            Ok(permit) = beyond => self.beyond = Some(permit),
            // The semaphores are never closed.
            else => {}
        }
    }

    /// Waits for room for `body` to grow, and reserves it there.
    pub(super) async fn reserve(&mut self, body: &mut Vec<u8>, wanted: Wanted) {
        if wanted.length <= body.capacity() {
            return;
        }
        let most = usize::try_from(wanted.most).unwrap_or(usize::MAX);
        let ahead = body.capacity() + body.capacity() / 2;
        let capacity = ahead.min(most).max(wanted.length);
        self.grow((capacity + wanted.beside) as u64).await;
        body.reserve_exact(capacity - body.len());
    }

    /// Returns the body, which gives the room back when the last of its holders drops it.
    pub(super) fn hold(mut self, body: Bytes, holder: Holder) -> Bytes {
        if holder == Holder::Caller {
            self.beyond = None;
        }
        match (&self.permit, &self.beyond) {
            (None, None) => body,
            _ => Bytes::from_owner(Held { body, _taken: self }),
        }
    }
}

struct Held {
    body: Bytes,
    _taken: Taken,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const KIB: u64 = 1 << 10;

    /// Returns the part of the room that a body took, if there was room.
    fn fits(room: &Room, kib: u64) -> Option<Taken> {
        let mut taken = room.take();
        taken.grow(kib * KIB).now_or_never()?;
        Some(taken)
    }

    fn body(taken: Taken, holder: Holder) -> Bytes {
        taken.hold(Bytes::from_static(b"body"), holder)
    }

    #[test]
    fn room_is_free_again_when_the_last_holder_is_gone() {
        let room = Room::new(100 * KIB);
        let held = body(fits(&room, 90).unwrap(), Holder::Lander);
        let beyond = fits(&room, 20).unwrap();
        assert!(fits(&room, 20).is_none());
        assert!(fits(&room, 8).is_some(), "small ones are not counted");
        let part = held.slice(1..2);
        drop(held);
        assert!(fits(&room, 20).is_none());
        drop(part);
        assert!(fits(&room, 20).is_some());
        drop(beyond);
    }

    #[test]
    fn of_bodies_that_wait_for_each_other_one_at_a_time_goes_beyond() {
        let room = Room::new(100 * KIB);
        let mut first = fits(&room, 50).unwrap();
        let mut second = fits(&room, 50).unwrap();
        assert!(first.grow(60 * KIB).now_or_never().is_some());
        assert!(first.grow(900 * KIB).now_or_never().is_some());
        assert!(second.grow(60 * KIB).now_or_never().is_none());
        let landed = body(first, Holder::Lander);
        assert!(second.grow(60 * KIB).now_or_never().is_none());
        drop(landed);
        assert!(second.grow(60 * KIB).now_or_never().is_some());
    }

    #[test]
    fn whoever_reads_other_bodies_first_keeps_none_from_being_read() {
        let room = Room::new(100 * KIB);
        let held: Vec<Bytes> = (0..5)
            .map(|_| body(fits(&room, 70).unwrap(), Holder::Caller))
            .collect();
        assert_eq!(held.len(), 5);
    }

    #[test]
    fn a_body_larger_than_all_there_is_goes_beyond() {
        let room = Room::new(100 * KIB);
        let huge = fits(&room, 1 << 30).unwrap();
        assert!(fits(&room, 1 << 30).is_none());
        assert!(fits(&room, 100).is_some());
        drop(huge);
        assert!(fits(&room, 1 << 30).is_some());
    }
}
