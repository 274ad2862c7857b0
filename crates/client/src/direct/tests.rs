use std::collections::VecDeque;

use headworks_shm::View;
use proptest::prelude::*;

use super::*;
use crate::connection::Received;
use crate::control_block::Direction;
use crate::egress::LendTicket;
use crate::one_sided::{Op, Operation};
use crate::slabs::ByteRing;
use crate::testing::{DIRECT_PLACE, DirectApplication as Side, direct_pair as pair, slabs};

fn extent(offset: u64, len: u32) -> Extent {
    Extent {
        slab: 0,
        len,
        offset,
    }
}

/// The daemons carry a record, and note the end of the stream.
fn carry(from: &mut Side, to: &mut Side, ended: &mut bool) {
    *ended |= from.carry_to(to).unwrap();
}

#[derive(Clone, Debug)]
enum Action {
    Send(usize),
    Lend(u32),
    Operate,
    Recv(usize),
    Carry,
    /// The daemon hands out the longer ring that the application asked for.
    Offer,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1usize..3000).prop_map(Action::Send),
        1 => (1u32..500).prop_map(Action::Lend),
        1 => Just(Action::Operate),
        4 => (1usize..4000).prop_map(Action::Recv),
        4 => Just(Action::Carry),
        1 => Just(Action::Offer),
    ]
}

proptest! {
    #[test]
    fn a_stream_arrives_in_order_whatever_goes_through_the_daemons(
        actions in proptest::collection::vec(action(), 1..200),
    ) {
        let ([mut near, mut far], _memory) = pair();
        let mut sent: VecDeque<u8> = VecDeque::new();
        let (mut next, mut ended) = (0u8, false);
        let mut lent: Option<LendTicket> = None;
        let recv = |far: &mut Side, len, sent: &mut VecDeque<u8>| {
            let mut buffer = vec![0; len];
            let (received, _) = far.connection.receiving.recv(&mut buffer).unwrap();
            let got = match received {
                Received::Bytes(got) => got,
                Received::Nothing => 0,
                Received::Ended => return None,
            };
            let expected: Vec<u8> = sent.drain(..got).collect();
            assert_eq!(&buffer[..got], expected);
            Some(got)
        };
        for action in actions {
            match action {
                Action::Send(len) => {
                    let bytes: Vec<u8> = (0..len).map(|at| next.wrapping_add(at as u8)).collect();
                    let (some, _) = near.connection.sending.send(&bytes).unwrap();
                    sent.extend(&bytes[..some]);
                    next = next.wrapping_add(some as u8);
                }
                Action::Lend(len) => {
                    let is_back = |ticket| near.connection.sending.is_returned(ticket).unwrap();
                    if lent.is_none_or(is_back) {
                        let memory = extent(1 << 18, len);
                        let bytes = vec![next; len as usize];
                        near.slabs.slab(0).unwrap().write(1 << 18, &bytes).unwrap();
                        lent = near.connection.sending.lend(memory).unwrap().0;
                        if lent.is_some() {
                            sent.extend(bytes);
                        }
                    }
                }
                Action::Operate => {
                    let operation = Operation {
                        op: Op::FetchAdd,
                        export_id: 1,
                        at: 0,
                        local: extent(1 << 19, 16),
                        operand: 1,
                        compare: 0,
                        result: extent(1 << 19, 16),
                    };
                    let _ = near.connection.sending.operate(&operation).unwrap();
                }
                Action::Recv(len) => drop(recv(&mut far, len, &mut sent)),
                Action::Carry => carry(&mut near, &mut far, &mut ended),
                Action::Offer => near.offer_ring(),
            }
        }
        while !near.connection.sending.end().unwrap().0 {
            carry(&mut near, &mut far, &mut ended);
            recv(&mut far, 4096, &mut sent);
        }
        for _ in 0..1000 {
            carry(&mut near, &mut far, &mut ended);
            if recv(&mut far, 4096, &mut sent).is_none() {
                break;
            }
        }
        prop_assert!(sent.is_empty(), "{} bytes are left", sent.len());
        let (last, _) = far.connection.receiving.recv(&mut [0; 8]).unwrap();
        prop_assert_eq!(last, Received::Ended);
    }

    /// The other application writes anything into what both have mapped: calls fail, or deliver wrong bytes.
    #[test]
    fn whatever_the_peer_writes_is_no_panic(
        writes in proptest::collection::vec((any::<bool>(), 0usize..1536, any::<u64>()), 1..100),
    ) {
        let ([mut near, mut far], memory) = pair();
        let _ = near.connection.sending.send(&[1; 700]).unwrap();
        for (is_back, at, word) in writes {
            let view: &View = memory[usize::from(is_back)].slab(0).unwrap();
            let small = word >> 40;
            for word in [word, small] {
                // The header, the block, and the words that announce rings.
                let offset = (at / 8 * 8) + if at < 1024 { 0 } else { 3072 };
                view.write(offset, &word.to_le_bytes()).unwrap();
                let _ = far.connection.receiving.recv(&mut [0; 300]);
                let _ = far.connection.receiving.peek_direct();
                let _ = near.connection.sending.send(&[2; 300]);
                let _ = near.connection.arrived();
                let _ = near.connection.room_now();
                let _ = far.connection.status();
            }
        }
        let direct = far.connection.direct().unwrap();
        direct.arrived().0.drain(|_| {});
        let _ = direct.close();
    }
}

