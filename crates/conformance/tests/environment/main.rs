//! Forked children, registry entries of another version, resource limits that are too small.

use std::path::Path;
use std::sync::Arc;

use headworks_conformance::buffer_access;
use headworks_net::clock;
use headworks_pacing::shared_state::BYTES;
use headworks_pacing::{PacedDevice, Pacing, SharedPacing};
use headworks_shm::{HugePages, Registry, SegmentRequest, SharedSegment, View};
use headworks_softnic::SoftProvider;
use headworks_verbs::{
    AllocRequest, Completion, Device, OpenError, PollError, PostErrorKind, Provider, QpAttr,
    QpState, RecvWr, ResourceError, SendOp, Status,
};

mod direct_verbs;

use direct_verbs::{DevicePair, EndpointOptions, VerbsEndpoint};

fn open(fabric: &Path, name: &str) -> Result<Arc<dyn Device>, OpenError> {
    let fabric = Registry::open_at(fabric).map_err(|error| OpenError::Provider {
        what: name.to_owned(),
        source: error.into(),
    })?;
    SoftProvider::on(fabric).open(&name.parse()?)
}

/// Forks, runs `f` in the child, and returns its exit status.
fn run_in_forked_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only `f` and ends with `_exit`. Other threads of the test hold no lock that the
    // child needs except the allocator's, which libc's fork handles.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: `_exit` ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(verdict.unwrap_or(99)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the process is our own child, and `status` is a valid place for its status.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert_eq!(waited, pid);
            assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

/// Checks that a child can do nothing with an inherited endpoint. Returns the number of the first check that
/// failed, or 0.
fn use_every_verb(side: &mut VerbsEndpoint) -> i32 {
    let forked = |error: Result<(), ResourceError>| matches!(error, Err(ResourceError::Forked));
    let into = side.region.sge(0, 8);
    let post = side.post(1, SendOp::Send, &[]);
    let receive = side.qp.post_recv(&[RecvWr {
        wr_id: 1,
        sges: &[into],
    }]);
    let mut out = [Completion::default()];
    let checks = [
        forked(side.device.alloc_pd().map(drop)),
        forked(side.device.alloc(&AllocRequest::of(64)).map(drop)),
        forked(side.device.create_channel().map(drop)),
        forked(
            side.pd
                .register(side.region.buffer(), side.region.access())
                .map(drop),
        ),
        post.is_err_and(|error| error.contains("parent")),
        receive.is_err_and(|error| error.kind == PostErrorKind::Forked),
        side.qp.modify(&QpAttr::to_state(QpState::Error)).is_err(),
        side.send_cq.poll(&mut out) == Err(PollError::Forked),
        side.recv_cq.poll(&mut out) == Err(PollError::Forked),
        side.device.next_async_event().is_none(),
    ];
    side.send_cq.arm(false);
    checks
        .iter()
        .position(|good| !good)
        .map_or(0, |at| at as i32 + 1)
}

#[test]
fn a_forked_child_is_refused_and_leaves_others_undisturbed() {
    check_forked_child(open);
}

#[test]
fn a_forked_child_can_do_nothing_with_a_paced_device_either() {
    check_forked_child(|fabric, name| open(fabric, name).map(paced));
}

/// Returns the device paced, with a share of its own.
fn paced(device: Arc<dyn Device>) -> Arc<dyn Device> {
    let request = SegmentRequest {
        name: "paced",
        len: BYTES,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    let segment = SharedSegment::create(&request).expect("memory");
    let pacing = Pacing {
        share: SharedPacing::over(View::from(Arc::new(segment))).expect("long enough"),
        config: Arc::default(),
        clock: Arc::new(clock::now),
        is_real: true,
        keeper: None,
    };
    let info = device.info().clone();
    Arc::new(PacedDevice::new(device, info, pacing))
}

fn check_forked_child(open: impl Fn(&Path, &str) -> Result<Arc<dyn Device>, OpenError>) {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let cx = DevicePair {
        a: open(&path, "soft:h1").expect("opens"),
        b: open(&path, "soft:h2").expect("opens"),
    };
    let mut pair = cx.connected_pair().expect("connects");
    let into = pair.b.region.sge(0, 64);
    pair.b.receive(1, &[into]).expect("posted");
    // The first two children leave by `_exit`, the third one drops everything.
    assert_eq!(run_in_forked_child(|| use_every_verb(&mut pair.a)), 0);
    assert_eq!(run_in_forked_child(|| use_every_verb(&mut pair.b)), 0);
    let mut pair = Some(pair);
    let verdict = run_in_forked_child(|| {
        drop(pair.take());
        0
    });
    assert_eq!(verdict, 0);
    let mut pair = pair.expect("the parent's is untouched");
    buffer_access::put(&pair.a.region, 0, b"still up");
    let from = pair.a.region.sge(0, 8);
    pair.a.post(2, SendOp::Send, &[from]).expect("posted");
    pair.a.expect_sent(2, Status::Success).expect("sent");
    pair.b
        .expect_received(1, Status::Success)
        .expect("received");
    assert_eq!(buffer_access::get(&pair.b.region, 0, 8), b"still up");
    // A child may open a device of its own.
    let again = run_in_forked_child(|| {
        let device = open(&path, "soft:h3");
        let made =
            device.map(|device| VerbsEndpoint::new(&device, &EndpointOptions::default()).is_ok());
        i32::from(!matches!(made, Ok(true)))
    });
    assert_eq!(again, 0);
    drop(pair);
    drop(cx);
    assert!(!path.exists(), "something is left");
}

#[test]
fn an_entry_of_another_version_is_one_line_and_no_obstacle() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let device = open(&path, "soft:h1").expect("opens");
    let entries = std::fs::read_dir(&path).expect("dir").flatten();
    let entry = entries
        .map(|entry| entry.path())
        .find(|path| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("c."))
        })
        .expect("an entry");
    // Changes the version of the entry itself.
    let whole = std::fs::read(&entry).expect("read");
    let mut alien = whole.clone();
    alien[4] = 77;
    std::fs::write(&entry, &alien).expect("write");
    let name = entry
        .file_name()
        .expect("name")
        .to_string_lossy()
        .into_owned();
    let host = u64::from_str_radix(name.split('.').nth(1).expect("host"), 16).expect("hex");
    let fabric = Registry::open_at(&path).expect("fabric");
    let error = fabric
        .lookup_context(headworks_shm::HostKey(host), 0)
        .expect_err("another version");
    let text = error.to_string();
    assert!(text.contains("77") && !text.contains('\n'), "{text}");
    println!("{text}");
    let second = open(&path, "soft:h1").expect("opens beside it");
    drop(second);
    std::fs::write(&entry, &whole).expect("write");
    drop(device);
    drop(fabric);
    assert!(!path.exists(), "something is left");
}

