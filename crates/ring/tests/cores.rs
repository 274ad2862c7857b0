//! The pure halves of a ring, [`SendPolicy`] and [`ReceivePolicy`], checked against a model of slots.
#![cfg(not(loom))]

use std::collections::VecDeque;

use headworks_ring::config::CheckedConfig;
use headworks_ring::receive_policy::ReceivePolicy;
use headworks_ring::send_policy::{PostAction, ReserveOutcome, SendPolicy};
use headworks_ring::{Framing, RingConfig};
use proptest::prelude::*;

/// A message in the model: its number (`None` for a skip) and its slot count.
type Message = (Option<u64>, u64);

/// Both ends, the messages and requests between them, and the invariants.
struct World {
    n: u64,
    /// Whether both ends use their quiet paths.
    quiet: bool,
    /// Whether every message has one slot: only then the receiver has a quiet path.
    uniform: bool,
    policy: SendPolicy,
    receive_policy: ReceivePolicy,
    /// For each of the sender's slots, whether its content may still be needed.
    busy: Vec<bool>,
    /// Messages sent and not handed out. They are published as far as `tail_line` says.
    wire: VecDeque<Message>,
    /// The last published tail. The receiver sees it at once; the sender's completions come later.
    tail_line: u64,
    /// The send queue, of bounded depth: requests not known to be complete. A signalled request has the tail
    /// that its completion reports, and only signalled requests ever complete.
    queue: VecDeque<Option<u64>>,
    depth: usize,
    /// Pushed heads in order. The sender sees them later.
    heads: VecDeque<u64>,
    transmitted: u64,
    completed: u64,
    head_seen: u64,
    /// Tickets of messages taken and not released.
    held: Vec<u64>,
    sent: u64,
    received: u64,
    start: u64,
    pushes: Vec<u64>,
    publications: Vec<u64>,
}

impl World {
    fn new(ring: &CheckedConfig, (start, depth): (u64, u64), quiet: bool) -> Self {
        let mut policy = SendPolicy::starting_at(ring, start);
        policy.fit_queue(depth);
        Self {
            n: ring.slots,
            quiet,
            uniform: ring.max_slots == 1,
            policy,
            receive_policy: ReceivePolicy::starting_at(ring, start),
            busy: vec![false; ring.slots as usize],
            wire: VecDeque::new(),
            tail_line: start,
            queue: VecDeque::new(),
            depth: depth as usize,
            heads: VecDeque::new(),
            transmitted: start,
            completed: start,
            head_seen: start,
            held: Vec::new(),
            sent: 0,
            received: 0,
            start,
            pushes: Vec::new(),
            publications: Vec::new(),
        }
    }

    /// Returns the slot of a position. Positions wrap at 2⁶⁴; slots are counted from `start`.
    fn slot(&self, position: u64) -> usize {
        (position.wrapping_sub(self.start) % self.n) as usize
    }

    fn fill(&mut self, index: u64, count: u64, message: Option<u64>) {
        for ahead in 0..count {
            let at = self.slot(self.policy.tail().wrapping_add(ahead));
            assert_eq!(at as u64, index + ahead, "index and position disagree");
            assert!(!self.busy[at], "slot {at} reused too early");
            self.busy[at] = true;
        }
        self.wire.push_back((message, count));
    }

    /// Frees slots that both the last seen head and the last delivered completion have passed.
    fn free_slots(&mut self, old: u64) {
        let new = self.reusable();
        for ahead in 0..new.wrapping_sub(old) {
            let at = self.slot(old.wrapping_add(ahead));
            assert!(self.busy[at]);
            self.busy[at] = false;
        }
    }

    fn reusable(&self) -> u64 {
        let since = |cursor: u64| cursor.wrapping_sub(self.start);
        if since(self.completed) < since(self.head_seen) {
            self.completed
        } else {
            self.head_seen
        }
    }

    /// Transmits all filled slots, and publishes after them if `publish`. What the send queue has no room
    /// for is posted later.
    fn transmit(&mut self, publish: bool) {
        let pieces = self.policy.untransmitted();
        let tail = self.policy.tail();
        let signaled = publish && self.policy.must_signal(tail);
        let filled = pieces.iter().filter(|(_, count)| *count > 0);
        let mut chain: Vec<_> = filled.map(|_| None).collect();
        if publish {
            chain.push(signaled.then_some(tail));
        }
        let room = chain.len().min(self.depth - self.queue.len());
        for (index, count) in pieces.into_iter().take(room) {
            for ahead in 0..count {
                assert_eq!(self.slot(self.transmitted) as u64, index + ahead);
                self.transmitted = self.transmitted.wrapping_add(1);
            }
        }
        self.queue.extend(&chain[..room]);
        if room < chain.len() {
            let ends = self.queue.iter().any(Option::is_some);
            assert!(
                ends,
                "the send queue is full and nothing in it will complete"
            );
            return self.policy.transmitted_pieces(room);
        }
        assert_eq!(self.transmitted, tail, "not all was transmitted");
        self.policy.transmitted();
        if publish {
            self.policy.publish();
            self.tail_line = tail;
            self.publications.push(tail);
        }
        if signaled {
            self.policy.signal(tail);
        }
    }

