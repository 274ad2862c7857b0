//! The memory that a step copied and read, for a world that models the time that it takes.

use headworks_runtime::ActorContext;
use headworks_shm::{OutOfBounds, View};

/// Copies memory, and notes what was copied until [`charge`](Self::charge) reports it.
#[derive(Debug, Default)]
pub(crate) struct CopyLog {
    /// Bytes copied.
    bytes: u64,
    /// Whether the world models the memory of hosts, and is told the places.
    tells_places: bool,
    /// Addresses of source and target, and lengths in bytes.
    places: Vec<(usize, usize, usize)>,
}

impl CopyLog {
    /// Begins a step in a world.
    pub(crate) fn begin(&mut self, cx: &ActorContext<'_>) {
        self.tells_places = cx.models_memory();
    }

    /// Copies `len` bytes from an offset of one view to an offset of another.
    ///
    /// # Errors
    ///
    /// The errors of [`View::copy`]. Nothing was copied then.
    #[inline]
    pub(crate) fn copy(
        &mut self,
        (from, from_at): (&View, usize),
        (to, to_at): (&View, usize),
        len: usize,
    ) -> Result<(), OutOfBounds> {
        from.copy(from_at, to, to_at, len)?;
        self.bytes += len as u64;
        if self.tells_places
            && let (Some(source), Some(target)) = (from.ptr_at(from_at, len), to.ptr_at(to_at, len))
        {
            self.places.push((source.addr(), target.addr(), len));
        }
        Ok(())
    }

    /// Reports the copies to the world, and forgets them.
    pub(crate) fn charge(&mut self, cx: &mut ActorContext<'_>) {
        if self.bytes > 0 {
            cx.copied(std::mem::take(&mut self.bytes));
        }
        for (from, to, len) in self.places.drain(..) {
            cx.reads(std::ptr::without_provenance(from), len);
            cx.writes(std::ptr::without_provenance(to), len);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headworks_runtime::{ContextBackend, Mail, MailError};
    use headworks_shm::{HugePages, SegmentRequest, SharedSegment};
    use headworks_verbs::Instant;

    use super::*;

    /// A world that records the number of copied bytes, and the address, length and kind of each access.
    #[derive(Debug, Default)]
    struct World {
        copied: u64,
        accesses: Vec<(usize, usize, bool)>,
    }

    impl ContextBackend for World {
        fn role(&self) -> &str {
            "daemon"
        }

        fn now(&mut self) -> Instant {
            Instant::ZERO
        }

        fn copied(&mut self, bytes: u64) {
            self.copied += bytes;
        }

        fn models_memory(&self) -> bool {
            true
        }

        fn accesses(&mut self, begin: *const u8, len: usize, writes: bool) {
            self.accesses.push((begin.addr(), len, writes));
        }

        fn send(&mut self, _: &str, _: &[u8]) -> Result<(), MailError> {
            Ok(())
        }

        fn receive(&mut self) -> Option<Mail> {
            None
        }

        fn report(&mut self, _: &[u8]) -> Result<(), MailError> {
            Ok(())
        }

        fn interrupted(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_was_copied_is_reported_once_with_both_places() {
        let segment = SharedSegment::create(&SegmentRequest {
            name: "copies",
            len: 8192,
            huge_pages: HugePages::No,
            numa_node: None,
            is_sealed: false,
        });
        let segment = segment.expect("memory");
        let view = View::from(Arc::new(segment));
        view.write(100, b"headworks").expect("is within");
        let (mut log, mut world) = (CopyLog::default(), World::default());
        log.begin(&ActorContext::new(&mut world));
        log.copy((&view, 100), (&view, 5000), 9).expect("copies");
        log.copy((&view, 100), (&view, 8190), 9)
            .expect_err("the target ends before");
        log.charge(&mut ActorContext::new(&mut world));
        log.charge(&mut ActorContext::new(&mut world));
        let mut bytes = [0; 9];
        view.read(5000, &mut bytes).expect("is within");
        assert_eq!(&bytes, b"headworks");
        let begin = view.ptr_at(0, 8192).expect("all of it").addr();
        let places = [(begin + 100, 9, false), (begin + 5000, 9, true)];
        assert_eq!((world.copied, &world.accesses[..]), (9, &places[..]));
    }
}