/// Two applications that both send before they receive must not wait for each other. The receiver may make its end late.
#[test]
fn a_stream_that_nobody_reads_holds_64_kib() {
    for piece in [100, 5000] {
        let ([mut near, _], memory) = pair();
        let mut sent = Vec::new();
        let mut is_full = false;
        while !is_full {
            let bytes: Vec<u8> = (sent.len()..)
                .take(piece)
                .map(|at| (at % 251) as u8)
                .collect();
            let before = sent.len();
            for _ in 0..3 {
                let (some, _) = near.connection.sending.send(&bytes).unwrap();
                sent.extend(&bytes[..some]);
                if some > 0 {
                    break;
                }
                near.offer_ring();
            }
            is_full = sent.len() == before;
        }
        assert!(sent.len() >= 64 << 10, "{} of {piece}", sent.len());
        let [there, back] = &memory;
        let mut late = Side::new(back, there).unwrap();
        let mut got = vec![0; sent.len() + 1];
        let mut at = 0;
        while let (Received::Bytes(some), _) =
            late.connection.receiving.recv(&mut got[at..]).unwrap()
        {
            at += some;
        }
        assert!(got[..at] == sent, "{at} of {}", sent.len());
        // From now on the rings grow as before.
        assert!(near.connection.sending.send(&[1; 5000]).unwrap().0 > 0);
    }
}

#[test]
fn a_reader_that_sleeps_is_to_be_woken_in_its_way() {
    let ([mut near, mut far], _memory) = pair();
    let direct = far.connection.direct().unwrap().clone();
    assert_eq!(near.connection.sending.send(b"abc").unwrap().1, Wake::No);
    direct.incoming().event_count().arm_to_sleep();
    let woken = near.connection.sending.send(b"abc").unwrap().1;
    assert_eq!(woken, Wake::PeerThread { of_room: false });
    direct.incoming().event_count().arm(false);
    assert_eq!(
        near.connection.sending.send(b"abc").unwrap().1,
        Wake::PeerSocket
    );
    direct.incoming().event_count().arm_in_set();
    direct.arrived().0.event_count().arm(false);
    assert_eq!(
        near.connection.sending.send(b"abc").unwrap().1,
        Wake::PeerSocket
    );
    let mut numbers = Vec::new();
    direct.arrived().0.drain(|number| numbers.push(number));
    assert_eq!(numbers, [3]);
    // And the sender that waits for room.
    let sender = near.connection.direct().unwrap().clone();
    sender.outgoing().room_event_count().arm_to_sleep();
    let (received, wake) = far.connection.receiving.recv(&mut [0; 64]).unwrap();
    assert_eq!(received, Received::Bytes(12));
    assert_eq!(wake, Wake::PeerThread { of_room: true });
}

/// Receives what there is, and checks that it is `expected`.
fn receives(side: &mut Side, expected: &[u8]) {
    let mut bytes = [0; 64];
    let (received, _) = side.connection.receiving.recv(&mut bytes).unwrap();
    assert_eq!(received, Received::Bytes(expected.len()));
    assert_eq!(&bytes[..expected.len()], expected);
}

/// Sends bytes that the daemons carry.
fn lends(side: &mut Side, bytes: &[u8]) {
    side.slabs.slab(0).unwrap().write(1 << 18, bytes).unwrap();
    let memory = extent(1 << 18, bytes.len() as u32);
    assert!(side.connection.sending.lend(memory).unwrap().0.is_some());
}

#[test]
fn nothing_is_sent_behind_an_end_that_the_daemons_carried() {
    let ([mut near, mut far], _memory) = pair();
    lends(&mut near, b"lent");
    assert!(near.connection.sending.end().unwrap().0);
    let mut ended = false;
    while !ended {
        carry(&mut near, &mut far, &mut ended);
    }
    receives(&mut far, b"lent");
    for _ in 0..2 {
        assert_eq!(near.connection.sending.send(b"more").unwrap().0, 0);
        assert!(near.connection.sending.is_ended());
        let (received, _) = far.connection.receiving.recv(&mut [0; 8]).unwrap();
        assert_eq!(received, Received::Ended);
    }
}

#[test]
fn bytes_that_the_daemons_brought_and_nobody_received_reset_the_peer() {
    let ([mut near, mut far], _memory) = pair();
    lends(&mut near, b"lent");
    carry(&mut near, &mut far, &mut false);
    let _ = far.connection.direct().unwrap().close();
    let status = near.connection.status();
    assert_eq!(status.reset, Some(Reset::ByPeer));
    assert!(!status.is_ended);
}

