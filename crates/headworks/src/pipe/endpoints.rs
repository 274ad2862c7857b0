//! The two sides of a connected pipe.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use headworks_net::clock;
use headworks_verbs::{Device, Duration};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use rustix::pipe::PIPE_BUF;

use super::{CHUNK, PipeError};
use crate::blocking::{BlockingError, BlockingReceiver, BlockingSender, EndWaiter};

/// First byte of the message that everything was delivered; the number of bytes follows.
const DELIVERED: u8 = b'D';
/// First byte of the message that this side gave up; the reason follows.
const FAILED: u8 = b'X';
/// Reason of a side that does not know why its ring broke.
const RING_BROKEN: &str = "the ring is broken";
/// Limit on a reason, in bytes.
const REASON_MAX: usize = 500;
/// How long to wait, once the ring is broken, for the other side to give the reason over the control stream.
const FAILURE_REASON_TIMEOUT: Duration = Duration::from_secs(5);

/// Pieces between two checks for an interrupt, each of which costs a system call. The checks are needed
/// because a side that is always slower than the other never waits, and only a wait notices interrupts.
const INTERRUPT_CHECK_PIECES: u64 = 16;

/// Whether reads or writes of a descriptor can block without limit; those of files and block devices do not.
fn may_block(fd: &impl AsFd) -> bool {
    !fstat(fd).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::RegularFile | FileType::BlockDevice)
    })
}

/// The sending side of a connected pipe.
pub struct PipeSender {
    sender: BlockingSender,
    bytes: u64,
    pieces: u64,
    // Must outlive the ring.
    _device: Arc<dyn Device>,
}

impl PipeSender {
    pub(super) fn new(mut sender: BlockingSender, device: Arc<dyn Device>, before: u64) -> Self {
        sender.waiter().watch_device(&device, before);
        Self {
            sender,
            bytes: 0,
            pieces: 0,
            _device: device,
        }
    }

    /// Sends what the descriptor `source` yields until its end, and waits until the other side has delivered
    /// it. Flushes before it waits for the source. Calls `passed` with the number of bytes so far after each
    /// piece. Returns the number of bytes.
    pub fn send_fd(
        mut self,
        source: &impl AsFd,
        mut passed: impl FnMut(u64),
    ) -> Result<u64, PipeError> {
        let polls = may_block(source);
        loop {
            if polls {
                self.await_source(source)?;
            }
            let read = |place: &mut [u8]| loop {
                match rustix::io::read(source, &mut *place) {
                    Err(Errno::INTR) => {}
                    // Another reader took the bytes, or the source is not readable after all.
                    Err(Errno::AGAIN) if polls => break Ok(None),
                    other => break other.map(Some).map_err(io::Error::from),
                }
            };
            match self.piece(read)? {
                Some(0) => return self.finish(),
                Some(_) => passed(self.bytes),
                None => {}
            }
        }
    }

