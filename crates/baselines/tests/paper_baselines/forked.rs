//! After a fork the ends belong to the parent. A child's calls are refused and change nothing.

#![allow(unsafe_code, reason = "forks")]

use headworks_baselines::paper_baselines::{Design, Plan};
use headworks_ring::{Framing, MessageReceiver, MessageSender, RingError, SendError};
use headworks_runtime::poll_expr;

use crate::{DesignTest, Hosts, every_design, fill, holds};

/// Runs `f` in a forked child and returns its result.
fn in_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs `f`, which calls the design's ends, and then exits at once.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        // SAFETY: `_exit` ends the child without running any of the parent's exit handlers.
        0 => unsafe { libc::_exit(i32::from(f())) },
        pid => {
            let mut status = 0;
            // SAFETY: `pid` is our own child and `status` is a valid place for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child was killed");
            libc::WEXITSTATUS(status) == 1
        }
    }
}

struct Forks<'a>(&'a Hosts);

const LEN: usize = 64;

impl DesignTest for Forks<'_> {
    fn act<D: Design>(&mut self, design: &D) {
        let (mut tx, mut rx) = self.0.connect(design).unwrap();
        let tag = design.tag();
        for number in 0..12 {
            // In the child every call is refused. A fill there would write where the parent's message goes.
            let refused = in_child(|| {
                let scribble = |place: &mut [u8]| place.fill(0xee);
                let forked = SendError::Broken(RingError::Forked);
                tx.try_send_with(LEN, scribble) == Err(forked)
                    && tx.try_send(&[0xee; LEN]) == Err(forked)
                    && tx.flush() == Err(RingError::Forked)
                    && tx.step() == Err(RingError::Forked)
                    && rx.try_recv_with(|_| ()) == Err(RingError::Forked)
                    && rx.step() == Err(RingError::Forked)
                    && rx.push_head() == Err(RingError::Forked)
            });
            assert!(refused, "design {tag}: message {number}");
            tx.try_send_with(LEN, |place| fill(number, place)).unwrap();
        }
        while !tx.flush().unwrap() {}
        for number in 0..12 {
            // The message has arrived. A child may not take it, nor free its place.
            let refused = in_child(|| rx.try_recv_with(|_| ()) == Err(RingError::Forked));
            assert!(refused, "design {tag}: message {number} was taken");
            let good = poll_expr!(rx.try_recv_with(|bytes| holds(number, bytes)).unwrap());
            assert!(good, "design {tag}: message {number}");
        }
    }
}

#[test]
fn a_childs_calls_are_refused_and_the_parents_messages_are_unharmed() {
    let Some(hosts) = Hosts::new() else { return };
    let plan = Plan {
        messages: 32,
        longest: LEN,
    };
    for framing in [Framing::Fixed(LEN), Framing::Variable(LEN)] {
        every_design(plan, framing, (4, 4), &mut Forks(&hosts));
    }
}
