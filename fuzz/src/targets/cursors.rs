//! Cursors to which the peer stores any values, and offsets and lengths that it chooses.

use std::sync::{Arc, OnceLock};

use headworks_shm::{Consumer, Cursor, HugePages, Producer, SegmentRequest, SharedSegment, View};

use crate::input::Input;

const LEN: usize = 4096;

fn view() -> View {
    static SEGMENT: OnceLock<Arc<SharedSegment>> = OnceLock::new();
    let segment = SEGMENT.get_or_init(|| {
        let request = SegmentRequest {
            name: "fuzz",
            len: LEN,
            huge_pages: HugePages::No,
            numa_node: None,
            is_sealed: false,
        };
        Arc::new(SharedSegment::create(&request).expect("a page of memory"))
    });
    View::from(segment.clone())
}

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let capacity = 1 + input.u64() % (1 << (input.byte() % 40));
    let start = input.u64();
    let (mut producer, mut consumer) = (
        Producer::new(capacity, start),
        Consumer::new(capacity, start),
    );
    let (head, tail) = (Cursor::new(start), Cursor::new(start));
    while !input.is_over() {
        match input.byte() % 6 {
            0 => head.publish(input.word(head.observe())),
            1 => tail.publish(input.word(tail.observe())),
            2 => {
                if let Ok(free) = producer.acquire(&head, u64::from(input.byte())) {
                    assert!(free <= capacity);
                    producer.release(&tail, free.min(input.byte().into()));
                }
            }
            3 => {
                if let Ok(filled) = consumer.acquire(&tail, u64::from(input.byte())) {
                    assert!(filled <= capacity);
                    consumer.release(&head, filled.min(input.byte().into()));
                }
            }
            4 => look(&mut input, &view(), LEN),
            _ => {
                let (offset, len) = (place(&mut input), place(&mut input));
                if let Ok(part) = view().part(offset, len) {
                    assert!(offset + len <= LEN && part.len() == len);
                    look(&mut input, &part, len);
                }
            }
        }
    }
}

/// Takes an offset or a length that is mostly near an edge.
fn place(input: &mut Input<'_>) -> usize {
    let near = input.pick(&[0, 64, LEN as u64, 1 << 63, u64::MAX]);
    input.word(near) as usize
}

fn look(input: &mut Input<'_>, view: &View, len: usize) {
    let at = place(input);
    let fits = |size: usize| at.checked_add(size).is_some_and(|end| end <= len);
    let mut bytes = vec![0; input.byte().into()];
    assert_eq!(view.read(at, &mut bytes).is_ok(), fits(bytes.len()));
    assert_eq!(view.write(at, &bytes).is_ok(), fits(bytes.len()));
    if let Ok(word) = view.atomic_u64(at) {
        assert!(fits(8));
        word.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    if let Ok(cursor) = view.cursor(at) {
        assert!(fits(8));
        cursor.observe();
    }
    assert_eq!(view.ptr_at(at, 1).is_some(), fits(1));
}
