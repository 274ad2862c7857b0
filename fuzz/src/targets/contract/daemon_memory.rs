//! An application reads cursors, rings, descriptors and the status, which its daemon writes.

use headworks_client::{
    BLOCK_BYTES, DESCRIPTORS, EgressReader, EgressWriter, IngressReader, IngressWriter,
};

use super::{
    DESCRIPTOR_BYTES, DESCRIPTOR_TABLE, EGRESS_HEAD, INGRESS_TAIL, Memory, extent, longer_ring,
};
use crate::input::Input;

pub(in crate::targets) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let memory = Memory::new();
    let slabs = &memory.slabs;
    // The daemon gives valid memory with the library, and stores anything by itself.
    let ring = extent(0, 2048, 512);
    let mut into = IngressWriter::new(slabs, &memory.block, ring).expect("a ring");
    let ring = extent(0, 3072, 512);
    let mut out = EgressReader::new(slabs, &memory.block, ring).expect("a ring");
    let mut reader = IngressReader::new(slabs, &memory.block).expect("a ring");
    let mut writer = EgressWriter::new(slabs, &memory.block).expect("a ring");
    let mut end = 0;
    while !input.is_over() {
        let kept_to = match input.byte() % 16 {
            0 => {
                let room = into.limit() - into.placed();
                let len = u64::from(input.byte()).min(room);
                into.write(&vec![7; len as usize]);
                end += len;
                into.publish(end);
                Ok(())
            }
            1 | 2 => {
                if into.has_descriptor() {
                    let len = 1 + u32::from(input.u16()) / 2;
                    into.describe(end, extent(1, input.byte().into(), len), true);
                    end += u64::from(len);
                    into.publish(end);
                }
                Ok(())
            }
            3 => {
                let _ = into.extend(slabs, longer_ring(&mut input));
                let _ = out.offer(slabs, longer_ring(&mut input));
                Ok(())
            }
            4 => {
                let _ = into.look();
                into.collect(|_| {});
                if let Ok(Some(record)) = out.next(slabs) {
                    out.release(record.end);
                }
                Ok(())
            }
            5 | 6 => {
                let at = match input.byte() % 4 {
                    0 => EGRESS_HEAD,
                    1 => INGRESS_TAIL,
                    // Status, and numbers of rings.
                    2 => INGRESS_TAIL + 8 + input.below(3) * 8,
                    // Entries of rings.
                    _ => 320 + input.below(16) * 8,
                };
                memory.scribble(&mut input, at);
                Ok(())
            }
            7 | 8 => {
                let word = input.below(DESCRIPTORS * DESCRIPTOR_BYTES / 8) * 8;
                memory.scribble(&mut input, DESCRIPTOR_TABLE + word);
                Ok(())
            }
            9 => {
                let at = input.below(BLOCK_BYTES as usize / 8) * 8;
                memory.scribble(&mut input, at);
                Ok(())
            }
            10 => reader.keep(slabs).map(|kept| {
                if let Some((extent, kept)) = kept {
                    assert!(extent.len > 0 && memory.has(extent), "{extent:?}");
                    kept.release();
                }
            }),
            11 => reader.peek(slabs).map(|here| {
                assert!(here.len == 0 || memory.has(here), "{here:?}");
                reader.consume(u64::from(here.len).min(input.byte().into()));
                let _ = (reader.notice(), reader.is_blocked(), reader.is_withheld());
            }),
            12 => {
                let mut bytes = vec![0; input.u16().into()];
                let read = reader.read(slabs, &mut bytes);
                read.map(|len| assert!(len <= bytes.len()))
            }
            13 => {
                let bytes = vec![7; usize::from(input.byte()) * 8];
                let written = writer.write(slabs, &bytes);
                written.map(|len| assert!(len <= bytes.len()))
            }
            14 => writer
                .lend(slabs, extent(1, 0, 1 + u32::from(input.byte())))
                .and_then(|lent| match lent {
                    Some(lent) => writer.is_returned(lent).map(drop),
                    None => Ok(()),
                }),
            _ => {
                let _ = memory.block.status();
                reader.available(slabs).map(drop)
            }
        };
        // An application whose daemon broke the contract gives the connection up.
        if kept_to.is_err() {
            return;
        }
    }
}
