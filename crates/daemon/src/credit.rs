//! Flow control by credits: bounds the frames in flight on a queue-pair group so that each finds a posted
//! receive. Pure.
//!
//! Each side promises the other receives, as a number that only grows: the total number of frames that the
//! other side may have sent. Every frame carries the latest number. A side that has nothing else to send
//! announces the number in an empty frame, once half of the outstanding promises are not announced yet. An
//! empty frame takes a receive like any other, so the last credit is reserved for it. An empty frame can
//! therefore always be sent, and two sides never wait for each other. (The design had these numbers WRITTEN
//! into the other side's memory. That costs no receive, but the words would have to be polled on every group.
//! Frames come through the one completion queue that is polled anyway, and wake a sleeper.)
//!
//! [`ReceiveShares`](crate::receive_shares::ReceiveShares) decides how many receives a group is promised.

/// Credit account of one side.
#[derive(Clone, Debug, Default)]
pub struct Credit {
    /// Frames sent.
    sent: u64,
    /// Total number of frames that may be sent, as the other side announced.
    may: u64,
    /// Frames received.
    got: u64,
    /// Total number of receives promised to the other side, and how much of that was announced.
    promised: u64,
    told: u64,
}

/// Error: the other side announced an impossible number, or sent more frames than it was promised receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other daemon violated its credit")]
pub struct CreditViolation;

/// Fewest receives that a group is promised. With fewer, one empty frame would already make the next one due.
pub const FLOOR_MIN: u32 = 4;
/// Most receives that one side may promise.
pub const PROMISED_MAX: u64 = 1 << 20;

impl Credit {
    /// Creates an account that promises `promised` receives. The caller announces them to the other side by
    /// other means. The other side has announced none yet.
    pub fn new(promised: u32) -> Self {
        Self {
            promised: promised.into(),
            told: promised.into(),
            ..Self::default()
        }
    }

    /// Receives that the other side has promised and that are not used yet.
    pub fn left(&self) -> u64 {
        self.may - self.sent
    }

    /// Whether a frame that is not empty may be sent.
    pub fn may_send(&self) -> bool {
        self.left() > 1
    }

    /// Whether an empty frame is due and may be sent.
    pub fn is_update_due(&self) -> bool {
        self.promised - self.told >= self.outstanding().div_ceil(2).max(2) && self.left() > 0
    }

    /// Counts a frame that is sent. Returns the number that it carries.
    pub fn send(&mut self) -> u64 {
        debug_assert!(self.left() > 0);
        self.sent += 1;
        self.told = self.promised;
        self.promised
    }

    /// Counts a frame that arrived, with the number that it carries.
    ///
    /// # Errors
    ///
    /// [`CreditViolation`]: the number is impossible, or the frame had no promised receive.
    pub fn come(&mut self, number: u64) -> Result<(), CreditViolation> {
        self.receive(number)?;
        // The other side may use only receives that were announced. The announcement may still be in flight.
        if self.got >= self.told {
            return Err(CreditViolation);
        }
        self.got += 1;
        Ok(())
    }

    /// Takes a number that the other side announced.
    ///
    /// # Errors
    ///
    /// [`CreditViolation`]: the number promises more than [`PROMISED_MAX`] beyond what was sent.
    pub fn receive(&mut self, number: u64) -> Result<(), CreditViolation> {
        // Frames of different queue pairs overtake each other. An older number is ignored.
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

    /// Promises `more` receives.
    pub fn promise(&mut self, more: u32) {
        self.promised += u64::from(more);
    }

    /// Total number of frames received.
    pub fn got(&self) -> u64 {
        self.got
    }

    /// Total number of frames sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;

    /// One side, the frames in flight to it on two queue pairs (number, whether empty), and its posted
    /// receives.
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

        /// Receives a frame. It must find a receive, which is posted again at once, and perhaps more with it.
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
            if is_empty && !self.credit.is_update_due() {
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
        /// In any order of events: no frame lacks a receive, both sides make progress, and they fall silent
        /// in the end.
        #[test]
        fn everything_comes_and_nothing_is_sent_in_vain(
            sends in (0u32..200, 0u32..200),
            promised in (FLOOR_MIN..12, FLOOR_MIN..12),
            acts in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let mut sides = [Side::new(promised.0, sends.0), Side::new(promised.1, sends.1)];
            sides[0].credit.receive(promised.1.into()).unwrap();
            sides[1].credit.receive(promised.0.into()).unwrap();
            for each in acts {
                act(&mut sides, each);
            }
            // Then both sides act in turn, until nothing happens.
            let mut rounds = 0;
            while (0..8).fold(false, |acted, each| act(&mut sides, each) | acted) {
                rounds += 1;
                prop_assert!(rounds < 10_000, "the sides never fall silent");
            }
            prop_assert_eq!((sides[1].got, sides[0].got), sends);
        }
    }

    #[test]
    fn credit_violations_are_refused() {
        let mut credit = Credit::new(4);
        assert_eq!(credit.receive(PROMISED_MAX + 1), Err(CreditViolation));
        for _ in 0..4 {
            assert_eq!(credit.come(0), Ok(()));
        }
        assert_eq!(
            credit.come(0),
            Err(CreditViolation),
            "more than was promised"
        );
        credit.promise(1);
        assert_eq!(credit.come(0), Err(CreditViolation), "it was not announced");
    }
}