    /// [`PipeSender::send_fd`] for a [`Read`] of this program: calls it and does not poll it first.
    pub fn send_from(
        mut self,
        source: &mut impl Read,
        mut passed: impl FnMut(u64),
    ) -> Result<u64, PipeError> {
        loop {
            let read = |place: &mut [u8]| loop {
                match source.read(place) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other.map(Some),
                }
            };
            if self.piece(read)? == Some(0) {
                return self.finish();
            }
            passed(self.bytes);
        }
    }

    /// Reads one piece into the ring and sends it. Returns its length, or `None` if there was nothing to read
    /// yet.
    fn piece(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<Option<usize>>,
    ) -> Result<Option<usize>, PipeError> {
        self.pieces += 1;
        if self.pieces.is_multiple_of(INTERRUPT_CHECK_PIECES)
            && let Err(error) = self.sender.waiter().check_events()
        {
            return Err(self.explain_failure(error));
        }
        let place = self.sender.reserve(CHUNK);
        let mut place = match place {
            Ok(place) => place,
            Err(error) => return Err(self.explain_failure(error)),
        };
        let got = match read(&mut place) {
            Ok(got) => got,
            Err(error) => {
                send_failure(self.sender.waiter(), &format!("reading its input: {error}"));
                return Err(PipeError::io("reading the input")(error));
            }
        };
        if let Some(len) = got.filter(|len| *len > 0) {
            if let Err(error) = place.commit_len(len) {
                return Err(self.explain_failure(error.into()));
            }
            self.bytes += len as u64;
        }
        Ok(got)
    }

    /// Waits until the source is readable; flushes first.
    fn await_source(&mut self, source: &impl AsFd) -> Result<(), PipeError> {
        if ready(source, PollFlags::IN) {
            return Ok(());
        }
        self.sender
            .flush()
            .map_err(|error| self.explain_failure(error))?;
        loop {
            match self.sender.wait_for_source(source) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(self.explain_failure(error)),
            }
        }
    }

    /// Ends the stream and waits until the receiver confirms that it has everything.
    fn finish(mut self) -> Result<u64, PipeError> {
        let mut so_far = self.sender.send(&[]).and_then(|()| self.sender.flush());
        loop {
            let waiter = self.sender.waiter();
            if let Err(error) = so_far {
                let error = unless_port_failed(waiter, error);
                await_failure_reason(waiter, &error);
                // A receiver that has everything leaves, and its end of the ring with it.
                let word = waiter
                    .line_messages
                    .front()
                    .and_then(|message| message.first());
                if word != Some(&DELIVERED) {
                    return Err(reported_error(waiter, self.bytes, error));
                }
            }
            if let Some(message) = waiter.line_messages.pop_front() {
                return match message.split_first() {
                    Some((&DELIVERED, count)) if count == self.bytes.to_le_bytes() => {
                        Ok(self.bytes)
                    }
                    Some((&DELIVERED, _)) => {
                        Err(PipeError::Protocol("its count of bytes is wrong"))
                    }
                    _ => Err(reason(&message)),
                };
            }
            so_far = self.sender.drain_line();
        }
    }

    /// Explains why a wait failed, by the other side's reason if it sent one.
    fn explain_failure(&mut self, error: BlockingError) -> PipeError {
        explain(self.sender.waiter(), self.bytes, error)
    }
}

/// The receiving side of a connected pipe.
pub struct PipeReceiver {
    receiver: BlockingReceiver,
    bytes: u64,
    pieces: u64,
    // Must outlive the ring.
    _device: Arc<dyn Device>,
}

impl PipeReceiver {
    pub(super) fn new(
        mut receiver: BlockingReceiver,
        device: Arc<dyn Device>,
        before: u64,
    ) -> Self {
        receiver.waiter().watch_device(&device, before);
        Self {
            receiver,
            bytes: 0,
            pieces: 0,
            _device: device,
        }
    }

    /// Writes everything that arrives to the descriptor `sink`, then confirms the delivery to the other side.
    /// Calls `passed` with the number of bytes so far after each piece. Returns the number of bytes.
    pub fn receive_fd(
        mut self,
        sink: &impl AsFd,
        mut passed: impl FnMut(u64),
    ) -> Result<u64, PipeError> {
        let polls = may_block(sink);
        while self.piece(|bytes, waiter| write_all(sink, polls, bytes, waiter))? > 0 {
            passed(self.bytes);
        }
        self.finish()
    }

    /// [`PipeReceiver::receive_fd`] for a [`Write`] of this program: calls it and does not poll it first.
    pub fn receive_into(
        mut self,
        sink: &mut impl Write,
        mut passed: impl FnMut(u64),
    ) -> Result<u64, PipeError> {
        while self.piece(|bytes, _| sink.write_all(bytes).map_err(WriteError::Sink))? > 0 {
            passed(self.bytes);
        }
        if let Err(error) = sink.flush() {
            return Err(self.failed(error));
        }
        self.finish()
    }

