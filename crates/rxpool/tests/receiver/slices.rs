//! Slices of received transfers are processed on threads and released one by one.

use headworks_rxpool::checksum::{ChecksumError, PartChecksum, TransferChecksum, check};
use headworks_rxpool::jobs::{Jobs, JobsConfig, SliceBytes};
use headworks_rxpool::slices::ExtentSlices;

use self::oracle::plain_crc32c;
use super::*;

#[path = "../../src/checksum/oracle.rs"]
mod oracle;

/// The extent and the transfer of a slice, and the transfer's bytes.
type Tag = (u64, TransferId, u64);

/// A receiver whose slices two threads process.
struct Pipeline<R> {
    world: World,
    app: AppId,
    jobs: Jobs<Tag, R>,
    /// Extents whose slices are not all released, by their numbers.
    extents: BTreeMap<u64, (TransferId, ExtentSlices)>,
    /// Transfers of which bytes are to arrive, and their bytes.
    left: BTreeMap<TransferId, u64>,
    last: u64,
}

impl<R: Send + 'static> Pipeline<R> {
    fn new(
        mut world: World,
        process: impl Fn(Tag, &mut SliceBytes<'_>) -> R + Send + Sync + 'static,
    ) -> Self {
        let config = JobsConfig {
            threads: 2,
            jobs: 16,
        };
        let jobs = Jobs::start(config, world.pool.clone(), process).unwrap();
        Self {
            app: world.receiver.add_app(LIMITS),
            world,
            jobs,
            extents: BTreeMap::new(),
            left: BTreeMap::new(),
            last: 0,
        }
    }

    fn announce(&mut self, link: LinkId, at: usize, len: usize) -> TransferId {
        let transfer = self.world.announce(link, self.app, at, len);
        self.left.insert(transfer, len as u64);
        transfer
    }

    /// Receives and processes everything that was announced, and returns what became of each slice: its transfer, its
    /// position and the result.
    fn run(&mut self) -> Vec<(TransferId, u64, R)> {
        let mut results = Vec::new();
        let lens = self.left.clone();
        let mut quiet = 0;
        while !self.left.is_empty() || !self.extents.is_empty() {
            let is_busy = self.world.is_busy() || self.jobs.outstanding() > 0;
            quiet = if is_busy { 0 } else { quiet + 1 };
            assert!(quiet < 1000, "{} transfers stand still", self.left.len());
            let seconds = self.world.began.elapsed().as_secs();
            assert!(seconds < 120, "{} jobs hang", self.jobs.outstanding());
            while let Some(event) = self.world.receiver.event() {
                match event {
                    ReceiverEvent::Arrived {
                        transfer,
                        at,
                        held,
                        len,
                    } => {
                        self.last += 1;
                        let slices = ExtentSlices::new(held, at, len).unwrap();
                        self.extents.insert(self.last, (transfer, slices));
                    }
                    ReceiverEvent::Done(transfer) => {
                        assert!(self.left.remove(&transfer).is_some(), "done twice");
                    }
                    ReceiverEvent::Failed { why, .. } => panic!("{why}"),
                    // The threads may be slow.
                    ReceiverEvent::Copy(_) | ReceiverEvent::Overdue(_) | ReceiverEvent::Signal => {}
                }
            }
            for (number, (transfer, slices)) in &mut self.extents {
                while self.jobs.room() > 0
                    && let Some(slice) = slices.next()
                {
                    let tag = (*number, *transfer, lens[transfer]);
                    self.jobs.submit(slice, tag).unwrap();
                }
            }
            while let Some(job) = self.jobs.poll() {
                let (number, transfer, _) = job.tag;
                results.push((transfer, job.slice.at, job.result.unwrap()));
                self.release(number, job.slice.unit);
            }
            std::thread::yield_now();
        }
        results
    }

    /// Releases the unit of a slice that was processed.
    fn release(&mut self, number: u64, unit: u32) {
        let (_, slices) = self.extents.get_mut(&number).unwrap();
        slices.processed(unit).unwrap();
        let units = slices.releasable().unwrap();
        assert_eq!(units, unit..unit + 1, "other units are processed still");
        let receiver = &mut self.world.receiver;
        let before = receiver.pool().used(self.app).held;
        let released = receiver.release(self.app, slices.held(), unit, 1, self.world.now);
        assert_eq!(released, Ok(()));
        assert_eq!(receiver.pool().used(self.app).held, before - 1);
        if slices.is_over() {
            self.extents.remove(&number);
        }
    }
}

#[test]
fn slices_are_processed_on_threads_and_released_one_by_one() {
    let world = World::new(&config());
    let mut pipeline = Pipeline::new(world, |(_, _, transfer), bytes| {
        let at = bytes.slice().at;
        PartChecksum::of(bytes.copied(), at, transfer).unwrap()
    });
    let links = [pipeline.world.link(), pipeline.world.link()];
    // The last two are longer than the pool.
    let sizes = [1, 4095, 4096, 4097, (256 << 10) + 1, 1 << 20];
    let mut expected = BTreeMap::new();
    for (number, len) in sizes.into_iter().enumerate() {
        let at = number * 333_333 + number;
        let transfer = pipeline.announce(links[number % 2], at, len);
        let checksum = TransferChecksum::new(len as u64);
        expected.insert(transfer, (at, len, checksum));
    }
    for (transfer, _, part) in pipeline.run() {
        let (_, _, checksum) = expected.get_mut(&transfer).unwrap();
        assert_eq!(checksum.add(&part), Ok(()));
    }
    for (at, len, checksum) in expected.into_values() {
        let bytes = &pipeline.world.pattern[at..at + len];
        assert_eq!(checksum.check(plain_crc32c(bytes)), Ok(()), "{len} bytes");
    }
    pipeline.world.assert_empty();
}

#[test]
fn a_corrupted_slice_is_found() {
    let world = World::new(&config());
    let len = 300_000;
    let slices = world.pattern[..len].chunks(UNIT as usize);
    let sent: Vec<u32> = slices.map(plain_crc32c).collect();
    let of_all = plain_crc32c(&world.pattern[..len]);
    let stated = sent.clone();
    let mut pipeline = Pipeline::new(world, move |(_, _, transfer), bytes| {
        let at = bytes.slice().at;
        let bytes = bytes.copied();
        let is_good = check(bytes, stated[(at / u64::from(UNIT)) as usize]);
        (is_good, PartChecksum::of(bytes, at, transfer).unwrap())
    });
    // One bit changes after the sender computed its checksums.
    let (bad, place) = (41, 41 * UNIT as usize + 1234);
    let changed = pipeline.world.pattern[place] ^ 0x10;
    view_of(&pipeline.world.source, 0)
        .write(place, &[changed])
        .unwrap();
    let link = pipeline.world.link();
    pipeline.announce(link, 0, len);
    let mut checksum = TransferChecksum::new(len as u64);
    let mut wrong = Vec::new();
    for (_, at, (is_good, part)) in pipeline.run() {
        checksum.add(&part).unwrap();
        wrong.extend(is_good.err().map(|error| (at / u64::from(UNIT), error)));
    }
    let [(slice, ChecksumError::Mismatch { expected, .. })] = wrong[..] else {
        panic!("one slice is wrong: {wrong:?}");
    };
    assert_eq!((slice, expected), (bad, sent[bad as usize]));
    let refused = checksum.check(of_all);
    assert!(
        matches!(refused, Err(ChecksumError::Mismatch { expected, .. }) if expected == of_all),
        "{refused:?}"
    );
    pipeline.world.assert_empty();
}