    fn advance(&mut self, count: u64) {
        match self.policy.advance(count) {
            PostAction::Nothing => {}
            PostAction::Transmit => self.transmit(false),
            PostAction::Publish => {
                let now = self.policy.attempt();
                self.transmit(now);
            }
        }
    }

    /// Sends a message of `count` slots. Returns whether there was room.
    fn send(&mut self, count: u64) -> bool {
        if self.quiet
            && count == 1
            && let Some(index) = self.policy.quiet_index()
        {
            self.fill(index, 1, Some(self.sent));
            self.policy.take_quietly();
            self.sent += 1;
            return true;
        }
        loop {
            match self.policy.reserve(count) {
                ReserveOutcome::At(index) => {
                    self.fill(index, count, Some(self.sent));
                    self.advance(count);
                    self.policy.settle();
                    self.sent += 1;
                    return true;
                }
                ReserveOutcome::Skip { index, count } => {
                    assert_eq!(index + count, self.n);
                    self.fill(index, count, None);
                    self.advance(count);
                }
                ReserveOutcome::Full => return false,
            }
        }
    }

    fn flush(&mut self) {
        if !self.policy.is_flushed() {
            self.transmit(true);
        }
    }

    /// Returns whether a signalled request has yet to complete.
    fn is_in_flight(&self) -> bool {
        self.queue.iter().any(Option::is_some)
    }

    /// Completes the oldest signalled request, which implies completion of those before it.
    fn complete(&mut self) {
        if let Some(at) = self.queue.iter().position(Option::is_some) {
            let tail = self.queue.drain(..=at).next_back().flatten().unwrap();
            let before = self.reusable();
            self.policy.complete(tail).unwrap();
            self.completed = tail;
            self.free_slots(before);
        }
    }

    fn see_head(&mut self) {
        if let Some(head) = self.heads.pop_front() {
            let before = self.reusable();
            self.policy.observe_head(head).unwrap();
            self.head_seen = head;
            self.free_slots(before);
        }
    }

    fn push_if_due(&mut self) {
        if self.receive_policy.must_push() {
            self.push();
        }
    }

    fn push(&mut self) {
        if self.receive_policy.unsynced() > 0 {
            self.heads.push_back(self.receive_policy.head());
            self.pushes.push(self.receive_policy.head());
            self.receive_policy.pushed();
        }
    }

    /// Hands out the next message: takes it or passes it. Returns whether there was one.
    fn receive(&mut self, take: bool) -> bool {
        if self.quiet && self.uniform && !take && self.receive_policy.quiet_index().is_some() {
            let (number, count) = self.wire.pop_front().unwrap();
            assert_eq!((number, count), (Some(self.received), 1));
            assert!(self.receive_policy.pass_quietly());
            assert!(
                !self.receive_policy.must_push(),
                "the quiet path missed a push"
            );
            self.received += 1;
            return true;
        }
        loop {
            if self.receive_policy.available() == 0 {
                self.receive_policy.observe_tail(self.tail_line).unwrap();
                if self.receive_policy.available() == 0 {
                    return false;
                }
            }
            let (number, count) = self.wire.pop_front().expect("published, so it was sent");
            assert!(count <= self.receive_policy.available());
            assert_eq!(
                self.slot(self.receive_policy.next()) as u64,
                self.receive_policy.index()
            );
            match number {
                Some(number) => assert_eq!(number, self.received),
                None => assert_eq!(count, self.receive_policy.before_wrap()),
            }
            if take && number.is_some() {
                self.held.push(self.receive_policy.hold(count));
            } else {
                self.receive_policy.pass(count);
                self.push_if_due();
            }
            if number.is_some() {
                self.received += 1;
                return true;
            }
        }
    }

    fn release(&mut self, which: usize) {
        let ticket = self.held.swap_remove(which);
        self.receive_policy.release(ticket);
        self.push_if_due();
    }

    fn run(&mut self, op: (u8, u8), ring: &CheckedConfig) {
        match op {
            (0..4, some) => drop(self.send(1 + u64::from(some) % ring.max_slots)),
            (4..8, _) => drop(self.send(1)),
            (8, _) => self.flush(),
            (9, _) => self.complete(),
            (10, _) => self.see_head(),
            (11..15, some) => drop((0..some % 8).find(|_| !self.receive(false))),
            (15, _) => drop(self.receive(true)),
            (16, which) if !self.held.is_empty() => {
                self.release(usize::from(which) % self.held.len());
            }
            _ => {}
        }
    }

    /// Checks that the longest message gets through and everything arrives. Only the rules push and publish.
    fn comes_free(&mut self, ring: &CheckedConfig) {
        while !self.held.is_empty() {
            self.release(0);
        }
        for round in 0.. {
            if self.send(ring.max_slots) {
                break;
            }
            assert!(round < 4 * self.n, "stuck");
            // A full ring publishes; completions and heads arrive eventually; the receiver drains.
            self.flush();
            while self.receive(false) {}
            while self.is_in_flight() {
                self.complete();
            }
            while !self.heads.is_empty() {
                self.see_head();
            }
        }
        while !self.policy.is_flushed() {
            self.flush();
            self.complete();
        }
        while self.receive(false) {}
        assert_eq!(self.received, self.sent);
    }
}

