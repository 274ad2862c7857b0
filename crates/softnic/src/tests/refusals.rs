//! Private memory between two processes, also where the kernel refuses to copy: the other process installs a
//! seccomp filter against the two system calls. Also deaths in the middle of a call.

use std::mem::offset_of;

use headworks_verbs::HeapBuffer;
use rustix::io::Errno;

use super::child::PeerTestProcess;
use super::local_mrs::{
    MARGIN, UNTOUCHED, calls_made, check, fill, heap, pattern, pieces, wide_end,
};
use super::*;
use crate::datapath::copy::Span;
use crate::datapath::cross_process_copy::{self, CrossError, Direction, RemoteRange};
use crate::datapath::remote_memory::note_failure;

const LENGTHS: [usize; 6] = [0, 1, 63, 64 << 10, (64 << 10) + 1, 10 << 20];

/// Has the kernel refuse this process, from now on, to copy from and to any process, itself included.
pub(super) fn forbid_crossing() {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let (equal, end) = (
        (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        libc::BPF_RET as u16,
    );
    let step = |code, jt, jf, k: u32| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(load, 0, 0, offset_of!(libc::seccomp_data, nr) as u32),
        step(equal, 2, 0, libc::SYS_process_vm_readv as u32),
        step(equal, 1, 0, libc::SYS_process_vm_writev as u32),
        step(end, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(end, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program outlives the calls, which change nothing else in this process.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, all_threads) = (
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
        );
        let set = libc::syscall(libc::SYS_seccomp, mode, all_threads, &raw const program);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
    // The kernel now refuses, even for our own memory.
    let bytes = [0_u8; 8];
    let there = [RemoteRange {
        addr: bytes.as_ptr() as u64,
        len: 8,
    }];
    let copied = cross_process_copy::copy(
        Direction::Fetch,
        std::process::id(),
        &[Span::of_inline(&[0; 8])],
        &there,
    );
    assert_eq!(copied, Err(CrossError::Refused(Errno::PERM)));
    assert_eq!(
        cross_process_copy::probe(std::process::id()),
        copied.map(drop)
    );
}

/// Executes one operation on `len` bytes of the peer's private memory. Returns its status and how many calls
/// the queue pair has made through its bounce buffer.
pub(super) fn operate(end: &mut TestQp, name: &str, at: RemoteAddr, len: usize) -> String {
    let here = heap(end, len + 2 * MARGIN);
    let fetches = name == "read";
    fill(&here, |at| match fetches {
        true => UNTOUCHED,
        false => pattern(at.wrapping_sub(MARGIN)),
    });
    let op = match name {
        "write" => SendOp::Write(at),
        "write-imm" => SendOp::WriteImm(at, 9),
        "send" => SendOp::Send,
        "read" => SendOp::Read(at),
        "add" => SendOp::FetchAdd { remote: at, add: 5 },
        _ => panic!("{name}?"),
    };
    let list = match name {
        "add" => vec![here.sge(MARGIN, 8)],
        _ => pieces(&here, MARGIN, len),
    };
    let status = super::local_mrs::post(end, op, &list).status;
    if name == "add" {
        let found = super::local_mrs::bytes(&here, MARGIN, 8);
        let found = u64::from_ne_bytes(found.try_into().unwrap());
        assert!(found.is_multiple_of(5), "it found {found:#x}");
    }
    if fetches {
        check(&here, len);
    }
    format!("{status:?} {}", calls_made(end))
}

/// Makes an end of ours that takes long lists, and another process with an end that is connected to it.
fn wide_pair(fabric: &Fabric, device: &SoftDevice, forbidden: bool) -> (TestQp, PeerTestProcess) {
    let mut other = PeerTestProcess::start(fabric, "h2");
    if forbidden {
        other.tell("forbid");
        other.hears("forbidden");
    }
    let mut ours = wide_end(device.again());
    other.join_as("wide", &mut ours.qp, device);
    (ours, other)
}

/// Has the other process execute an operation. Returns how many calls it has made through its bounce buffer.
fn have_done(other: &mut PeerTestProcess, name: &str, at: RemoteAddr, len: usize) -> u64 {
    other.tell(&format!("operate {name} {} {} {len}", at.addr, at.rkey));
    let said = other.hears("did");
    assert_eq!(said[0], "Success", "{name}, {len} bytes");
    said[1].parse().unwrap()
}

fn all_operations(forbidden: bool) {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let (mut ours, mut other) = wide_pair(&fabric, &device, forbidden);
    let mut calls = 0;
    for len in LENGTHS {
        let there = heap(&ours, len + 2 * MARGIN);
        for name in ["write", "write-imm", "send", "read"] {
            let fetches = name == "read";
            fill(&there, |at| match fetches {
                true => pattern(at.wrapping_sub(MARGIN)),
                false => UNTOUCHED,
            });
            let receives = matches!(name, "write-imm" | "send");
            if receives {
                let into = pieces(&there, MARGIN, len);
                let wr = RecvWr {
                    wr_id: 3,
                    sges: &into,
                };
                ours.qp.post_recv(&[wr]).unwrap();
            }
            let made = have_done(&mut other, name, there.remote(MARGIN), len);
            assert_eq!(made > calls, forbidden && len > 0, "{name}, {len} bytes");
            calls = made;
            if receives {
                let got = ours.completed();
                assert_eq!((got.status, got.byte_len as usize), (Status::Success, len));
            }
            if !fetches {
                check(&there, len);
            }
        }
    }
}

#[test]
fn every_operation_of_another_process_reaches_private_memory() {
    all_operations(false);
}

#[test]
fn every_operation_of_a_process_that_may_not_copy_uses_the_bounce_buffer() {
    all_operations(true);
}

#[test]
fn atomics_of_two_processes_and_of_the_owner_add_up() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let pairs = [false, true].map(|forbidden| wide_pair(&fabric, &device, forbidden));
    let mut own = [device.again(), device.again()].map(wide_end);
    connect(&mut own);
    let there = heap(&own[0], 64);
    let at = there.remote(8);
    let others: Vec<_> = pairs
        .into_iter()
        .map(|(ours, mut other)| {
            std::thread::spawn(move || {
                let _ours = ours;
                for _ in 0..100 {
                    assert!(
                        have_done(&mut other, "add", at, 8) > 0,
                        "atomics are the owner's"
                    );
                }
            })
        })
        .collect();
    for _ in 0..100 {
        assert_eq!(operate(&mut own[0], "add", at, 8), "Success 0");
    }
    for other in others {
        other.join().unwrap();
    }
    let sum = super::local_mrs::bytes(&there, 8, 8);
    assert_eq!(u64::from_ne_bytes(sum.try_into().unwrap()), 300 * 5);
}

#[test]
fn an_initiator_killed_in_the_middle_of_a_call_costs_the_owner_nothing() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let mut points = 0;
    for point in 0.. {
        let (ours, mut other) = wide_pair(&fabric, &device, true);
        let there = heap(&ours, 200 << 10);
        let (addr, rkey) = (there.addr(0), there.rkey());
        other.tell(&format!("kill {point}"));
        other.tell(&format!("operate write {addr} {rkey} {}", 150 << 10));
        if other.hears_or_died("did").is_some() {
            break;
        }
        points += 1;
        until("the error state", || ours.qp.state() == QpState::Error);
        drop(there);
        // The next process is served.
        let (ours, mut other) = wide_pair(&fabric, &device, true);
        let there = heap(&ours, 64);
        assert!(have_done(&mut other, "add", there.remote(0), 8) > 0);
    }
    assert!(points > 3, "only {points} points");
    assert_eq!(device.context.quarantine.held(), 0);
}

