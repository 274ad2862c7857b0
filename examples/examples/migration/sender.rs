//! The sender: fills pieces of memory, lends them, and reuses them when they come back.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use headworks::net::Interrupt;
use headworks::service::{Loan, ReclaimError, Service, ServiceError, SharedMemory, Stream};
use headworks_examples::program::{Failure, Outcome, say};
use headworks_examples::service_program::{connect, receive_exact, retry_until_interrupted, send};

use crate::{NAMED, RIGHT};

/// Bytes of a piece, and number of pieces.
const PIECE: u64 = 1 << 20;
const PIECES: usize = 8;
/// Smallest file, in bytes, for which progress is shown.
const LARGE: u64 = 64 << 20;
/// Interval between two progress updates.
const SHOWN_EVERY: Duration = Duration::from_millis(100);

/// Sends a file, and waits until the receiver has it.
pub(crate) fn send_file(
    service: &Service,
    to: SocketAddr,
    mut file: File,
    interrupt: &Interrupt,
) -> Outcome {
    let len = file.metadata()?.len();
    let mut stream = connect(service, to, interrupt)?;
    let mut lender = LentMemory::new(service)?;
    let mut progress = Progress::new(len);
    let mut hash = crc32fast::Hasher::new();
    let began = Instant::now();
    send(&mut stream, &len.to_le_bytes(), interrupt)?;
    let mut sent = 0;
    while sent < len {
        let mut memory = lender.memory(&mut stream, interrupt)?;
        let piece = &mut memory[..(len - sent).min(PIECE) as usize];
        file.read_exact(piece)
            .map_err(|error| Failure::Failed(format!("reading the file: {error}")))?;
        hash.update(piece);
        let bytes = piece.len();
        lender.lend(&mut stream, memory, bytes, interrupt)?;
        sent += bytes as u64;
        progress.at(sent, began);
    }
    let checksum = hash.finalize();
    send(&mut stream, &checksum.to_le_bytes(), interrupt)?;
    let mut answer = [0];
    receive_exact(&mut stream, &mut answer, interrupt)?;
    let seconds = began.elapsed().as_secs_f64();
    progress.clear();
    if answer != [RIGHT] {
        return Err(Failure::Failed(
            "the receiver got a file with another checksum".to_owned(),
        ));
    }
    receive_exact(&mut stream, &mut answer, interrupt)?;
    if answer != [NAMED] {
        return Err(Failure::Failed(
            "the receiver could not rename the file".to_owned(),
        ));
    }
    let line = format!(
        "{len} bytes in {seconds:.2} s: {:.2} GB/s, CRC-32 {checksum:08x} at both ends\n",
        len as f64 / seconds / 1e9
    );
    say(line.as_bytes())
}

/// Pieces of memory, some of which are lent.
struct LentMemory {
    spare: Vec<SharedMemory>,
    /// Loans, oldest first.
    lent: VecDeque<Loan>,
}

impl LentMemory {
    fn new(service: &Service) -> Outcome<Self> {
        let spare = (0..PIECES).map(|_| service.alloc(PIECE as u32));
        Ok(Self {
            spare: spare.collect::<Result<_, _>>()?,
            lent: VecDeque::new(),
        })
    }

    /// A piece of memory to write to: one that was never lent, or the oldest loan once it has been sent.
    fn memory(&mut self, stream: &mut Stream, interrupt: &Interrupt) -> Outcome<SharedMemory> {
        if let Some(memory) = self.spare.pop() {
            return Ok(memory);
        }
        retry_until_interrupted(stream, interrupt, |stream| {
            let oldest = self.lent.pop_front().ok_or(ServiceError::Ended)?;
            stream
                .reclaim(oldest)
                .map_err(|ReclaimError { loan, error }| {
                    self.lent.push_front(loan);
                    error
                })
        })
    }

    fn lend(
        &mut self,
        stream: &mut Stream,
        memory: SharedMemory,
        len: usize,
        interrupt: &Interrupt,
    ) -> Outcome {
        let mut memory = Some(memory);
        let lent = retry_until_interrupted(stream, interrupt, |stream| {
            stream.lend_from(&mut memory, len)
        })?;
        self.lent.push_back(lent);
        Ok(())
    }
}

/// Shows on a terminal how much has been sent.
struct Progress {
    len: u64,
    shown: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    fn new(len: u64) -> Self {
        Self {
            len,
            shown: None,
            is_shown: len >= LARGE && std::io::stderr().is_terminal(),
        }
    }

    fn at(&mut self, sent: u64, began: Instant) {
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() > SHOWN_EVERY);
        if self.is_shown && is_due {
            self.shown = Some(Instant::now());
            let gigabytes = sent as f64 / began.elapsed().as_secs_f64() / 1e9;
            let [sent, len] = [sent, self.len].map(|bytes| bytes >> 20);
            show(&format!(
                "\r{sent} of {len} MiB, {gigabytes:.2} GB/s \x1b[K"
            ));
        }
    }

    fn clear(&self) {
        if self.shown.is_some() {
            show("\r\x1b[K");
        }
    }
}

/// Prints progress. A failure is ignored, because progress is not part of the result.
fn show(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
