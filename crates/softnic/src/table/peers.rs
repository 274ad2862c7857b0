//! The contexts that a context has attached, and how it finds them in the registry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_shm::{ContextRecord, HostKey, Registry};

use crate::table::addresses::{PeerKey, key_of};
use crate::table::peer::{AttachError, Peer, PeerGuard};
use crate::table::progress::Progress;

/// The attached peers of a context.
pub(crate) struct Peers {
    registry: Arc<Registry>,
    /// The context's own key in the registry.
    own_key: PeerKey,
    /// The context as its own peer.
    own: Arc<Peer>,
    progress: Arc<Progress>,
    attached: Mutex<HashMap<PeerKey, Arc<Peer>>>,
    /// Peers whose place in the registry another context has taken since.
    former: Mutex<Vec<Weak<Peer>>>,
    /// Number of the context's queue pairs connected to each peer.
    dests: Mutex<HashMap<PeerKey, usize>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    /// Makes the peers of the context `own`, which `own_key` names. None but `own` is attached.
    pub(crate) fn new(
        registry: Arc<Registry>,
        own_key: PeerKey,
        own: Arc<Peer>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            registry,
            own_key,
            own,
            progress,
            attached: Mutex::default(),
            former: Mutex::default(),
            dests: Mutex::default(),
        }
    }

    /// Returns the registry that the context is in.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns the context as its own peer.
    pub(crate) fn own(&self) -> &Arc<Peer> {
        &self.own
    }

    /// Attaches the context that owns queue pair `qpn` of `host`. Returns `None` if there is no such context.
    pub(crate) fn attach(&self, host: u64, qpn: u32) -> Result<Option<Arc<Peer>>, AttachError> {
        self.attach_and(host, qpn, Arc::clone)
    }

    /// Attaches the context that owns queue pair `qpn` of `host`, and keeps it attached.
    pub(crate) fn hold(&self, host: u64, qpn: u32) -> Result<Option<PeerGuard>, AttachError> {
        self.attach_and(host, qpn, PeerGuard::of)
    }

    /// Attaches the context that owns queue pair `qpn` of `host`, and returns the result of `keep` for it. A
    /// lock is held during `keep`, so that the progress thread cannot release the peer before `keep` has
    /// marked it as used. The progress thread watches the peers that it finds attached and releases unused
    /// ones.
    fn attach_and<T>(
        &self,
        host: u64,
        qpn: u32,
        keep: impl Fn(&Arc<Peer>) -> T,
    ) -> Result<Option<T>, AttachError> {
        let key = key_of(host, qpn);
        if key == self.own_key {
            return Ok(Some(keep(&self.own)));
        }
        let Some(record) = self.record_of(key)? else {
            return Ok(None);
        };
        if let Some(known) = locked(&self.attached).get(&key)
            && known.incarnation == record.incarnation
        {
            return Ok(Some(keep(known)));
        }
        let peer = match Peer::attach(&self.registry, &record) {
            Ok(Some(peer)) => Arc::new(peer),
            Ok(None) => return Ok(None),
            // The peer may have been leaving: it removes its record before it closes anything.
            Err(error) => match self.record_of(key)? {
                Some(still) if still.incarnation == record.incarnation => return Err(error),
                _ => return Ok(None),
            },
        };
        let mut attached = locked(&self.attached);
        let before = attached.insert(key, peer.clone());
        let kept = keep(&peer);
        drop(attached);
        if let Some(before) = before {
            let mut former = locked(&self.former);
            former.retain(|known| known.strong_count() > 0);
            former.push(Arc::downgrade(&before));
        }
        self.progress.kick();
        Ok(Some(kept))
    }

    fn record_of(&self, (host, index): PeerKey) -> Result<Option<ContextRecord>, AttachError> {
        let found = self.registry.lookup_context(HostKey(host), index);
        found.map_err(|error| AttachError::new("looking it up", std::io::Error::other(error)))
    }

    /// Returns the peer that `key` names, if it is attached.
    pub(crate) fn attached(&self, key: PeerKey) -> Option<Arc<Peer>> {
        locked(&self.attached).get(&key).cloned()
    }

    /// Returns whether no living context has `key`.
    pub(crate) fn has_left(&self, (host, index): PeerKey) -> bool {
        match self.registry.lookup_context(HostKey(host), index) {
            Ok(Some(_)) => false,
            Ok(None) => true,
            // Unknown. Requests will find out.
            Err(_) => false,
        }
    }

    /// Returns the peers attached now.
    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        let mut all: Vec<_> = locked(&self.attached).values().cloned().collect();
        all.extend(locked(&self.former).iter().filter_map(Weak::upgrade));
        all
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        locked(&self.attached).len()
    }

    /// Wakes the progress threads of all peers: the context has freed a segment.
    pub(crate) fn kick(&self) {
        let peers = self.all();
        let others = peers.iter().filter(|peer| !peer.is_own());
        others.for_each(|peer| peer.kick());
    }

    /// Releases peers that no queue pair is connected or sends to, and memory that the other peers have
    /// freed. A released peer is attached again when it is needed again.
    pub(crate) fn forget_unused(&self) {
        let dests = locked(&self.dests);
        let mut attached = locked(&self.attached);
        attached.retain(|key, peer| dests.contains_key(key) || peer.is_in_use());
        for peer in attached.values() {
            peer.let_go();
        }
    }

    /// Notes that a queue pair is now connected to `after`, and no longer to `before`.
    pub(crate) fn count_dest(&self, before: Option<PeerKey>, after: Option<PeerKey>) {
        let mut dests = locked(&self.dests);
        if let Some(key) = after {
            *dests.entry(key).or_default() += 1;
        }
        let Some(key) = before else { return };
        let Some(count) = dests.get_mut(&key) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            dests.remove(&key);
            let mut attached = locked(&self.attached);
            let is_in_use = attached.get(&key).is_some_and(|peer| peer.is_in_use());
            if !is_in_use && attached.remove(&key).is_some() {
                // The progress thread holds a reference while it sleeps.
                self.progress.kick();
            }
        }
    }
}
