//! The store: one thread for all connections, which sleeps in poll(2) while no request arrives.

use std::collections::HashMap;

use headworks::net::Interrupt;
use headworks::service::{Listener, Service, ServiceError, Stream};
use headworks_examples::program::{Outcome, say};
use headworks_examples::service_program::check_interrupt;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::wire::{Operation, REQUEST, Request, answer};

/// Most connections waiting to be accepted.
const BACKLOG: u32 = 1024;
/// Bytes of answers waiting to be sent at which the server stops reading requests of that client.
const ANSWERS_MAX: usize = 1 << 20;
/// Most bytes received by one call.
const PIECE: usize = 256 << 10;

type Records = HashMap<u64, Vec<u8>>;

/// Serves at a port until Ctrl-C.
pub(crate) fn serve(service: &Service, port: u16, interrupt: &Interrupt) -> Outcome {
    let mut listener = service.listen(port, BACKLOG)?;
    say(format!("serving at port {}\n", listener.port()).as_bytes())?;
    let mut records = Records::new();
    let mut clients = Vec::new();
    let mut piece = vec![0; PIECE];
    loop {
        let ready = wait(&mut listener, &mut clients, interrupt)?;
        let mut ready = ready.into_iter();
        // A connection that fails is closed; the others continue.
        clients.retain_mut(|client| {
            let is_ready = ready.next() == Some(true);
            !is_ready || client.serve(&mut records, &mut piece).unwrap_or(false)
        });
        while let Some(mut stream) = listener.try_accept()? {
            stream.set_nonblocking(true);
            clients.push(Client::new(stream));
        }
    }
}

/// Sleeps until there is work, and returns which clients are ready.
fn wait(
    listener: &mut Listener,
    clients: &mut [Client],
    interrupt: &Interrupt,
) -> Outcome<Vec<bool>> {
    let mut fds = vec![
        PollFd::new(interrupt, PollFlags::IN),
        PollFd::from_borrowed_fd(listener.fd()?, PollFlags::IN),
    ];
    for client in clients {
        let flags = client.awaited();
        fds.push(PollFd::from_borrowed_fd(client.stream.fd()?, flags));
    }
    while poll(&mut fds, None) == Err(Errno::INTR) {}
    check_interrupt(interrupt)?;
    let clients = fds.iter().skip(2);
    Ok(clients.map(|fd| !fd.revents().is_empty()).collect())
}

/// A connection.
struct Client {
    stream: Stream,
    /// Received bytes. The first `done` are processed.
    requests: Vec<u8>,
    done: usize,
    /// Answers to send. The first `sent` bytes are sent.
    answers: Vec<u8>,
    sent: usize,
    has_ended: bool,
}

impl Client {
    fn new(stream: Stream) -> Self {
        Self {
            stream,
            requests: Vec::new(),
            done: 0,
            answers: Vec::new(),
            sent: 0,
            has_ended: false,
        }
    }

    /// The events that the connection waits for.
    fn awaited(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.is_full() && !self.has_ended);
        flags.set(PollFlags::OUT, self.sent < self.answers.len());
        flags
    }

    fn is_full(&self) -> bool {
        self.answers.len() - self.sent >= ANSWERS_MAX
    }

    /// Does all work possible now. Returns `false` if the connection has ended or sent an invalid request.
    fn serve(&mut self, records: &mut Records, piece: &mut [u8]) -> Result<bool, ServiceError> {
        loop {
            while !self.is_full() {
                match self.answer_next(records) {
                    Some(true) => {}
                    Some(false) => break,
                    None => return Ok(false),
                }
            }
            let was_full = self.is_full();
            self.flush()?;
            if self.is_full() {
                return Ok(true);
            }
            if was_full {
                continue;
            }
            match self.stream.recv(piece) {
                Ok(0) => {
                    self.has_ended = true;
                    return Ok(!self.answers.is_empty());
                }
                Ok(len) => self.requests.extend_from_slice(&piece[..len]),
                Err(ServiceError::WouldBlock) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers the next request. Returns `false` if it is incomplete, and `None` if it is invalid.
    fn answer_next(&mut self, records: &mut Records) -> Option<bool> {
        let rest = &self.requests[self.done..];
        let Some(head) = rest.first_chunk::<REQUEST>() else {
            self.forget_done();
            return Some(false);
        };
        let request = Request::decode(head)?;
        let end = REQUEST + request.len;
        let Some(value) = rest.get(REQUEST..end) else {
            self.forget_done();
            return Some(false);
        };
        let mut say = |was_there, value: &[u8]| {
            let head = answer(was_there, value.len());
            self.answers.extend_from_slice(&head);
            self.answers.extend_from_slice(value);
        };
        match request.operation {
            Operation::Get => match records.get(&request.key) {
                Some(value) => say(true, value),
                None => say(false, &[]),
            },
            Operation::Set => say(records.insert(request.key, value.to_vec()).is_some(), &[]),
            Operation::Delete => say(records.remove(&request.key).is_some(), &[]),
        }
        self.done += end;
        Some(true)
    }

    fn forget_done(&mut self) {
        self.requests.drain(..self.done);
        self.done = 0;
    }

    /// Sends as many bytes of answers as there is room for.
    fn flush(&mut self) -> Result<(), ServiceError> {
        while self.sent < self.answers.len() {
            match self.stream.send(&self.answers[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(ServiceError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.answers.clear();
        self.sent = 0;
        Ok(())
    }
}
