//! Divides the receives of a domain among its queue-pair groups: pure.
//!
//! All promises together never exceed the number of posted receives, so each message finds a receive. Each
//! group has a floor that its peer can always count on. Beyond the floor, a group gets more only as it uses
//! what it has, up to a maximum share, and only while receives are left that nobody was promised.
//!
//! Posted receives are those of the domain's shared receive queue. On a device without one they are all receives that the
//! domain has: a receive is posted to a group's own queue before the group's peer is told of the promise.

/// Account of the receives of a domain.
#[derive(Clone, Debug)]
pub struct ReceiveShares {
    posted: u32,
    promised: u32,
    floor: u32,
    share: u32,
}

impl ReceiveShares {
    /// Creates the account of `posted` receives. Each group gets at least `floor` of them, and at most
    /// `share`.
    pub fn new(posted: u32, floor: u32, share: u32) -> Self {
        Self {
            posted,
            promised: 0,
            floor,
            share: share.max(floor),
        }
    }

    /// Admits a new group. Returns how many receives it is promised, or `None` if too few are left: then
    /// [`grow`](Self::grow) must be called first.
    pub fn admit(&mut self) -> Option<u32> {
        let promised = self.promised.checked_add(self.floor)?;
        if promised > self.posted {
            return None;
        }
        self.promised = promised;
        Some(self.floor)
    }

    /// Adds `more` posted receives.
    pub fn grow(&mut self, more: u32) {
        self.posted += more;
    }

    /// Records that a group used a receive, which is posted again. `outstanding` is how many promises the
    /// group has left. Returns how many more it is promised.
    pub fn used(&mut self, outstanding: u64) -> u32 {
        self.promised -= 1;
        let outstanding = u32::try_from(outstanding).unwrap_or(u32::MAX);
        let spare = self.posted - self.promised;
        // One replaces the used receive. One more lets the share of a busy group grow.
        let more = self.share.saturating_sub(outstanding).min(2).min(spare);
        self.promised += more;
        more
    }

    /// Removes a group that had `outstanding` promises left. If the group has receives of its own, they must be free.
    pub fn leave(&mut self, outstanding: u64) {
        let outstanding = u32::try_from(outstanding).unwrap_or(u32::MAX);
        self.promised = self.promised.saturating_sub(outstanding);
    }

    /// Number of receives that are posted.
    pub fn posted(&self) -> u32 {
        self.posted
    }

    /// Number of receives that are promised.
    pub fn promised(&self) -> u32 {
        self.promised
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_more_is_promised_than_posted_and_every_group_keeps_its_floor(
            posted in 8u32..200,
            floor in 4u32..8,
            share in 1u32..40,
            acts in proptest::collection::vec((0u8..8, any::<usize>()), 0..400),
        ) {
            let mut receive_shares = ReceiveShares::new(posted, floor, share);
            let mut groups: Vec<u64> = Vec::new();
            for (act, qp_role) in acts {
                let at = qp_role % groups.len().max(1);
                match act {
                    0 => match receive_shares.admit() {
                        Some(promised) => groups.push(promised.into()),
                        None => {
                            receive_shares.grow(floor);
                            prop_assert!(receive_shares.posted() > posted);
                        }
                    },
                    1 if !groups.is_empty() => receive_shares.leave(groups.swap_remove(at)),
                    _ if groups.get(at).is_some_and(|left| *left > 0) => {
                        groups[at] -= 1;
                        groups[at] += u64::from(receive_shares.used(groups[at]));
                    }
                    _ => {}
                }
                prop_assert_eq!(u64::from(receive_shares.promised()), groups.iter().sum::<u64>());
                prop_assert!(receive_shares.promised() <= receive_shares.posted());
                for left in &groups {
                    prop_assert!((u64::from(floor)..=u64::from(share.max(floor))).contains(left));
                }
            }
        }
    }

    #[test]
    fn an_active_sender_gains_receives_up_to_its_share() {
        let mut receive_shares = ReceiveShares::new(100, 4, 20);
        let mut left = u64::from(receive_shares.admit().unwrap());
        for _ in 0..50 {
            left = left - 1 + u64::from(receive_shares.used(left - 1));
        }
        assert_eq!(left, 20);
    }
}
