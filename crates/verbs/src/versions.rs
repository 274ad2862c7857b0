//! Values that are replaced while references to earlier ones are in use.

use std::sync::OnceLock;

/// A value and those that replaced it. None is freed before the whole is, so it fits values that change seldom.
pub struct Versions<T> {
    first: T,
    next: OnceLock<Box<Self>>,
}

impl<T> Versions<T> {
    /// The value `first`.
    pub const fn new(first: T) -> Self {
        Self {
            first,
            next: OnceLock::new(),
        }
    }

    fn last(&self) -> &Self {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    /// The newest value.
    #[inline]
    pub fn newest(&self) -> &T {
        match self.next.get() {
            None => &self.first,
            Some(_) => &self.last().first,
        }
    }

    /// Replaces the value. If two threads do so at the same moment, both values are kept, in either order.
    pub fn replace(&self, value: T) {
        let mut newer = Box::new(Self::new(value));
        while let Err(refused) = self.last().next.set(newer) {
            newer = refused;
        }
    }
}

impl<T> Drop for Versions<T> {
    /// Frees one value after the other: each frees the next, and there may be many.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut version) = next {
            next = version.next.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_value_is_found_and_earlier_references_stay() {
        let versions = Versions::new(0);
        let first = versions.newest();
        for number in 1..100 {
            versions.replace(number);
            assert_eq!(*versions.newest(), number);
        }
        assert_eq!(*first, 0);
    }

    #[test]
    fn many_values_are_freed() {
        let versions = Versions::new(0);
        let mut last = &versions;
        for number in 0..200_000 {
            last.replace(number);
            last = last.next.get().unwrap();
        }
        drop(versions);
    }

    #[test]
    fn threads_that_replace_at_once_lose_no_value() {
        let versions = Versions::new(0);
        std::thread::scope(|scope| {
            for number in 1..5 {
                let versions = &versions;
                scope.spawn(move || versions.replace(number));
            }
        });
        let mut seen = Vec::new();
        let mut at = Some(&versions);
        while let Some(version) = at {
            seen.push(version.first);
            at = version.next.get().map(Box::as_ref);
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }
}
