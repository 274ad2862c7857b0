//! Unreliable connections of a hostile device: a message is lost only if a rule says so, and its request succeeds all the same.

use headworks_softnic::hostile::{Rules, rules};
use headworks_verbs::{SendOp, Status};

use crate::pair::{TestPair, all_well};

const COUNT: u64 = 60;

/// Sends numbered messages, with one receive for each. Returns the numbers that arrived, in order.
fn arrived(rules: Rules) -> Vec<u64> {
    let mut pair = TestPair::unreliable(rules);
    let TestPair { a, b, .. } = &mut pair;
    for wr_id in 0..COUNT {
        b.try_receive(wr_id, 1024 + 8 * wr_id as usize, 8).unwrap();
    }
    for number in 0..COUNT {
        a.put(0, &number.to_ne_bytes());
        a.post(number, SendOp::Send, 0, 8);
        let done = a.completed(1);
        assert_eq!((done[0].status, done[0].wr_id), (Status::Success, number));
    }
    // A poll takes at most 32.
    let received = [b.poll(), b.poll()].concat();
    all_well(&received);
    let number = |at: usize| b.get(1024 + 8 * at, 8).try_into().map(u64::from_ne_bytes);
    (0..received.len()).map(|at| number(at).unwrap()).collect()
}

#[test]
fn without_such_a_rule_nothing_is_lost() {
    let all: Vec<u64> = (0..COUNT).collect();
    assert_eq!(arrived(Rules::new(1).with(rules::scatter(4))), all);
}

#[test]
fn a_lost_message_takes_no_receive_and_its_request_succeeds() {
    let losses = Rules::new(1).with(rules::losses(4));
    let left = arrived(losses.clone());
    assert!((30..=55).contains(&left.len()), "{left:?}");
    assert!(left.is_sorted());
    assert_eq!(left.len() as u64 + losses.verdicts(), COUNT);
    let all = Rules::new(1).with(rules::losses(1));
    assert!(arrived(all).is_empty());
}