/// Generates any ring, whose longest message may take N−1 slots; where its cursors start; and its send
/// queue's depth, from the minimum that [`headworks_ring::SenderSetup`] accepts to what it asks for.
fn rings() -> impl Strategy<Value = (CheckedConfig, (u64, u64))> {
    let depth = prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
    (
        2u32..=40,
        any::<[u32; 4]>(),
        any::<bool>(),
        any::<u64>(),
        depth,
    )
        .prop_map(
            |(slots, [alpha, beta, gamma, longest], elastic, start, depth)| {
                let alpha = 1 + alpha % (slots - 1);
                // A third of the rings have messages of one slot only.
                let longest = if longest % 3 == 0 {
                    1
                } else {
                    1 + longest % (slots - 1)
                };
                let config = RingConfig {
                    slots,
                    slot_size: Some(64),
                    publish_every: Some(alpha),
                    transmit_every: Some(1 + beta % alpha),
                    push_every: Some(1 + gamma % (slots - 1)),
                    framing: Framing::Variable(longest as usize * 64 - 8),
                    elastic: Some(elastic),
                    ..RingConfig::default()
                };
                let n = u64::from(slots);
                // Half the starts are at most three laps before the counters wrap.
                let start = if start % 2 == 0 {
                    start / n * n
                } else {
                    (u64::MAX / n - start % 3) * n
                };
                let ring = config.settle().unwrap();
                let fewest = n.div_ceil(ring.transmit_every) + 8;
                let depth = fewest.saturating_add(depth % n).min(2 * n + 8);
                (ring, (start, depth))
            },
        )
}

fn ops() -> impl Strategy<Value = Vec<(u8, u8)>> {
    proptest::collection::vec((0u8..17, any::<u8>()), 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn no_slot_is_reused_early_and_the_longest_message_always_gets_through(
        (ring, start) in rings(),
        ops in ops(),
        quiet in any::<bool>(),
    ) {
        let mut world = World::new(&ring, start, quiet);
        for op in ops {
            world.run(op, &ring);
        }
        world.comes_free(&ring);
    }

    #[test]
    fn the_quiet_paths_decide_as_the_full_ones(
        (ring, start) in rings(),
        ops in ops(),
    ) {
        let [mut quiet, mut plain] = [true, false].map(|quiet| World::new(&ring, start, quiet));
        for op in ops {
            quiet.run(op, &ring);
            plain.run(op, &ring);
            prop_assert_eq!(quiet.policy.tail(), plain.policy.tail());
            prop_assert_eq!(quiet.receive_policy.head(), plain.receive_policy.head());
            prop_assert_eq!(quiet.transmitted, plain.transmitted);
            prop_assert_eq!(&quiet.publications, &plain.publications);
            prop_assert_eq!(&quiet.pushes, &plain.pushes);
        }
    }

    #[test]
    fn hostile_cursors_are_refused_or_leave_everything_in_range(
        (ring, start) in rings(),
        ops in ops(),
        words in proptest::collection::vec(any::<i8>(), 1..20),
    ) {
        let mut world = World::new(&ring, start, true);
        for op in ops {
            world.run(op, &ring);
        }
        for word in words {
            let near = |cursor: u64| cursor.wrapping_add_signed(word.into());
            let _ = world.policy.observe_head(near(world.policy.head()));
            let _ = world.policy.complete(near(world.completed));
            let _ = world.receive_policy.observe_tail(near(world.tail_line));
            prop_assert!(world.policy.free() < ring.slots);
            let held = world.receive_policy.available();
            prop_assert!(held < ring.slots);
        }
    }
}

#[test]
fn a_message_of_five_of_eight_slots_at_index_five() {
    let config = RingConfig {
        slots: 8,
        slot_size: Some(64),
        framing: Framing::Variable(5 * 64 - 8),
        ..RingConfig::default()
    };
    let ring = config.settle().unwrap();
    let mut world = World::new(&ring, (0, 24), true);
    for round in 0..20 {
        assert!(world.send(5) || round > 0);
        world.comes_free(&ring);
    }
}

#[test]
fn without_the_gate_few_publications_are_signalled() {
    let config = RingConfig {
        publish_every: Some(1),
        ..RingConfig::fixed(128, 64)
    };
    let ring = config.settle().unwrap();
    assert!(!ring.elastic);
    let mut world = World::new(&ring, (0, 2 * 128 + 8), false);
    let mut signaled = 0;
    for _ in 0..10 * 128 {
        assert!(world.send(1));
        while world.receive(false) {}
        signaled += u64::from(world.is_in_flight());
        world.complete();
        world.see_head();
    }
    // Four signals per lap: each frees a quarter of the slots.
    assert_eq!(signaled, 40);
}
