//! The daemon reads heads and states of descriptors, which an application writes.

use std::collections::BTreeMap;

use headworks_client::{
    BLOCK_BYTES, DESCRIPTORS, Extent, IngressReader, IngressWriter, KeptDescriptor,
};

use super::{
    DESCRIPTOR_BYTES, DESCRIPTOR_TABLE, INGRESS_HEAD, Memory, POOL, extent, is_within, longer_ring,
};
use crate::input::Input;

/// The daemon's end, and what it has given out.
struct DaemonEnd {
    writer: IngressWriter,
    /// Position up to which bytes were placed.
    end: u64,
    /// Memory of descriptors: its length, and the bytes of it that are free again.
    given: BTreeMap<u64, (u32, u32)>,
    limit: u64,
}

pub(in crate::targets) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let memory = Memory::new();
    let first = extent(0, 2048, 512);
    let writer = IngressWriter::new(&memory.slabs, &memory.block, first).expect("a ring");
    // The application reads with the library, and stores anything by itself.
    let mut reader = IngressReader::new(&memory.slabs, &memory.block).expect("a ring");
    let mut kept: Vec<KeptDescriptor> = Vec::new();
    let mut daemon = DaemonEnd {
        limit: writer.limit(),
        writer,
        end: 0,
        given: BTreeMap::new(),
    };
    while !input.is_over() {
        match input.byte() % 14 {
            0 => daemon.in_line(&memory, input.byte().into()),
            1 | 2 => daemon.describe(&mut input),
            3 => {
                let _ = reader.read(&memory.slabs, &mut vec![0; input.u16().into()]);
            }
            4 => {
                if let Ok(Some((_, one))) = reader.keep(&memory.slabs) {
                    kept.push(one);
                }
            }
            5 => {
                if !kept.is_empty() {
                    kept.swap_remove(input.below(kept.len())).release();
                }
            }
            6 => memory.scribble(&mut input, INGRESS_HEAD),
            7 | 8 => {
                let at = DESCRIPTOR_TABLE + input.below(DESCRIPTORS) * DESCRIPTOR_BYTES;
                memory.scribble(&mut input, at);
            }
            9 => {
                let at = input.below(BLOCK_BYTES as usize / 8) * 8;
                memory.scribble(&mut input, at);
            }
            10 => daemon.move_out(&mut input),
            11 => daemon.extend(&memory, &mut input),
            _ => {
                if daemon.writer.look().is_err() {
                    break;
                }
                daemon.collect();
            }
        }
        daemon.check(&memory);
    }
    // Nobody reads any more: all memory is free, whatever the application stored.
    daemon.writer.discard();
    daemon.collect();
    assert_eq!(daemon.writer.in_use().count(), 0);
    assert!(daemon.given.values().all(|(len, free)| len == free));
}

impl DaemonEnd {
    /// Bytes come in a frame, as many as were promised.
    fn in_line(&mut self, memory: &Memory, len: u64) {
        let len = len.min(self.writer.limit() - self.writer.placed()) as u32;
        let mut left = len;
        while left > 0 {
            let to = self.writer.place(left as usize);
            assert!(to.len > 0 && self.is_in_ring(to), "{to:?}");
            let view = memory.slabs.view(to).expect("in the slab");
            view.write(0, &vec![7; to.len as usize]).expect("fits");
            self.writer.advance(to.len);
            left -= to.len;
        }
        self.end += u64::from(len);
        self.writer.publish(self.end);
    }

    fn describe(&mut self, input: &mut Input<'_>) {
        let len = 1 + u32::from(input.u16());
        if !self.writer.has_descriptor() {
            return;
        }
        let at = extent(1, u64::from(input.byte()) * 4, len.min(POOL as u32 / 2));
        let number = self
            .writer
            .describe(self.end, at, input.byte().is_multiple_of(2));
        self.given.insert(number, (at.len, 0));
        self.end += u64::from(at.len);
        self.writer.publish(self.end);
    }

    fn collect(&mut self) {
        let given = &mut self.given;
        let mut times = 0;
        self.writer.collect(|freed| {
            times += 1;
            let (len, free) = given.get_mut(&freed.number).expect("it was given");
            assert!(freed.bytes > *free, "free before: {freed:?}");
            assert!(freed.bytes <= *len, "not of the descriptor: {freed:?}");
            assert_eq!(freed.is_all, freed.bytes == *len);
            *free = freed.bytes;
        });
        assert!(times <= DESCRIPTORS, "{times} descriptors");
        for number in self.writer.in_use() {
            let (len, free) = self.given[&number];
            assert!(free < len, "{number} is free");
        }
    }

    /// Takes a descriptor back, if it is not claimed, and gives it again.
    fn move_out(&mut self, input: &mut Input<'_>) {
        let count = self.writer.in_use().count();
        let number = self.writer.in_use().nth(input.below(count));
        if let Some(number) = number
            && self.writer.take_back(number)
        {
            let (len, _) = self.given[&number];
            let to = extent(1, POOL as u64 / 2, len);
            self.writer.give_again(number, to);
        }
    }

    fn extend(&mut self, memory: &Memory, input: &mut Input<'_>) {
        if let Some(left) = self.writer.left() {
            assert!(memory.has(left), "{left:?}");
        }
        let longer = longer_ring(input);
        let _ = self.writer.extend(&memory.slabs, longer);
    }

    fn is_in_ring(&self, part: Extent) -> bool {
        let mut rings = self.writer.rings();
        rings.any(|ring| is_within(part, ring.extent()))
    }

    fn check(&mut self, memory: &Memory) {
        let limit = self.writer.limit();
        assert!(limit >= self.limit, "the promise went back");
        self.limit = limit;
        let rings: u64 = self.writer.rings().map(|ring| ring.len()).sum();
        assert!(limit - self.writer.placed() <= rings);
        assert!(self.writer.consumed() <= self.writer.come());
        let reserve = self.writer.reserve();
        assert!(
            memory.has(reserve) && self.is_in_ring(reserve),
            "{reserve:?}"
        );
    }
}