fn set_rlimit(resource: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the limit is valid and concerns only this process, which is a child.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// Returns 0 if the error is one line that says what would be enough.
fn child_exit_code(what: &str, error: Option<String>) -> i32 {
    println!("{what}: {error:?}");
    match error {
        None => 1,
        Some(text) if text.contains('\n') || !text.contains("enough") => 2,
        Some(_) => 0,
    }
}

#[test]
fn too_small_limits_are_errors_naming_a_sufficient_size() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    for (what, resource, bytes) in [
        ("RLIMIT_FSIZE", libc::RLIMIT_FSIZE, 100_000),
        ("RLIMIT_FSIZE", libc::RLIMIT_FSIZE, 10),
        ("RLIMIT_AS", libc::RLIMIT_AS, 1),
    ] {
        let seen = run_in_forked_child(|| {
            // An address-space limit includes what is mapped already.
            let mapped = std::fs::read_to_string("/proc/self/statm").expect("statm");
            let pages: u64 = mapped
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .expect("number");
            let base = if resource == libc::RLIMIT_AS {
                pages * 4096 + (1 << 20)
            } else {
                0
            };
            set_rlimit(resource, base + bytes);
            child_exit_code(
                what,
                open(&path, "soft").err().map(|error| error.to_string()),
            )
        });
        assert_eq!(seen, 0, "{what} of {bytes} at opening");
    }
    let seen = run_in_forked_child(|| {
        let device = open(&path, "soft").expect("opens");
        set_rlimit(libc::RLIMIT_FSIZE, 8 << 20);
        let error = device.alloc(&AllocRequest::of(64 << 20)).err();
        child_exit_code("buffer", error.map(|error| error.to_string()))
    });
    assert_eq!(seen, 0, "a buffer beyond RLIMIT_FSIZE");
}

#[test]
fn a_full_file_system_error_names_a_sufficient_size() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().to_owned();
    let seen = run_in_forked_child(|| {
        let (uid, gid) = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        // SAFETY: this is a plain system call, in the child only.
        let apart = unsafe {
            libc::unshare(libc::CLONE_NEWNS | if uid == 0 { 0 } else { libc::CLONE_NEWUSER })
        };
        if apart != 0 {
            return 77;
        }
        if uid != 0 {
            let _ = std::fs::write("/proc/self/setgroups", "deny");
            let _ = std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"));
            let _ = std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"));
        }
        let target = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("path");
        // SAFETY: these are plain system calls with valid strings, in the child only. The mounts are not
        // visible outside this mount namespace.
        let mounted = unsafe {
            let private = libc::MS_REC | libc::MS_PRIVATE;
            let none = std::ptr::null();
            libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
                && libc::mount(
                    c"tmpfs".as_ptr(),
                    target.as_ptr(),
                    c"tmpfs".as_ptr(),
                    0,
                    c"size=8k,mode=700".as_ptr().cast(),
                ) == 0
        };
        if !mounted {
            return 77;
        }
        let fabric = path.join("fabric");
        Registry::open_at(&fabric).expect("an empty directory fits");
        let filler = std::fs::write(path.join("filler"), vec![0; 64 << 10]);
        assert!(filler.is_err(), "8 KiB hold 64 KiB");
        let error = open(&fabric, "soft").err();
        child_exit_code("tmpfs", error.map(|error| error.to_string()))
    });
    if seen == 77 {
        println!("skipped: this process may not mount a tmpfs");
        assert!(
            !headworks_runtime::testing::is_required("tmpfs"),
            "tmpfs is required"
        );
        return;
    }
    assert_eq!(seen, 0, "a full tmpfs");
}
