use std::net::Ipv4Addr;

use super::*;
use crate::control_block::{BLOCK_BYTES, ControlBlock};
use crate::direct::{DirectEnd, prepare};
use crate::egress::EgressReader;
use crate::ingress::IngressWriter;
use crate::slabs::Extent;
use crate::testing::{DIRECT_PLACE, slabs};

const SLAB: usize = 1 << 20;
const HANDLES: u32 = 64;

fn extent(offset: u64, len: usize) -> Extent {
    Extent {
        slab: 0,
        len: len as u32,
        offset,
    }
}

/// A session that is attached, and the memory of its only slab, which has a connection's block and rings.
fn attached() -> (Session, Slabs) {
    let memory = slabs(&[SLAB]);
    let block = ControlBlock::at(&memory, extent(0, BLOCK_BYTES as usize)).unwrap();
    let _egress = EgressReader::new(&memory, &block, extent(2048, 512)).unwrap();
    let _ingress = IngressWriter::new(&memory, &block, extent(4096, 4096)).unwrap();
    let mut session = Session::new("test").with_direct_path();
    let slab = Reply::Slab {
        number: 0,
        is_read_only: false,
    };
    session.input(&slab.encode(), Some(view(&memory))).unwrap();
    let attached = Reply::Attached {
        version: VERSION,
        doorbell: extent(1 << 16, Doorbell::bytes(HANDLES as usize)),
        handles: HANDLES,
        address: Ipv4Addr::LOCALHOST.into(),
    };
    session.input(&attached.encode(), None).unwrap();
    while session.output().is_some() || session.event().is_some() {}
    (session, memory)
}

fn view(slabs: &Slabs) -> View {
    slabs.slab(0).expect("a slab").clone()
}

/// A direct connection of a pair, as the daemon announces it.
fn incoming(pair: u32) -> Reply {
    let address = (Ipv4Addr::LOCALHOST, 7).into();
    let end = End {
        handle: 5,
        block: extent(0, BLOCK_BYTES as usize),
        doorbell: None,
        direct: Some(DirectEnd {
            pair,
            outgoing: DIRECT_PLACE,
            incoming: DIRECT_PLACE,
        }),
        local: address,
        peer: address,
    };
    Reply::Incoming { listener: 2, end }
}

/// Gives the session the memory of a pair, without what `lacks` names: the outgoing or the incoming direction.
fn give_pair(session: &mut Session, pair: u32, lacks: Option<bool>) -> [Slabs; 2] {
    [false, true].map(|is_outgoing| {
        let memory = slabs(&[SLAB]);
        prepare(&memory, &DIRECT_PLACE).unwrap();
        let reply = Reply::PairMemory { pair, is_outgoing };
        let there = (lacks != Some(is_outgoing)).then(|| view(&memory));
        session.input(&reply.encode(), there).unwrap();
        memory
    })
}

/// Announces a connection that the session cannot make. Checks that the session takes and aborts the connection.
fn refuses(session: &mut Session, pair: u32) {
    session.input(&incoming(pair).encode(), None).unwrap();
    assert!(session.event().is_none());
    let said: Vec<Request> = session.out.drain(..).collect();
    assert!(
        matches!(
            said[..],
            [Request::Took { listener: 2 }, Request::Abort { handle: 5 }]
        ),
        "{said:?}"
    );
}

/// This process has no descriptor for a file of a pair, or no address space to map it.
#[test]
fn a_pair_whose_file_was_lost_is_not_used() {
    for lacks in [false, true] {
        let (mut session, _memory) = attached();
        give_pair(&mut session, 1, None);
        give_pair(&mut session, 2, Some(lacks));
        // Later connections are not to be direct.
        let said: Vec<Request> = session.out.drain(..).collect();
        assert!(
            matches!(said[..], [Request::Features { bits: 0 }]),
            "{said:?}"
        );
        refuses(&mut session, 2);
        session.lose_pair(1);
        assert!(session.output().is_none(), "it was asked for before");
        refuses(&mut session, 1);
    }
}

/// The other application writes over the memory of a pair before this one has received a connection.
#[test]
fn a_connection_whose_memory_was_spoiled_is_refused() {
    let (mut session, _memory) = attached();
    let [incoming_memory, _] = give_pair(&mut session, 1, None);
    let len = incoming_memory.slab(0).expect("a slab").len();
    view(&incoming_memory).write(0, &vec![0xff; len]).unwrap();
    refuses(&mut session, 1);
    // Connections with others are made.
    give_pair(&mut session, 2, None);
    session.input(&incoming(2).encode(), None).unwrap();
    assert!(matches!(session.event(), Some(Event::Incoming { .. })));
    assert!(session.output().is_none());
}

/// A daemon announces connections of pairs whose peers have ended before.
#[test]
fn a_connection_of_a_pair_whose_peer_has_ended_is_made_or_closed() {
    let (mut session, _memory) = attached();
    let pairs = 1..=GONE_PAIRS as u32 + 1;
    for pair in pairs.clone() {
        give_pair(&mut session, pair, None);
        session.forget_pair(pair);
    }
    for pair in pairs {
        session.input(&incoming(pair).encode(), None).unwrap();
        let is_made = matches!(session.event(), Some(Event::Incoming { .. }));
        assert_eq!(is_made, pair > 1, "pair {pair}");
        // The session itself takes and closes a connection of a pair that it does not keep.
        let said = std::iter::from_fn(|| session.output()).count();
        assert_eq!(said, if is_made { 0 } else { 2 }, "pair {pair}");
    }
}