    /// Writes one piece. Returns its length, which is 0 at the end of the stream.
    fn piece(
        &mut self,
        write: impl FnOnce(&[u8], &mut EndWaiter) -> Result<(), WriteError>,
    ) -> Result<usize, PipeError> {
        self.pieces += 1;
        if self.pieces.is_multiple_of(INTERRUPT_CHECK_PIECES)
            && let Err(error) = self.receiver.waiter().check_events()
        {
            return Err(self.explain_failure(error));
        }
        let held = match self.receiver.take() {
            Ok(held) => held,
            Err(error) => return Err(self.explain_failure(error)),
        };
        let (ring, waiter) = self.receiver.parts();
        let written = write(ring.bytes(&held), waiter);
        let len = held.len();
        let released = self.receiver.ring().release(held);
        match written {
            Ok(()) => {}
            Err(WriteError::Wait(error)) => return Err(self.explain_failure(error)),
            Err(WriteError::Sink(error)) => return Err(self.failed(error)),
        }
        self.bytes += len as u64;
        // It does not matter if the ring breaks after the last message.
        match released {
            Err(error) if len > 0 => Err(self.explain_failure(error.into())),
            _ => Ok(len),
        }
    }

    /// Tells the sender that everything is delivered.
    fn finish(mut self) -> Result<u64, PipeError> {
        let mut word = vec![DELIVERED];
        word.extend_from_slice(&self.bytes.to_le_bytes());
        // The stream is delivered even if the sender is gone and cannot be told.
        let _ = self.receiver.waiter().control.send_control(&word);
        Ok(self.bytes)
    }

    fn failed(&mut self, error: io::Error) -> PipeError {
        send_failure(
            self.receiver.waiter(),
            &format!("writing its output: {error}"),
        );
        PipeError::io("writing the output")(error)
    }

    /// Explains why a wait failed, by the other side's reason if it sent one.
    fn explain_failure(&mut self, error: BlockingError) -> PipeError {
        explain(self.receiver.waiter(), self.bytes, error)
    }
}

/// Failure to write a piece.
enum WriteError {
    Sink(io::Error),
    Wait(BlockingError),
}

/// Writes all of `bytes`. While the sink accepts nothing, watches for interrupts and for the sender. The
/// sender waits for our confirmation, so a sender that sends a message or leaves before it has given up.
fn write_all(
    sink: &impl AsFd,
    polls: bool,
    mut bytes: &[u8],
    waiter: &mut EndWaiter,
) -> Result<(), WriteError> {
    while !bytes.is_empty() {
        while polls && !ready(sink, PollFlags::OUT) {
            if waiter.line_ended || !waiter.line_messages.is_empty() {
                return Err(WriteError::Wait(BlockingError::PeerGone));
            }
            waiter
                .wait_fd(sink, PollFlags::OUT)
                .map_err(WriteError::Wait)?;
        }
        let written = if polls {
            write_some(sink, bytes)
        } else {
            rustix::io::write(sink, bytes)
        };
        match written {
            Ok(0) => return Err(WriteError::Sink(io::ErrorKind::WriteZero.into())),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if polls => {}
            Err(error) => return Err(WriteError::Sink(error.into())),
        }
    }
    Ok(())
}

/// Writes as much as a sink that polled writable accepts at once. A plain write of more than that would block
/// in the kernel, where it notices neither interrupts nor the sender. The descriptor cannot be made
/// non-blocking: that setting is shared with the process that opened it.
fn write_some(sink: &impl AsFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    /// Offset that stands for the file's own position, if it has one.
    const HERE: u64 = u64::MAX;
    match pwritev2(sink, &[IoSlice::new(bytes)], HERE, ReadWriteFlags::NOWAIT) {
        // NOWAIT is not supported for this file or by this kernel. A writable pipe has room for this little.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => {
            rustix::io::write(sink, &bytes[..bytes.len().min(PIPE_BUF)])
        }
        written => written,
    }
}