/// The peer closes a connection, with or without an end before, while the daemons still carry bytes of it, and exits.
#[test]
fn what_the_daemons_carry_of_a_closed_connection_precedes_its_reset() {
    for is_ended_before in [false, true] {
        let ([mut near, mut far], _memory) = pair();
        let _ = near.connection.sending.send(b"unread").unwrap();
        lends(&mut far, b"lent");
        if is_ended_before {
            assert!(far.connection.sending.end().unwrap().0);
        }
        let _ = far.connection.direct().unwrap().close();
        near.is_peer_gone.store(true, Ordering::Release);
        let status = near.connection.receiving.status();
        assert_eq!((status.is_ended, status.reset), (false, None));
        let mut ended = false;
        carry(&mut far, &mut near, &mut ended);
        receives(&mut near, b"lent");
        let (received, _) = near.connection.receiving.recv(&mut [0; 8]).unwrap();
        assert_eq!(
            (received, near.connection.receiving.status().reset),
            (Received::Nothing, None)
        );
        carry(&mut far, &mut near, &mut ended);
        // The daemon ends a stream that the application closed without an end.
        near.block.set_status(Status {
            is_ended: true,
            reset: None,
        });
        let status = near.connection.receiving.status();
        assert_eq!(status.is_ended, is_ended_before);
        assert_eq!(status.reset, Some(Reset::ByPeer));
    }
}

/// An export goes from daemon to daemon. The bytes behind it, which tell the peer of it, must not overtake it.
#[test]
fn bytes_behind_an_export_go_through_the_daemons() {
    let ([mut near, mut far], _memory) = pair();
    for _ in 0..2 {
        near.connection.sending.divert();
        assert_eq!(near.connection.sending.send(b"told").unwrap().0, 4);
        let (received, _) = far.connection.receiving.recv(&mut [0; 8]).unwrap();
        assert_eq!(received, Received::Nothing);
        carry(&mut near, &mut far, &mut false);
        receives(&mut far, b"told");
        // Later bytes are direct again.
        assert_eq!(near.connection.sending.send(b"direct").unwrap().0, 6);
        receives(&mut far, b"direct");
    }
}

/// A daemon fails. Bytes that the daemons carry are lost, and the receiver must not wait for them. A connection that sends
/// directly goes on.
#[test]
fn bytes_that_the_daemons_lost_reset_the_receiver() {
    for is_lent in [false, true] {
        let ([mut near, far], _memory) = pair();
        if is_lent {
            lends(&mut near, b"lent");
        }
        far.block.set_status(Status {
            is_ended: false,
            reset: Some(Reset::Unreachable),
        });
        let reset = is_lent.then_some(Reset::Unreachable);
        assert_eq!(far.connection.receiving.status().reset, reset);
    }
}

#[test]
fn only_a_stream_that_was_not_ended_is_reset_when_the_peer_closes() {
    for is_closed_before in [false, true] {
        let ([mut near, far], _memory) = pair();
        if !is_closed_before {
            assert!(near.connection.sending.end().unwrap().0);
        }
        let _ = far.connection.direct().unwrap().close();
        let reset = is_closed_before.then_some(Reset::ByPeer);
        assert_eq!(near.connection.sending.status().reset, reset);
        assert!(near.connection.sending.end().unwrap().0);
        assert_eq!(near.connection.sending.status().reset, reset);
        assert_eq!(near.connection.receiving.status().reset, None);
    }
}

/// The peer's application refused a connection that its daemon had made: it could not map the memory.
#[test]
fn a_connection_that_the_peer_refused_is_reset() {
    let ([near, _far], _memory) = pair();
    near.block.set_status(Status {
        is_ended: true,
        reset: None,
    });
    let reset = || near.connection.receiving.status().reset;
    assert_eq!(reset(), None, "the peer has taken the connection");
    let direct = near.connection.direct().expect("direct");
    direct.incoming().untake();
    assert_eq!(reset(), Some(Reset::ByPeer));
}

/// A hostile peer announces a ring in memory that the pair does not have. A receiver that waited for that memory would ignore the
/// reset of the connection.
#[test]
fn a_ring_in_other_memory_is_a_broken_contract() {
    let ([mut near, mut far], memory) = pair();
    let more = slabs(&[4096, 4096]);
    let elsewhere = Extent {
        slab: 1,
        ..extent(0, 4096)
    };
    let ring = ByteRing::new(&more, elsewhere, 0).unwrap();
    let block = ControlBlock::direct_at(&memory[0], DIRECT_PLACE.block).unwrap();
    block.publish_ring(Direction::Ingress, 2, &ring);
    assert_eq!(near.connection.sending.send(b"sent").unwrap().0, 4);
    let received = far.connection.receiving.recv(&mut [0; 8]);
    assert_eq!(received, Err(ContractError::Extent(elsewhere)));
}
