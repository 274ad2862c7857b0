//! How the receives of a domain's shared queue are shared among its links: pure.
//!
//! What all links are promised together is never more than what is posted, so a receive is always found. Each link
//! has a floor, which its peer can count on for ever; beyond that it gets more only as it uses what it has, up to a
//! share of the whole, and only while there is some to spare.

/// The account of a shared receive queue.
#[derive(Clone, Debug)]
pub struct ReceiveShares {
    posted: u32,
    promised: u32,
    floor: u32,
    share: u32,
}

impl ReceiveShares {
    /// `posted` receives, of which every link has `floor`, and `share` at most.
    pub fn new(posted: u32, floor: u32, share: u32) -> Self {
        Self {
            posted,
            promised: 0,
            floor,
            share: share.max(floor),
        }
    }

    /// A new link: what it is promised. `None` where so many receives are not there: there must be more first.
    pub fn admit(&mut self) -> Option<u32> {
        let promised = self.promised.checked_add(self.floor)?;
        if promised > self.posted {
            return None;
        }
        self.promised = promised;
        Some(self.floor)
    }

    /// More receives were posted.
    pub fn grow(&mut self, more: u32) {
        self.posted += more;
    }

    /// A link used a receive, which is posted again, and has so many left: how many more it is promised.
    pub fn used(&mut self, outstanding: u64) -> u32 {
        self.promised -= 1;
        let outstanding = u32::try_from(outstanding).unwrap_or(u32::MAX);
        let spare = self.posted - self.promised;
        // One in place of that, and one more while it goes on.
        let more = self.share.saturating_sub(outstanding).min(2).min(spare);
        self.promised += more;
        more
    }

    /// A link is gone, and so many promises with it.
    pub fn leave(&mut self, outstanding: u64) {
        let outstanding = u32::try_from(outstanding).unwrap_or(u32::MAX);
        self.promised = self.promised.saturating_sub(outstanding);
    }

    /// Receives that are posted.
    pub fn posted(&self) -> u32 {
        self.posted
    }

    /// Receives that are promised.
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
        fn never_more_is_promised_than_posted_and_every_link_keeps_its_floor(
            posted in 8u32..200,
            floor in 4u32..8,
            share in 1u32..40,
            acts in proptest::collection::vec((0u8..8, any::<usize>()), 0..400),
        ) {
            let mut grants = ReceiveShares::new(posted, floor, share);
            let mut links: Vec<u64> = Vec::new();
            for (act, which) in acts {
                let at = which % links.len().max(1);
                match act {
                    0 => match grants.admit() {
                        Some(promised) => links.push(promised.into()),
                        None => {
                            grants.grow(floor);
                            prop_assert!(grants.posted() > posted);
                        }
                    },
                    1 if !links.is_empty() => grants.leave(links.swap_remove(at)),
                    _ if links.get(at).is_some_and(|left| *left > 0) => {
                        links[at] -= 1;
                        links[at] += u64::from(grants.used(links[at]));
                    }
                    _ => {}
                }
                prop_assert_eq!(u64::from(grants.promised()), links.iter().sum::<u64>());
                prop_assert!(grants.promised() <= grants.posted());
                for left in &links {
                    prop_assert!((u64::from(floor)..=u64::from(share.max(floor))).contains(left));
                }
            }
        }
    }

    #[test]
    fn who_sends_gets_more_up_to_its_share() {
        let mut grants = ReceiveShares::new(100, 4, 20);
        let mut left = u64::from(grants.admit().unwrap());
        for _ in 0..50 {
            left = left - 1 + u64::from(grants.used(left - 1));
        }
        assert_eq!(left, 20);
    }
}
