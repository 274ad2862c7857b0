//! Programs of calls, and how they are played: one thread makes the calls of both ends in turn.
//!
//! Whether a call has to wait is no difference between two ways, nor how many bytes one call sends or receives. So a step is
//! repeated until it is complete. While it has no room, the other end receives what has arrived, and keeps it. Whether something
//! is due (bytes, the end of the stream, a reset) follows from the steps before; if nothing is, a call must say so at once.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use headworks::service::{Rights, ServiceError, Transfer};
use proptest::prelude::*;

use super::STUCK;
use super::ends::{Change, End, ReceiveBy};

/// A step of one end.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Sends so many bytes.
    Send(usize, Transfer),
    /// Sends so many bytes from lent memory. Over TCP, sends them.
    Lend(usize),
    /// Sends pieces of this length until there is no room, which the call says at once or after a time limit. The other end then
    /// receives everything.
    Fill { piece: usize, by_limit: bool },
    /// Receives so many bytes, or all that were sent if they are fewer, by calls that receive `piece` bytes at most.
    Receive {
        len: usize,
        piece: usize,
        by: ReceiveBy,
    },
    /// Looks at bytes and leaves them.
    Peek,
    /// Receives with a time limit while nothing is there.
    TimeOut,
    /// Ends the stream to the other end.
    End,
    /// Changes the handles.
    Change(Change),
    /// Counts in memory of the other end.
    Count,
    /// Closes the connection. The other end then receives the rest and sends until that fails, or the other way round.
    Close {
        /// Whether received bytes are left unread.
        is_unread: bool,
        /// Whether the other end sends first.
        is_sent_first: bool,
    },
}

/// A program for a connection.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Whether both ends are of one session.
    pub(super) is_one_session: bool,
    /// Bytes that are sent before the connection is accepted.
    pub(super) early: usize,
    /// The steps, each of one of the two ends.
    pub(super) steps: Vec<(usize, Step)>,
}

/// Lengths of what is sent at once: mostly short, sometimes longer than all that is in line.
fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0usize),
        6 => 1usize..300,
        3 => 300usize..5_000,
        2 => 5_000usize..70_000,
        1 => 70_000usize..300_000,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let transfer = prop_oneof![
        3 => Just(Transfer::Any),
        1 => Just(Transfer::Send),
        1 => Just(Transfer::Read),
    ];
    let by = prop_oneof![
        4 => Just(ReceiveBy::Recv),
        1 => Just(ReceiveBy::WaitingRecv),
        2 => Just(ReceiveBy::Peek),
        2 => Just(ReceiveBy::Chunk),
    ];
    let piece = prop_oneof![1usize..100, 100usize..10_000, Just(1 << 16)];
    let change = prop_oneof![
        3 => Just(Change::Clone),
        2 => Just(Change::DropOthers),
        1 => Just(Change::Split),
    ];
    prop_oneof![
        12 => (len(), transfer).prop_map(|(len, transfer)| Step::Send(len, transfer)),
        3 => (1usize..100_000).prop_map(Step::Lend),
        1 => (prop_oneof![1_000usize..5_000, 10_000usize..100_000], any::<bool>())
            .prop_map(|(piece, by_limit)| Step::Fill { piece, by_limit }),
        12 => (len(), piece, by).prop_map(|(len, piece, by)| Step::Receive { len, piece, by }),
        4 => Just(Step::Peek),
        2 => Just(Step::TimeOut),
        1 => Just(Step::End),
        2 => change.prop_map(Step::Change),
        2 => Just(Step::Count),
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(is_unread, is_sent_first)| Step::Close { is_unread, is_sent_first }),
    ]
}

pub(super) fn program() -> impl Strategy<Value = Program> {
    let early = prop_oneof![2 => Just(0usize), 1 => 1usize..1_000];
    let steps = proptest::collection::vec((0usize..2, step()), 1..40);
    (any::<bool>(), early, steps).prop_map(|(is_one_session, early, steps)| Program {
        is_one_session,
        early,
        steps,
    })
}

