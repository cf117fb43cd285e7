use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies up to this size are not counted: a call in flight is.
const SMALL: u64 = 8 * 1024;

/// What a body is taken to be that does not say how long it is.
const UNKNOWN: u64 = 64 * 1024;

/// Memory for bodies, from the moment that one is read until nobody holds it any more. Who finds none
/// waits with reading, and so does whoever sends.
#[derive(Debug, Clone)]
pub(super) struct Room {
    free: Arc<Semaphore>,
    kib: u32,
}

/// A part of [`Room`] that is taken.
#[derive(Debug)]
pub(super) struct Taken {
    room: Room,
    permit: OwnedSemaphorePermit,
}

impl Room {
    /// Room for so many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).max(1);
        Self {
            free: Arc::new(Semaphore::new(kib as usize)),
            kib,
        }
    }

    /// Waits for room for a body of `announced` bytes; one that is larger than all there is takes it all.
    pub(super) async fn take(&self, announced: Option<u64>) -> Option<Taken> {
        let bytes = announced.unwrap_or(UNKNOWN);
        if bytes <= SMALL {
            return None;
        }
        let free = Arc::clone(&self.free);
        let permit = free.acquire_many_owned(self.kib_of(bytes)).await.ok()?;
        Some(Taken {
            room: self.clone(),
            permit,
        })
    }

    fn kib_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(1 << 10)).map_or(self.kib, |kib| kib.min(self.kib))
    }
}

impl Taken {
    /// The body has grown to `bytes`. To wait for more would be to wait for others who do the same, so
    /// what is not free is not counted.
    pub(super) fn grow(&mut self, bytes: u64) {
        let wanted = self.room.kib_of(bytes) as usize;
        let more = wanted.saturating_sub(self.permit.num_permits());
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        if more > 0
            && let Ok(permit) = Arc::clone(&self.room.free).try_acquire_many_owned(more)
        {
            self.permit.merge(permit);
        }
    }

    /// The body, which gives the room back when the last of its holders drops it.
    pub(super) fn hold(self, body: Bytes) -> Bytes {
        Bytes::from_owner(Held { body, _taken: self })
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

    #[tokio::test]
    async fn room_is_free_again_when_the_last_holder_is_gone() {
        let room = Room::new(100 << 10);
        let taken = room.take(Some(90 << 10)).await.unwrap();
        assert!(room.take(Some(20 << 10)).now_or_never().is_none());
        assert!(room.take(Some(SMALL)).now_or_never().is_some());
        let body = taken.hold(Bytes::from_static(b"body"));
        let part = body.slice(1..2);
        drop(body);
        assert!(room.take(Some(20 << 10)).now_or_never().is_none());
        drop(part);
        assert!(room.take(Some(20 << 10)).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_body_larger_than_all_takes_all_and_one_of_unknown_length_grows() {
        let room = Room::new(100 << 10);
        drop(room.take(Some(1 << 40)).await.unwrap());
        let mut taken = room.take(None).await.unwrap();
        taken.grow(80 << 10);
        assert!(room.take(Some(30 << 10)).now_or_never().is_none());
        taken.grow(1 << 30);
        drop(taken);
        assert!(room.take(Some(100 << 10)).now_or_never().is_some());
    }
}