#[test]
fn an_owner_killed_in_the_middle_of_a_call_ends_the_request() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    for point in 0..4 {
        let mut other = PeerTestProcess::start(&fabric, "h2");
        let mut ours = wide_end(device.again());
        other.join_as("wide", &mut ours.qp, &device);
        other.tell(&format!("heap {}", 1 << 20));
        let said = other.hears("heap");
        let [addr, rkey] = [0, 1].map(|at: usize| said[at].parse::<u64>().unwrap());
        let host = host_of(ours.device.info().gid);
        assert_eq!(host, device.context.host.0);
        let peers = device.context.peers.all();
        let [peer] = &peers[..] else {
            panic!("{} peers", peers.len());
        };
        note_failure(peer, CrossError::Refused(Errno::PERM));
        other.tell(&format!("kill {point}"));
        // Its answer shows that it has processed the line before.
        other.tell("heap 8");
        other.hears("heap");
        let here = heap(&ours, 1 << 20);
        let rkey = rkey as u32;
        let remote = RemoteAddr { addr, rkey };
        for wr_id in 0..2 {
            let wr = SendWr {
                wr_id,
                op: SendOp::Write(remote),
                payload: Payload::Gather(&[here.sge(0, 1 << 20)]),
                flags: SendFlags::default(),
            };
            ours.qp.post_send(&[wr]).unwrap();
        }
        assert_eq!(ours.completed().status, Status::RetryExceeded);
        assert_eq!(ours.completed().status, Status::Flushed);
        assert!(calls_made(&ours) <= point + 1);
    }
}