/// The call that an outcome is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Send,
    Fill,
    Receive,
    /// Receiving into no memory.
    ReceiveNothing,
    Peek,
    TimeOut,
    End,
    Change,
    Remote,
    /// Receiving after the other end has closed the connection.
    ReceiveRest {
        is_unread: bool,
        is_sent_first: bool,
    },
    /// Sending until it fails, after the other end has closed the connection.
    SendInVain,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The step did its work with so many bytes.
    Done(usize),
    /// The stream ended after so many bytes.
    Ended(usize),
    /// A call failed after so many bytes. The text is that of the service.
    Failed(usize, ErrorKind, String),
    /// The call made no progress although bytes, an end or room was due.
    Stuck(usize),
    /// The step has no effect in this state.
    Skipped,
}

impl Outcome {
    fn failed(len: usize, error: io::Error) -> Self {
        Self::Failed(len, error.kind(), error.to_string())
    }

    fn of_service(result: Result<usize, ServiceError>) -> Self {
        match result {
            Ok(len) => Self::Done(len),
            Err(error) => Self::failed(0, error.into()),
        }
    }
}

/// A call of a played program, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Played {
    /// Index of the step.
    pub(super) step: usize,
    pub(super) call: Call,
    /// Whether an end of the connection is closed.
    pub(super) is_after_close: bool,
    /// Whether bytes may have reached an end while it closed the connection, after it had received everything else. Whether it
    /// has left them unread then depends on the moment at which they arrived.
    pub(super) has_crossed: bool,
    pub(super) outcome: Outcome,
}

/// Repeats a call until it returns something else than that it would have to wait.
fn settled<T>(mut call: impl FnMut() -> io::Result<T>) -> Option<io::Result<T>> {
    let began = Instant::now();
    while began.elapsed() < STUCK {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            settled => return Some(settled),
        }
    }
    None
}

/// State of one end.
struct Side {
    /// `None` once it is closed.
    end: Option<Box<dyn End>>,
    /// Bytes that the other end has sent and this one has not received.
    coming: VecDeque<u8>,
    /// Number of bytes that were received to make room, before a step asked for them.
    kept: usize,
    is_ended: bool,
}

impl Side {
    /// Receives something, and checks that it was sent. Returns the number of bytes, 0 at the end of the stream.
    fn receive(&mut self, most: usize, by: ReceiveBy) -> io::Result<usize> {
        let end = self.end.as_mut().expect("open");
        let bytes = end.receive(most, by)?;
        self.take(&bytes);
        Ok(bytes.len())
    }

    fn take(&mut self, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.coming.len(),
            "{} bytes arrived, of {}",
            bytes.len(),
            self.coming.len()
        );
        let is_right = self.coming.drain(..bytes.len()).eq(bytes.iter().copied());
        assert!(is_right, "other bytes arrived");
    }

    /// Receives everything that is coming.
    fn drain(&mut self) -> Outcome {
        let mut len = std::mem::take(&mut self.kept);
        while !self.coming.is_empty() {
            match settled(|| self.receive(1 << 16, ReceiveBy::Recv)) {
                None => return Outcome::Stuck(len),
                Some(Ok(0)) => return Outcome::Ended(len),
                Some(Ok(some)) => len += some,
                Some(Err(error)) => return Outcome::failed(len, error),
            }
        }
        Outcome::Done(len)
    }

    /// Receives what is there, to make room.
    fn make_room(&mut self) {
        if self.end.is_some()
            && !self.coming.is_empty()
            && let Ok(len) = self.receive(1 << 16, ReceiveBy::Recv)
        {
            self.kept += len;
        }
        std::thread::yield_now();
    }
}

/// Plays a program on a connection.
pub(super) struct Player {
    sides: [Side; 2],
    /// Number of the next piece that is sent.
    piece: u8,
    has_crossed: bool,
    played: Vec<Played>,
}

impl Player {
    /// Starts with a connection on which the first end has sent `early` bytes, whose content is that of
    /// [`content`](Self::content) for the first piece.
    pub(super) fn new(ends: [Box<dyn End>; 2], early: &[u8]) -> Self {
        let mut sides = ends.map(|end| Side {
            end: Some(end),
            coming: VecDeque::new(),
            kept: 0,
            is_ended: false,
        });
        sides[1].coming.extend(early);
        Self {
            sides,
            piece: 1,
            has_crossed: false,
            played: Vec::new(),
        }
    }

