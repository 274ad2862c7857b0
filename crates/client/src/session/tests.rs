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

/// A daemon announces connections of pairs whose peers have ended before.
#[test]
fn a_connection_of_a_pair_whose_peer_has_ended_is_made_or_closed() {
    let memory = slabs(&[SLAB]);
    let view = |slabs: &Slabs| slabs.slab(0).expect("a slab").clone();
    let block = ControlBlock::at(&memory, extent(0, BLOCK_BYTES as usize)).unwrap();
    let _egress = EgressReader::new(&memory, &block, extent(2048, 512)).unwrap();
    let _ingress = IngressWriter::new(&memory, &block, extent(4096, 4096)).unwrap();
    let mut session = Session::new("test");
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
    let pairs = 1..=GONE_PAIRS as u32 + 1;
    for pair in pairs.clone() {
        for is_outgoing in [false, true] {
            let memory = slabs(&[SLAB]);
            prepare(&memory, &DIRECT_PLACE).unwrap();
            let reply = Reply::PairMemory { pair, is_outgoing };
            session.input(&reply.encode(), Some(view(&memory))).unwrap();
        }
        session.forget_pair(pair);
    }
    for pair in pairs {
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
        let incoming = Reply::Incoming { listener: 2, end };
        session.input(&incoming.encode(), None).unwrap();
        let is_made = matches!(session.event(), Some(Event::Incoming { .. }));
        assert_eq!(is_made, pair > 1, "pair {pair}");
        // The session itself takes and closes a connection of a pair that it does not keep.
        let said = std::iter::from_fn(|| session.output()).count();
        assert_eq!(said, if is_made { 0 } else { 2 }, "pair {pair}");
    }
}
