//! How many messages may be under way on a link, so that each finds a receive: pure.
//!
//! Each side promises the other receives, as a number that only grows: how many messages it may have sent, ever.
//! Every frame carries the latest one. A side that has nothing to say tells of it by an empty frame once half of
//! what is promised is news. Such a frame takes a receive like any other, so the last one is kept for it: it can
//! always be sent, and then two sides never wait for each other. (The design had these numbers WRITTEN into the
//! other side's memory, which costs no receive but has to be looked for there, on every link; frames come through
//! the one completion queue that is looked at anyhow, and wake who sleeps.)
//!
//! How many a link is promised is for [`ReceiveShares`](crate::receive_shares::ReceiveShares) to say.

/// What one side knows.
#[derive(Clone, Debug, Default)]
pub struct Credit {
    /// Frames sent.
    sent: u64,
    /// As many as may be, as the other side told.
    may: u64,
    /// Frames that came.
    got: u64,
    /// As many as may, and what of that was told.
    promised: u64,
    told: u64,
}

/// The other side did what it may not: said what cannot be, or sent more than it was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other daemon keeps no account of its credit")]
pub struct CreditViolation;

/// Receives that a link is promised at least: with fewer, two empty frames would each be news enough for the next.
pub const FLOOR_MIN: u32 = 4;
/// Receives that one side may promise at most.
pub const PROMISED_MAX: u64 = 1 << 20;

impl Credit {
    /// `promised` receives, which the other side is told of elsewhere; it has not told of its own.
    pub fn new(promised: u32) -> Self {
        Self {
            promised: promised.into(),
            told: promised.into(),
            ..Self::default()
        }
    }

    /// Receives that the other side has for what is sent next.
    pub fn left(&self) -> u64 {
        self.may - self.sent
    }

    /// Whether a frame with something in it may be sent.
    pub fn may_send(&self) -> bool {
        self.left() > 1
    }

    /// Whether an empty frame is due, and may be sent.
    pub fn is_to_tell(&self) -> bool {
        self.promised - self.told >= self.outstanding().div_ceil(2).max(2) && self.left() > 0
    }

    /// A frame is sent: the number that it carries.
    pub fn send(&mut self) -> u64 {
        debug_assert!(self.left() > 0);
        self.sent += 1;
        self.told = self.promised;
        self.promised
    }

    /// A frame came, with this number.
    ///
    /// # Errors
    ///
    /// [`CreditViolation`].
    pub fn come(&mut self, number: u64) -> Result<(), CreditViolation> {
        self.hear(number)?;
        // What was promised and not told cannot be counted on; but what was told may not have been heard.
        if self.got >= self.told {
            return Err(CreditViolation);
        }
        self.got += 1;
        Ok(())
    }

    /// The other side told this number.
    ///
    /// # Errors
    ///
    /// [`CreditViolation`].
    pub fn hear(&mut self, number: u64) -> Result<(), CreditViolation> {
        // Frames of several queue pairs overtake each other: an older number says nothing new.
        if number > self.sent.saturating_add(PROMISED_MAX) {
            return Err(CreditViolation);
        }
        self.may = self.may.max(number);
        Ok(())
    }

    /// Receives that the other side was promised and has not used.
    pub fn outstanding(&self) -> u64 {
        self.promised - self.got
    }

    /// Promises more.
    pub fn promise(&mut self, more: u32) {
        self.promised += u64::from(more);
    }

    /// Frames that came, ever.
    pub fn got(&self) -> u64 {
        self.got
    }

    /// Frames sent, ever.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;

    /// A side, the frames on their way to it (number, whether empty) by two queue pairs, and what it has posted.
    struct Side {
        credit: Credit,
        coming: [VecDeque<(u64, bool)>; 2],
        posted: u64,
        to_send: u32,
        got: u32,
    }

    impl Side {
        fn new(promised: u32, to_send: u32) -> Self {
            Self {
                credit: Credit::new(promised),
                coming: Default::default(),
                posted: promised.into(),
                to_send,
                got: 0,
            }
        }

        /// A frame comes; it must find a receive, which is posted again at once, and some more.
        fn come(&mut self, by: usize, more: u32) -> bool {
            let Some((number, is_empty)) = self.coming[by].pop_front() else {
                return false;
            };
            self.posted = self.posted.checked_sub(1).expect("a receive is posted");
            self.credit.come(number).expect("an honest number");
            self.got += u32::from(!is_empty);
            let more = match self.credit.outstanding() {
                0..12 => 1 + more % 3,
                12..20 => 1,
                _ => 0,
            };
            self.posted += u64::from(more);
            self.credit.promise(more);
            true
        }

        fn send(&mut self, other: &mut Self, by: usize) -> bool {
            let is_empty = !(self.to_send > 0 && self.credit.may_send());
            if is_empty && !self.credit.is_to_tell() {
                return false;
            }
            self.to_send -= u32::from(!is_empty);
            other.coming[by].push_back((self.credit.send(), is_empty));
            true
        }
    }

    fn act(sides: &mut [Side; 2], act: u8) -> bool {
        let [one, other] = sides;
        let (by, more) = (usize::from(act & 1), u32::from(act >> 3));
        match act >> 1 & 3 {
            0 => one.send(other, by),
            1 => other.send(one, by),
            2 => one.come(by, more),
            _ => other.come(by, more),
        }
    }

    proptest! {
        /// In any order: no frame without a receive, no standstill, and silence in the end.
        #[test]
        fn everything_comes_and_nothing_is_sent_in_vain(
            sends in (0u32..200, 0u32..200),
            promised in (FLOOR_MIN..12, FLOOR_MIN..12),
            acts in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let mut sides = [Side::new(promised.0, sends.0), Side::new(promised.1, sends.1)];
            sides[0].credit.hear(promised.1.into()).unwrap();
            sides[1].credit.hear(promised.0.into()).unwrap();
            for each in acts {
                act(&mut sides, each);
            }
            // Then in turn, until nothing happens.
            let mut rounds = 0;
            while (0..8).fold(false, |acted, each| act(&mut sides, each) | acted) {
                rounds += 1;
                prop_assert!(rounds < 10_000, "they talk for ever");
            }
            prop_assert_eq!((sides[1].got, sides[0].got), sends);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut credit = Credit::new(4);
        assert_eq!(credit.hear(PROMISED_MAX + 1), Err(CreditViolation));
        for _ in 0..4 {
            assert_eq!(credit.come(0), Ok(()));
        }
        assert_eq!(
            credit.come(0),
            Err(CreditViolation),
            "more than was promised"
        );
        credit.promise(1);
        assert_eq!(credit.come(0), Err(CreditViolation), "it was not told");
    }
}
