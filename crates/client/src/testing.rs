//! For tests: shared memory in a single process, and both ends of a direct connection in it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headworks_shm::{HugePages, SegmentRequest, SharedSegment, View};

use crate::connection::Connection;
use crate::control_block::{BLOCK_BYTES, ControlBlock, DIRECT_BLOCK_BYTES, Status};
use crate::direct::{self, DirectEnd, DirectPlace, Pair, PairDirection, prepare};
use crate::doorbell::Doorbell;
use crate::egress::{EgressReader, RecordKind};
use crate::error::ContractError;
use crate::ingress::IngressWriter;
use crate::slabs::{Extent, Slabs};
use crate::socket_message::End;

/// A session's slabs, numbered from 0, of the lengths `lens` in bytes.
///
/// # Panics
///
/// If there is not enough memory for them.
pub fn slabs(lens: &[usize]) -> Slabs {
    let mut slabs = Slabs::default();
    for (number, len) in lens.iter().enumerate() {
        let request = SegmentRequest {
            name: "slab",
            len: *len,
            huge_pages: HugePages::No,
            numa_node: None,
            is_sealed: false,
        };
        let segment = SharedSegment::create(&request).expect("memory for a test");
        let added = slabs.add(number as u32, View::from(Arc::new(segment)));
        added.expect("each number is added once");
    }
    slabs
}

/// Bytes of each slab of [`direct_pair`].
const DIRECT_SLAB: usize = 1 << 20;
/// Handles of a session of [`direct_pair`].
const HANDLES: usize = 64;
/// Most bytes of a record that the daemons of [`direct_pair`] carry.
const CARRIED_MAX: u64 = 1024;

const fn extent(offset: u64, len: u32) -> Extent {
    Extent {
        slab: 0,
        len,
        offset,
    }
}

/// Place of the connection of [`direct_pair`] in the memory of each direction.
pub const DIRECT_PLACE: DirectPlace = DirectPlace {
    number: 3,
    block: extent(4096, DIRECT_BLOCK_BYTES),
    ring: extent(8192, 2048),
};

/// An application that has a direct connection, and its daemon's view of the connection.
#[derive(Debug)]
pub struct DirectApplication {
    /// The application's end.
    pub connection: Connection,
    /// Whether the other application's process has ended.
    pub is_peer_gone: Arc<AtomicBool>,
    /// The session's memory. Its second half is free.
    pub slabs: Slabs,
    /// Block of the connection through the daemons.
    pub block: ControlBlock,
    egress: EgressReader,
    ingress: IngressWriter,
}

impl DirectApplication {
    pub(crate) fn new(outgoing: &Slabs, incoming: &Slabs) -> Result<Self, ContractError> {
        let slabs = slabs(&[DIRECT_SLAB]);
        let block = ControlBlock::at(&slabs, extent(0, BLOCK_BYTES))?;
        let egress = EgressReader::new(&slabs, &block, extent(2048, 512))?;
        let ingress = IngressWriter::new(&slabs, &block, extent(4096, 4096))?;
        let len = Doorbell::bytes(HANDLES) as u32;
        let doorbell = Doorbell::at(&slabs, extent(1 << 16, len), HANDLES)?;
        let pair = Pair {
            outgoing: PairDirection::of(outgoing),
            incoming: PairDirection::of(incoming),
            ..Pair::default()
        };
        let address = (std::net::Ipv4Addr::LOCALHOST, 7).into();
        let end = End {
            handle: 5,
            block: extent(0, BLOCK_BYTES),
            doorbell: None,
            direct: Some(DirectEnd {
                pair: 1,
                outgoing: DIRECT_PLACE,
                incoming: DIRECT_PLACE,
            }),
            local: address,
            peer: address,
        };
        let direct = end.direct.as_ref();
        let direct = direct.map(|direct| direct::connect(direct, &pair, &block));
        let direct = direct.transpose()?;
        let connection = Connection::new(end, slabs.clone(), doorbell, &block, direct)?;
        connection.direct().into_iter().for_each(|one| one.take());
        Ok(Self {
            connection,
            is_peer_gone: pair.is_peer_gone,
            slabs,
            block,
            egress,
            ingress,
        })
    }

    /// The daemons carry one record to the other application, if there is one that fits. Returns whether the stream has ended.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: an application broke the contract with its daemon.
    pub fn carry_to(&mut self, to: &mut Self) -> Result<bool, ContractError> {
        to.ingress.look()?;
        if to.ingress.limit() - to.ingress.placed() < CARRIED_MAX {
            return Ok(false);
        }
        let Some(record) = self.egress.next(&self.slabs)? else {
            return Ok(false);
        };
        let is_end = matches!(record.what, RecordKind::End);
        match record.what {
            RecordKind::Bytes(extent) => {
                let mut bytes = vec![0; extent.len as usize];
                self.slabs.read(extent, &mut bytes)?;
                to.ingress.write(&bytes);
                to.ingress.publish(to.ingress.placed());
            }
            RecordKind::Operation(_) => {}
            RecordKind::End => to.block.set_status(Status {
                is_ended: true,
                reset: None,
            }),
        }
        self.egress.release(record.end);
        Ok(is_end)
    }

    /// The daemon hands out the longer ring that the application has asked for. The memory has room for four in turn, and at most three
    /// are in use.
    pub fn offer_ring(&self) {
        let (number, len) = self.block.wanted_ring();
        if number > 1 {
            let ring = extent(u64::from(number % 4 + 1) << 16, len.min(1 << 16));
            self.block.offer_ring(number.into(), ring);
        }
    }
}

/// Two applications with a direct connection, and the memory of the directions: from the first one to the second, and back.
///
/// # Panics
///
/// If there is not enough memory for them.
pub fn direct_pair() -> ([DirectApplication; 2], [Slabs; 2]) {
    let memory = [slabs(&[DIRECT_SLAB]), slabs(&[DIRECT_SLAB])];
    for one in &memory {
        prepare(one, &DIRECT_PLACE).expect("a valid place");
    }
    let [there, back] = &memory;
    let application = |outgoing, incoming| {
        DirectApplication::new(outgoing, incoming).expect("memory that is laid out well")
    };
    ([application(there, back), application(back, there)], memory)
}