    /// Bytes of a piece, which differ from those of the pieces around it.
    pub(super) fn content(piece: u8, len: usize) -> Vec<u8> {
        let at = |at: usize| piece.wrapping_mul(31).wrapping_add((at / 3) as u8);
        (0..len).map(at).collect()
    }

    fn next_piece(&mut self, len: usize) -> Vec<u8> {
        self.piece = self.piece.wrapping_add(1);
        Self::content(self.piece, len)
    }

    /// Plays the steps and returns the outcomes. At last, both ends receive everything.
    pub(super) fn play(mut self, steps: &[(usize, Step)]) -> Vec<Played> {
        for (at, (end, step)) in steps.iter().enumerate() {
            self.step(at, *end, step);
        }
        for end in 0..2 {
            if self.sides[end].end.is_some() {
                let outcome = self.sides[end].drain();
                self.log(steps.len(), Call::Receive, outcome);
            }
        }
        self.played
    }

    fn is_after_close(&self) -> bool {
        self.sides.iter().any(|side| side.end.is_none())
    }

    fn log(&mut self, step: usize, call: Call, outcome: Outcome) {
        let is_after_close = self.is_after_close();
        self.played.push(Played {
            step,
            call,
            is_after_close,
            has_crossed: self.has_crossed,
            outcome,
        });
    }

    /// This end, and the other one.
    fn both(&mut self, end: usize) -> (&mut Side, &mut Side) {
        let [near, far] = &mut self.sides;
        match end {
            0 => (near, far),
            _ => (far, near),
        }
    }

    fn step(&mut self, at: usize, end: usize, step: &Step) {
        if self.sides[end].end.is_none() {
            return self.log(at, Call::Change, Outcome::Skipped);
        }
        let (call, outcome) = match *step {
            Step::Send(len, transfer) => (Call::Send, self.send(end, len, transfer)),
            Step::Lend(len) => (Call::Send, self.lend(end, len)),
            Step::Fill { piece, by_limit } => (Call::Fill, self.fill(end, piece, by_limit)),
            Step::Receive { len: 0, .. } => (Call::ReceiveNothing, self.receive_nothing(end)),
            Step::Receive { len, piece, by } => (Call::Receive, self.receive(end, len, piece, by)),
            Step::Peek => (Call::Peek, self.peek(end)),
            Step::TimeOut => (Call::TimeOut, self.time_out(end)),
            Step::End => (Call::End, self.end(end)),
            Step::Change(change) => {
                let changed = self.open(end).change(change);
                let outcome = match changed {
                    Ok(()) => Outcome::Done(0),
                    Err(error) => Outcome::failed(0, error),
                };
                (Call::Change, outcome)
            }
            Step::Count => (Call::Remote, self.count(end)),
            Step::Close {
                is_unread,
                is_sent_first,
            } => return self.close(at, end, is_unread, is_sent_first),
        };
        self.log(at, call, outcome);
    }

    fn open(&mut self, end: usize) -> &mut dyn End {
        &mut **self.sides[end].end.as_mut().expect("open")
    }