/// Private memory that its owner can only read: the mapping is not writable.
#[test]
fn a_mapping_that_cannot_be_written_is_read_and_never_written() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    struct ReadOnly(usize);

    // SAFETY: mapped until it is dropped, and registered for reading only.
    unsafe impl Buffer for ReadOnly {
        fn as_ptr(&self) -> *mut u8 {
            self.0 as *mut u8
        }

        fn len(&self) -> usize {
            4096
        }
    }

    impl Drop for ReadOnly {
        fn drop(&mut self) {
            // SAFETY: nothing uses it any more.
            unsafe { munmap(self.as_ptr().cast(), 4096) }.unwrap();
        }
    }

    let fabric = Fabric::new();
    let mut ends = fabric.pair();
    // SAFETY: a new mapping.
    let mapped = unsafe {
        let flags = MapFlags::PRIVATE;
        mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ, flags).unwrap()
    };
    let buffer: Arc<dyn Buffer> = Arc::new(ReadOnly(mapped as usize));
    let there = ends[1]
        .device
        .register(PD, &buffer, Access::REMOTE_READ)
        .unwrap();
    ends[0].post(SendOp::Read(there.remote(0)));
    assert_eq!(ends[0].completed().status, Status::Success);
    ends[0].post(SendOp::Write(there.remote(0)));
    assert_eq!(ends[0].completed().status, Status::RemoteAccess);
    // The program registered it for writing by mistake: the kernel finds out.
    let mut ends = fabric.pair();
    let there = ends[1].device.register(PD, &buffer, Access::ALL).unwrap();
    ends[0].post(SendOp::Write(there.remote(0)));
    assert_eq!(ends[0].completed().status, Status::RemoteOperation);
}

/// A forked child of the owner has a copy of the memory. A peer's WRITE must reach the parent's.
#[test]
fn a_forked_child_serves_nothing() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let (ours, mut other) = wide_pair(&fabric, &device, true);
    let buffer: Arc<dyn Buffer> = HeapBuffer::new(4096);
    let there = ours.device.register(PD, &buffer, Access::ALL).unwrap();
    let (mut told, mut say) = rustix::pipe::pipe()
        .map(|(r, w)| (std::fs::File::from(r), std::fs::File::from(w)))
        .unwrap();
    // SAFETY: the child only reads the pipe, looks at its memory and exits, all without a lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut go = [0];
        let read = std::io::Read::read(&mut told, &mut go);
        // SAFETY: mapped, and nothing writes to it in the child.
        let seen = unsafe { buffer.as_ptr().cast::<u64>().read_volatile() };
        // SAFETY: ends the child at once, without running destructors.
        unsafe { libc::_exit(i32::from(read.is_err() || seen != 0)) };
    }
    assert!(child > 0);
    assert!(have_done(&mut other, "add", there.remote(0), 8) > 0);
    std::io::Write::write_all(&mut say, b"x").unwrap();
    let mut status = 0;
    // SAFETY: the pid is our own child's, and the pointer is to a place for its status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child saw the write");
    let sum = super::local_mrs::bytes(&there, 0, 8);
    assert_eq!(u64::from_ne_bytes(sum.try_into().unwrap()), 5);
}
