//! Posting and polling allocate no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use headworks_verbs::{
    AhInit, Completion, Destination, Gid, Payload, QpType, Qpn, RecvWr, SendFlags, SendOp, SendWr,
};

use super::Bench;
use crate::abi;

/// The system's allocator, with a count of each thread's allocations.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: this is the system's allocator, with a count besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: as the caller guarantees.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller guarantees.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn posting_and_polling_allocate_nothing() {
    let bench = Bench::new();
    let (mut rc, mut ud) = (bench.ready(QpType::Rc), bench.ready(QpType::Ud));
    let ah = bench.pd.create_ah(&AhInit::to(Gid::default())).unwrap();
    let to = Destination {
        ah: ah.key(),
        qpn: Qpn::default(),
        qkey: 0,
    };
    let send = |op| SendWr {
        wr_id: 0,
        op,
        payload: Payload::Inline(b"bytes"),
        flags: SendFlags::NONE,
    };
    let (sends, datagrams) = ([send(SendOp::Send); 50], [send(SendOp::SendTo(to)); 50]);
    let receives = [RecvWr {
        wr_id: 0,
        sges: &[],
    }; 50];
    let mut out = [Completion::default(); 40];
    {
        let mut stub = bench.stub.lock().unwrap();
        stub.forgets = true;
        let at = stub.cqs[&bench.cq.id().0];
        let wcs = (0..60).map(|wr_id| abi::Wc {
            wr_id,
            ..abi::Wc::default()
        });
        stub.completions.entry(at).or_default().extend(wcs);
    }
    let before = ASKED.get();
    rc.post_send(&sends).unwrap();
    ud.post_send(&datagrams).unwrap();
    rc.post_recv(&receives).unwrap();
    assert_eq!(bench.cq.poll(&mut out), Ok(40));
    assert_eq!(bench.cq.poll(&mut out), Ok(20));
    assert_eq!(bench.cq.poll(&mut out), Ok(0));
    assert_eq!(ASKED.get() - before, 0);
    // An allocation is counted.
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(ASKED.get() - before, 1);
}