    fn send(&mut self, end: usize, len: usize, transfer: Transfer) -> Outcome {
        let bytes = self.next_piece(len);
        let (near, far) = self.both(end);
        let began = Instant::now();
        let mut done = 0;
        loop {
            let sent = near
                .end
                .as_mut()
                .expect("open")
                .send(&bytes[done..], transfer);
            match sent {
                Ok(some) => {
                    if far.end.is_some() {
                        far.coming.extend(&bytes[done..done + some]);
                    }
                    done += some;
                    if done == len {
                        return Outcome::Done(len);
                    }
                    assert!(some > 0, "nothing was sent, and no error");
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => far.make_room(),
                Err(error) => return Outcome::failed(done, error),
            }
            if began.elapsed() > STUCK {
                return Outcome::Stuck(done);
            }
        }
    }

    fn lend(&mut self, end: usize, len: usize) -> Outcome {
        if self.open(end).of_service().is_none() {
            return self.send(end, len, Transfer::Any);
        }
        let bytes = self.next_piece(len);
        let (near, far) = self.both(end);
        let near = near.end.as_mut().expect("open").of_service();
        // Expected before they are sent, because they may be received before the memory is returned.
        let before = far.coming.len();
        if far.end.is_some() {
            far.coming.extend(&bytes);
        }
        let lent = near
            .expect("of the service")
            .lend(&bytes, || far.make_room());
        if lent.is_err() {
            far.coming.truncate(before);
        }
        Outcome::of_service(lent.map(|()| len))
    }

    fn fill(&mut self, end: usize, piece: usize, by_limit: bool) -> Outcome {
        let bytes = self.next_piece(piece);
        let (near, far) = self.both(end);
        let drained = match far.end {
            Some(_) => far.drain(),
            None => Outcome::Done(0),
        };
        if !matches!(drained, Outcome::Done(_)) {
            return drained;
        }
        let stream = near.end.as_mut().expect("open");
        let error = loop {
            let sent = match by_limit {
                true => stream.send_within(Duration::from_millis(1), &bytes),
                false => stream.send(&bytes, Transfer::Any),
            };
            match sent {
                Ok(some) if far.end.is_some() => far.coming.extend(&bytes[..some]),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        if far.end.is_some() {
            let drained = far.drain();
            if !matches!(drained, Outcome::Done(_)) {
                return drained;
            }
        }
        Outcome::failed(0, error)
    }

    /// Whether an end of the stream, or a reset, is due at an end that has received everything.
    fn is_over(&mut self, end: usize) -> bool {
        let (_, far) = self.both(end);
        far.is_ended || far.end.is_none()
    }

    fn receive_nothing(&mut self, end: usize) -> Outcome {
        match self.sides[end].receive(0, ReceiveBy::Recv) {
            Ok(len) => Outcome::Done(len),
            Err(error) => Outcome::failed(0, error),
        }
    }

    fn receive(&mut self, end: usize, len: usize, piece: usize, by: ReceiveBy) -> Outcome {
        let is_over = self.is_over(end);
        let side = &mut self.sides[end];
        let unread = side.kept + side.coming.len();
        if unread == 0 {
            let received = match is_over {
                true => settled(|| side.receive(piece, by)),
                // It would have to wait.
                false if by == ReceiveBy::WaitingRecv => return Outcome::Skipped,
                false => Some(side.receive(piece, by)),
            };
            return match received {
                None => Outcome::Stuck(0),
                Some(Ok(_)) => Outcome::Ended(0),
                Some(Err(error)) => Outcome::failed(0, error),
            };
        }
        let want = len.min(unread);
        let mut got = side.kept.min(want);
        side.kept -= got;
        while got < want {
            match settled(|| side.receive(piece.min(want - got), by)) {
                None => return Outcome::Stuck(got),
                Some(Ok(0)) => return Outcome::Ended(got),
                Some(Ok(some)) => got += some,
                Some(Err(error)) => return Outcome::failed(got, error),
            }
        }
        // A chunk may have more.
        side.kept += got - want;
        Outcome::Done(want)
    }

    fn peek(&mut self, end: usize) -> Outcome {
        let is_over = self.is_over(end);
        let side = &mut self.sides[end];
        let unread = side.kept + side.coming.len();
        let end = side.end.as_mut().expect("open");
        if unread > 0 && side.coming.is_empty() {
            // Everything was received to make room.
            return Outcome::Done(0);
        }
        let peeked = match unread > 0 || is_over {
            true => settled(|| end.peek(500)),
            false => Some(end.peek(500)),
        };
        match peeked {
            None => Outcome::Stuck(0),
            Some(Ok(bytes)) if bytes.is_empty() => Outcome::Ended(0),
            Some(Ok(bytes)) => {
                let coming = side.coming.iter().take(bytes.len());
                assert!(coming.eq(&bytes), "other bytes are shown");
                Outcome::Done(0)
            }
            Some(Err(error)) => Outcome::failed(0, error),
        }
    }

    fn time_out(&mut self, end: usize) -> Outcome {
        let is_over = self.is_over(end);
        let side = &mut self.sides[end];
        if side.kept + side.coming.len() > 0 || is_over {
            return Outcome::Skipped;
        }
        let end = side.end.as_mut().expect("open");
        match end.receive_within(Duration::from_millis(1), 10) {
            Ok(bytes) => Outcome::Done(bytes.len()),
            Err(error) => Outcome::failed(0, error),
        }
    }

    fn end(&mut self, end: usize) -> Outcome {
        let (near, far) = self.both(end);
        let began = Instant::now();
        while began.elapsed() < STUCK {
            match near.end.as_mut().expect("open").end() {
                Ok(()) => {
                    near.is_ended = true;
                    return Outcome::Done(0);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => far.make_room(),
                Err(error) => return Outcome::failed(0, error),
            }
        }
        Outcome::Stuck(0)
    }

    fn count(&mut self, end: usize) -> Outcome {
        let (near, far) = self.both(end);
        // An operation follows the bytes that were sent before, so these must be received.
        if far.end.is_some() {
            let drained = far.drain();
            if !matches!(drained, Outcome::Done(_)) {
                return drained;
            }
        }
        let has_calls = |side: &mut Side| {
            let end = side.end.as_mut();
            end.is_none_or(|end| end.of_service().is_some_and(|end| end.is_whole()))
        };
        if !has_calls(near) || !has_calls(far) {
            return Outcome::Skipped;
        }
        let near = near.end.as_mut().expect("open").of_service();
        let near = near.expect("of the service");
        let Some(far) = far.end.as_mut().and_then(|end| end.of_service()) else {
            return Outcome::of_service(near.count(1, 8, 5).map(|word| word as usize));
        };
        let export = match far.export(Rights::all()) {
            Ok(export) => export,
            Err(error) => return Outcome::of_service(Err(error)),
        };
        let counted = near.count(export.id(), 8, 41);
        let beyond = near.count(export.id(), 4096, 1).is_err();
        let revoked = far.revoke(export).map(|memory| memory[8]);
        let outcome = match (counted, revoked) {
            (Ok(word), Ok(byte)) => Ok((word + u64::from(byte) + u64::from(beyond)) as usize),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        Outcome::of_service(outcome)
    }

    fn close(&mut self, at: usize, end: usize, is_unread: bool, is_sent_first: bool) {
        let (near, far) = self.both(end);
        let is_last = far.end.is_none();
        let is_unread = match is_unread && !is_last && !far.is_ended {
            true => {
                let sent = self.send(end ^ 1, 1, Transfer::Any);
                if !matches!(sent, Outcome::Done(1)) {
                    return self.log(at, Call::Send, sent);
                }
                let end = self.open(end);
                // It must have arrived.
                match settled(|| end.peek(1)) {
                    Some(Ok(_)) => true,
                    None => return self.log(at, Call::Peek, Outcome::Stuck(0)),
                    Some(Err(error)) => {
                        return self.log(at, Call::Peek, Outcome::failed(0, error));
                    }
                }
            }
            false => {
                let drained = near.drain();
                self.log(at, Call::Receive, drained);
                false
            }
        };
        let (near, far) = self.both(end);
        (near.end, near.kept) = (None, 0);
        near.coming.clear();
        if far.end.is_none() {
            return;
        }
        self.has_crossed = is_sent_first && !is_unread && !far.is_ended;
        if is_sent_first {
            // Daemons tell of the close behind all bytes, so an end that receives nothing would not learn of it.
            let drained = self.sides[end ^ 1].drain();
            self.log(at, Call::Receive, drained);
            self.send_in_vain(at, end ^ 1);
        }
        let call = Call::ReceiveRest {
            is_unread,
            is_sent_first,
        };
        let side = &mut self.sides[end ^ 1];
        let mut rest = side.drain();
        if let Outcome::Done(len) = rest {
            rest = match settled(|| side.receive(1, ReceiveBy::Recv)) {
                None => Outcome::Stuck(len),
                Some(Ok(0)) => Outcome::Ended(len),
                Some(Ok(_)) => unreachable!("nothing more was sent"),
                Some(Err(error)) => Outcome::failed(len, error),
            };
        }
        // Bytes that have not arrived do not arrive any more.
        side.coming.clear();
        self.log(at, call, rest);
        if !is_sent_first {
            self.send_in_vain(at, end ^ 1);
        }
    }

    /// Sends to an end that is closed, until that fails.
    fn send_in_vain(&mut self, at: usize, end: usize) {
        let stream = self.open(end);
        let began = Instant::now();
        let outcome = loop {
            if began.elapsed() > STUCK {
                break Outcome::Stuck(0);
            }
            match stream.send(&[9], Transfer::Any) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    break Outcome::failed(0, error);
                }
                _ => std::thread::yield_now(),
            }
        };
        self.log(at, Call::SendInVain, outcome);
    }
}
