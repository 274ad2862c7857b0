//! Credit-based flow control: how many messages may be in flight so that each finds a posted receive. Pure.
//!
//! Each side posts a fixed number of receives, which the peer knows. A message consumes one. When the receive
//! is posted again, the peer may send one more message. The peer learns this from the next message, since
//! each message carries the total number of receives that its sender has reposted. A side with nothing to
//! send announces reposts by an empty message, once half of the receives have been reposted. An empty message
//! consumes a receive like any other, so the last credit is reserved for it. It can therefore always be sent,
//! and the two sides never wait for each other.

/// One side's view of the credits.
#[derive(Clone, Debug)]
pub(super) struct ReceiveCredits {
    receives: u64,
    /// Messages sent.
    sent: u64,
    /// Receives that the peer reposted, by its latest announcement.
    reposted_by_peer: u64,
    /// Receives that this side reposted. `announced` is how many of them the peer has been told of.
    reposted: u64,
    announced: u64,
}

/// The peer announced an impossible number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadCredit;

impl ReceiveCredits {
    /// Both sides have `receives` receives, at least 2.
    pub(super) const fn new(receives: u64) -> Self {
        Self {
            receives,
            sent: 0,
            reposted_by_peer: 0,
            reposted: 0,
            announced: 0,
        }
    }

    /// Receives that the peer has at least for the messages sent next.
    fn credit(&self) -> u64 {
        self.receives + self.reposted_by_peer - self.sent
    }

    /// Whether a message with data may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.credit() > 1
    }

    /// Whether an empty message is due and may be sent.
    pub(super) fn is_update_due(&self) -> bool {
        self.reposted - self.announced >= self.receives / 2 && self.credit() > 0
    }

    /// Records that a message is sent. Returns the number that it must carry.
    pub(super) fn send(&mut self) -> u64 {
        self.sent += 1;
        self.announced = self.reposted;
        self.reposted
    }

    /// Records that a receive was posted again.
    pub(super) fn repost(&mut self) {
        self.reposted += 1;
    }

    /// Records a received message that carries `number`.
    pub(super) fn on_message(&mut self, number: u64) -> Result<(), BadCredit> {
        if !(self.reposted_by_peer..=self.sent).contains(&number) {
            return Err(BadCredit);
        }
        self.reposted_by_peer = number;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;

    const RECEIVES: u64 = 4;

    /// A side, the messages on their way to it (number, whether empty), and the number of messages it holds
    /// unread.
    struct Side {
        credits: ReceiveCredits,
        coming: VecDeque<(u64, bool)>,
        unread: usize,
        posted: u64,
        to_send: u32,
        got: u32,
    }

    impl Side {
        fn new(to_send: u32) -> Self {
            Self {
                credits: ReceiveCredits::new(RECEIVES),
                coming: VecDeque::new(),
                unread: 0,
                posted: RECEIVES,
                to_send,
                got: 0,
            }
        }

        /// Delivers a message, which must find a receive.
        fn arrive(&mut self) -> bool {
            let Some((number, is_empty)) = self.coming.pop_front() else {
                return false;
            };
            self.posted = self.posted.checked_sub(1).expect("a receive is posted");
            self.credits.on_message(number).expect("an honest number");
            match is_empty {
                true => self.repost(),
                false => self.unread += 1,
            }
            true
        }

        fn repost(&mut self) {
            self.posted += 1;
            self.credits.repost();
        }

        fn read(&mut self) -> bool {
            if self.unread == 0 {
                return false;
            }
            self.unread -= 1;
            self.got += 1;
            self.repost();
            true
        }

        fn send(&mut self, other: &mut Self) -> bool {
            let is_empty = !(self.to_send > 0 && self.credits.may_send());
            if is_empty && !self.credits.is_update_due() {
                return false;
            }
            self.to_send -= u32::from(!is_empty);
            other.coming.push_back((self.credits.send(), is_empty));
            true
        }
    }

    fn act(sides: &mut [Side; 2], act: u8) -> bool {
        let [one, other] = sides;
        match act % 6 {
            0 => one.send(other),
            1 => other.send(one),
            2 => one.arrive(),
            3 => other.arrive(),
            4 => one.read(),
            _ => other.read(),
        }
    }

    proptest! {
        /// In any order of steps every message finds a receive, nothing stalls, and in the end nothing more
        /// is sent.
        #[test]
        fn everything_arrives_and_nothing_is_sent_in_vain(
            sends in (0u32..60, 0u32..60),
            acts in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut sides = [Side::new(sends.0), Side::new(sends.1)];
            for each in acts {
                act(&mut sides, each);
            }
            // Then both sides take turns until nothing happens.
            let mut rounds = 0;
            while (0..6).fold(false, |acted, each| act(&mut sides, each) | acted) {
                rounds += 1;
                prop_assert!(rounds < 10_000, "the two sides never stop sending");
            }
            prop_assert_eq!((sides[1].got, sides[0].got), sends);
        }
    }

    #[test]
    fn invalid_credit_counts_are_refused() {
        let mut credits = ReceiveCredits::new(RECEIVES);
        assert_eq!(credits.on_message(1), Err(BadCredit), "more than was sent");
        credits.send();
        credits.send();
        assert_eq!(credits.on_message(2), Ok(()));
        assert_eq!(credits.on_message(1), Err(BadCredit), "fewer than before");
        assert_eq!(credits.on_message(u64::MAX), Err(BadCredit));
    }
}
