//! The address handles of a context: destinations of datagrams. They belong to one process and are not in shared
//! memory. A request names a handle's key; the handle is read when the request is executed.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use headworks_verbs::{AhInit, AhKey, ResourceError};

/// The address handles of a context.
#[derive(Default)]
pub(crate) struct AddressHandles {
    live: RwLock<Live>,
}

#[derive(Default)]
struct Live {
    handles: HashMap<u32, (u32, AhInit)>,
    /// The key that was allocated last. Keys are allocated in sequence, so the key of a destroyed handle
    /// stays unused until the 32-bit counter wraps.
    last: u32,
}

impl AddressHandles {
    /// Returns the attributes of handle `key` if it belongs to protection domain `pd`.
    pub(crate) fn get(&self, key: AhKey, pd: u32) -> Option<AhInit> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        let &(of, init) = live.handles.get(&key.0)?;
        (of == pd).then_some(init)
    }

    /// Enters a handle of protection domain `pd`, if fewer than `limit` are live.
    pub(crate) fn enter(&self, pd: u32, init: &AhInit, limit: u32) -> Result<AhKey, ResourceError> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if live.handles.len() >= limit as usize {
            return Err(ResourceError::Exhausted {
                what: "address handles",
                limit: limit.into(),
            });
        }
        // The loop ends: fewer handles are live than there are keys.
        let key = loop {
            live.last = live.last.wrapping_add(1);
            if live.last != 0 && !live.handles.contains_key(&live.last) {
                break live.last;
            }
        };
        live.handles.insert(key, (pd, *init));
        Ok(AhKey(key))
    }

    /// Ends the handle `key`.
    pub(crate) fn leave(&self, key: AhKey) {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.handles.remove(&key.0);
    }
}

#[cfg(test)]
mod tests {
    use headworks_verbs::Gid;

    use super::*;

    #[test]
    fn a_key_is_not_given_out_again_and_means_nothing_in_another_domain() {
        let handles = AddressHandles::default();
        let to = |n: u8| AhInit::to(Gid([n; 16]));
        let first = handles.enter(1, &to(1), 2).unwrap();
        assert_eq!(handles.get(first, 1), Some(to(1)));
        assert_eq!(handles.get(first, 2), None);
        handles.leave(first);
        let later: Vec<_> = (0..2)
            .map(|n| handles.enter(1, &to(n), 2).unwrap())
            .collect();
        assert!(!later.contains(&first));
        assert_eq!(handles.get(first, 1), None);
        let full = handles.enter(1, &to(3), 2);
        assert!(matches!(
            full,
            Err(ResourceError::Exhausted { limit: 2, .. })
        ));
    }

    #[test]
    fn keys_that_come_round_pass_over_those_in_use() {
        let handles = AddressHandles::default();
        let kept = handles.enter(1, &AhInit::to(Gid([1; 16])), 9).unwrap();
        handles.live.write().unwrap().last = u32::MAX;
        let next = handles.enter(1, &AhInit::to(Gid([2; 16])), 9).unwrap();
        assert!(next != kept && next.0 != 0, "{next:?}");
    }
}