/// Whether a descriptor is ready now. One that cannot be polled counts as ready: its use reports the error.
pub(super) fn ready(fd: &impl AsFd, events: PollFlags) -> bool {
    let mut polled = [PollFd::new(fd, events)];
    let now = Timespec::default();
    !matches!(poll(&mut polled, Some(&now)), Ok(0) | Err(Errno::INTR))
}

/// Explains a failed wait, after waiting a moment for the other side's reason.
fn explain(waiter: &mut EndWaiter, bytes: u64, error: BlockingError) -> PipeError {
    let error = unless_port_failed(waiter, error);
    await_failure_reason(waiter, &error);
    reported_error(waiter, bytes, error)
}

/// Returns `error`; if the ring is broken, something has happened to the port, and the other side has not said why, that instead.
fn unless_port_failed(waiter: &mut EndWaiter, error: BlockingError) -> BlockingError {
    match error {
        BlockingError::PeerGone | BlockingError::Broken(_) => {
            let _ = waiter.drain_line();
            let known = |message: &Vec<u8>| {
                message.split_first() != Some((&FAILED, RING_BROKEN.as_bytes()))
            };
            match waiter
                .line_messages
                .front()
                .is_none_or(|message| !known(message))
            {
                true => waiter.port_failure().map_or(error, BlockingError::Port),
                false => error,
            }
        }
        error => error,
    }
}

/// If the ring is broken, waits a moment for the other side's reason.
fn await_failure_reason(waiter: &mut EndWaiter, error: &BlockingError) {
    // When the peer leaves, its ring breaks in one of many ways; the control stream tells why it left. If the ring
    // broke here, the other side waits for our reason.
    match error {
        BlockingError::Port(why) => {
            let why = format!("{}: {why}", waiter.device_name());
            send_failure(waiter, &why);
            // A receiver that has everything may have said so before.
            let _ = waiter.drain_line();
            return;
        }
        BlockingError::Broken(why) => send_failure(waiter, &why.to_string()),
        BlockingError::PeerGone => send_failure(waiter, RING_BROKEN),
        _ => return,
    }
    waiter.deadline = Some(clock::now() + FAILURE_REASON_TIMEOUT);
    while waiter.line_messages.is_empty() && !waiter.line_ended {
        if waiter.wait_line().is_err() {
            break;
        }
    }
    // The other side may have sent its reason before it left.
    let _ = waiter.drain_line();
}

/// Returns the error for a failed wait: the other side's reason if it sent one.
fn reported_error(waiter: &mut EndWaiter, bytes: u64, error: BlockingError) -> PipeError {
    if matches!(error, BlockingError::PeerGone | BlockingError::Broken(_)) {
        if let Some(message) = waiter.line_messages.pop_front() {
            return reason(&message);
        }
        if waiter.line_ended {
            return PipeError::PeerGone { delivered: bytes };
        }
    }
    match error {
        BlockingError::PeerGone => return PipeError::Cut { delivered: bytes },
        BlockingError::Port(why) => {
            return PipeError::Port {
                device: waiter.device_name(),
                why,
                delivered: bytes,
            };
        }
        _ => {}
    }
    let error = PipeError::waiting(bytes)(error);
    if matches!(error, PipeError::Interrupted) {
        send_failure(waiter, "interrupted");
    }
    error
}

/// Tells the other side why this one stops, if it still listens.
fn send_failure(waiter: &mut EndWaiter, why: &str) {
    let mut word = vec![FAILED];
    word.extend_from_slice(&why.as_bytes()[..why.len().min(REASON_MAX)]);
    let _ = waiter.control.send_control(&word);
}

fn reason(message: &[u8]) -> PipeError {
    match message.split_first() {
        Some((&FAILED, text)) if text.len() <= REASON_MAX => {
            let text = String::from_utf8_lossy(text);
            PipeError::PeerFailed(text.chars().filter(|c| !c.is_control()).collect())
        }
        _ => PipeError::Protocol("an unknown control message"),
    }
}
