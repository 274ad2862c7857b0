use std::sync::mpsc;
use std::time::{Duration, Instant};

use headworks_shm::{HugePages, SegmentRequest, SharedSegment};

use super::*;

/// Turns a hang into a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// Memory of four units, whose bytes are the numbers of their units.
fn memory() -> View {
    let request = SegmentRequest {
        name: "jobs",
        len: 4 * UNIT as usize,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    let view = View::from(Arc::new(SharedSegment::create(&request).unwrap()));
    for unit in 0..4 {
        let bytes = [unit as u8; UNIT as usize];
        view.write(unit * UNIT as usize, &bytes).unwrap();
    }
    view
}

fn slice(unit: u32, len: u32) -> Slice {
    let offset = u64::from(unit * UNIT);
    Slice {
        unit,
        offset,
        at: offset,
        len,
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// Polls until a job has ended.
fn wait<T: Copy + Send + 'static, R: Send + 'static>(jobs: &mut Jobs<T, R>) -> CompletedJob<T, R> {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        if let Some(job) = jobs.poll() {
            return job;
        }
        std::thread::yield_now();
    }
    panic!("no job ends");
}

#[test]
fn two_threads_process_slices_at_the_same_time() {
    // The first job waits until the second one has begun.
    let (begun, changed) = (Mutex::new(0), Condvar::new());
    let mut jobs = Jobs::start(JobsConfig::default(), memory(), move |_, bytes| {
        let mut begun = begun.lock().unwrap();
        *begun += 1;
        changed.notify_all();
        let waited = changed.wait_timeout_while(begun, LIMIT, |begun| *begun < 2);
        assert!(!waited.unwrap().1.timed_out(), "no other job runs");
        sum(bytes.copied())
    })
    .unwrap();
    for unit in 0..4 {
        jobs.submit(slice(unit, 100 + unit), unit + 7).unwrap();
    }
    assert_eq!(jobs.outstanding(), 4);
    let mut done: Vec<_> = (0..4).map(|_| wait(&mut jobs)).collect();
    done.sort_by_key(|job| job.tag);
    for (unit, job) in (0..4).zip(done) {
        assert_eq!(job.tag, unit + 7);
        assert_eq!(job.slice, slice(unit, 100 + unit));
        assert_eq!(job.result, Ok(u64::from(unit * (100 + unit))));
    }
    assert_eq!(jobs.outstanding(), 0);
    assert_eq!(jobs.poll(), None);
}

#[test]
fn a_full_queue_refuses_jobs_until_one_is_polled() {
    let (gate, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let config = JobsConfig {
        threads: 1,
        jobs: 2,
    };
    let mut jobs = Jobs::start(config, memory(), move |(), _| {
        waits.lock().unwrap().recv_timeout(LIMIT).unwrap();
    })
    .unwrap();
    let one = slice(0, 1);
    assert_eq!(jobs.submit(one, ()), Ok(()));
    assert_eq!(jobs.submit(one, ()), Ok(()));
    assert_eq!(jobs.room(), 0);
    assert_eq!(jobs.submit(one, ()), Err(SubmitError::Full(2)));
    assert_eq!(jobs.poll(), None, "the first job waits");
    gate.send(()).unwrap();
    assert_eq!(wait(&mut jobs).result, Ok(()));
    assert_eq!(jobs.submit(one, ()), Ok(()));
    gate.send(()).unwrap();
    gate.send(()).unwrap();
}

#[test]
fn a_panic_is_the_error_of_its_slice_alone() {
    let config = JobsConfig {
        threads: 1,
        ..JobsConfig::default()
    };
    let mut jobs = Jobs::start(config, memory(), |is_bad: bool, bytes| {
        assert!(!is_bad, "bad slice {}", bytes.slice().unit);
        sum(bytes.copied())
    })
    .unwrap();
    jobs.submit(slice(2, 1), true).unwrap();
    jobs.submit(slice(3, 2), false).unwrap();
    let bad = wait(&mut jobs);
    assert_eq!(bad.slice, slice(2, 1));
    assert_eq!(
        bad.result,
        Err(JobError::Panicked("bad slice 2".to_owned()))
    );
    assert_eq!(wait(&mut jobs).result, Ok(6));
}

#[test]
fn dropping_ends_all_threads_whatever_is_queued() {
    let held = Arc::new(());
    for queued in [0, 1, 40] {
        let of_threads = held.clone();
        let config = JobsConfig {
            threads: 3,
            ..JobsConfig::default()
        };
        let mut jobs = Jobs::start(config, memory(), move |(), _| {
            let _ = &of_threads;
        })
        .unwrap();
        for _ in 0..queued {
            jobs.submit(slice(0, 1), ()).unwrap();
        }
        drop(jobs);
        assert_eq!(Arc::strong_count(&held), 1, "a thread is left");
    }
}

#[test]
fn only_bytes_of_the_slice_are_read() {
    let memory = memory();
    memory.write(UNIT as usize + 8, &[5, 6, 7]).unwrap();
    let mut jobs = Jobs::start(JobsConfig::default(), memory, |(), bytes| {
        let mut two = [9; 2];
        let reads = [0, 8, 9, u32::MAX].map(|from| bytes.read(from, &mut two));
        (reads, two)
    })
    .unwrap();
    jobs.submit(slice(1, 10), ()).unwrap();
    let reads = [true, true, false, false];
    assert_eq!(wait(&mut jobs).result, Ok((reads, [5, 6])));
}

#[test]
fn slices_outside_of_the_memory_and_wrong_numbers_are_refused() {
    let start = |threads, jobs| {
        let config = JobsConfig { threads, jobs };
        let started = Jobs::start(config, memory(), |(), _| ());
        started.map_err(|error| error.to_string())
    };
    assert_eq!(start(0, 1).err().unwrap(), "threads is 0: 1 to 256");
    assert_eq!(start(1, 65_537).err().unwrap(), "jobs is 65537: 1 to 65536");
    let mut jobs = start(1, 1).unwrap();
    for (offset, len) in [(16_000, 400), (0, 4097), (u64::MAX, 1)] {
        let slice = Slice {
            offset,
            len,
            ..slice(0, 1)
        };
        let refused = Err(SubmitError::Range { offset, len });
        assert_eq!(jobs.submit(slice, ()), refused);
    }
    assert_eq!(jobs.outstanding(), 0);
}
