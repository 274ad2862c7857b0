//! The ends of a connection, for each way that its bytes can take.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::STUCK;
use headworks::service::{
    Export, Reader, Rights, Service, ServiceError, SharedMemory, Stream, Transfer, Writer,
};

/// The call by which bytes are received. TCP has only the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveBy {
    /// `recv`, which does not wait.
    Recv,
    /// `recv`, which waits.
    WaitingRecv,
    /// `peek`, and `consume`.
    Peek,
    /// `recv_chunk`, which may receive more than asked for.
    Chunk,
}

/// A change of the handles by which a connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Makes another handle, and uses that one from now on.
    Clone,
    /// Drops all handles but the latest one.
    DropOthers,
    /// Splits the latest handle, and drops all others.
    Split,
}

/// One end of a connection. Calls do not wait, except those with a time limit.
pub(super) trait End {
    fn send(&mut self, bytes: &[u8], transfer: Transfer) -> io::Result<usize>;
    fn send_within(&mut self, limit: Duration, bytes: &[u8]) -> io::Result<usize>;
    /// Receives `most` bytes at most, and more only by [`ReceiveBy::Chunk`]. Returns none at the end of the stream.
    fn receive(&mut self, most: usize, by: ReceiveBy) -> io::Result<Vec<u8>>;
    fn receive_within(&mut self, limit: Duration, most: usize) -> io::Result<Vec<u8>>;
    /// Returns bytes that can be received, and does not consume them.
    fn peek(&mut self, most: usize) -> io::Result<Vec<u8>>;
    fn end(&mut self) -> io::Result<()>;
    fn change(&mut self, change: Change) -> io::Result<()>;
    /// This end, if it is one of the service.
    fn of_service(&mut self) -> Option<&mut ServiceEnd> {
        None
    }
}

/// An end of a connection of the service.
pub(super) struct ServiceEnd {
    service: Service,
    handles: Handles,
}

enum Handles {
    /// The last handle is used.
    Whole(Vec<Stream>),
    Halves(Box<(Reader, Writer)>),
}

/// Calls a method that streams and writers have.
macro_rules! writer {
    ($end:expr, $writer:ident => $call:expr) => {
        match &mut $end.handles {
            Handles::Whole(streams) => {
                let $writer = streams.last_mut().expect("a handle");
                $call
            }
            Handles::Halves(halves) => {
                let $writer = &mut halves.1;
                $call
            }
        }
    };
}

/// Calls a method that streams and readers have.
macro_rules! reader {
    ($end:expr, $reader:ident => $call:expr) => {
        match &mut $end.handles {
            Handles::Whole(streams) => {
                let $reader = streams.last_mut().expect("a handle");
                $call
            }
            Handles::Halves(halves) => {
                let $reader = &mut halves.0;
                $call
            }
        }
    };
}

impl ServiceEnd {
    pub(super) fn new(service: &Service, mut stream: Stream) -> Self {
        stream.set_nonblocking(true);
        Self {
            service: service.clone(),
            handles: Handles::Whole(vec![stream]),
        }
    }

    /// The stream, unless it was split.
    fn whole(&mut self) -> Option<&mut Stream> {
        match &mut self.handles {
            Handles::Whole(streams) => streams.last_mut(),
            Handles::Halves(..) => None,
        }
    }

    /// Whether the end was not split, so that it has the calls for remote memory.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.handles, Handles::Whole(_))
    }

    /// Lends a copy of `bytes`. Calls `without_room` while there is no room, and until the memory is returned.
    pub(super) fn lend(
        &mut self,
        bytes: &[u8],
        mut without_room: impl FnMut(),
    ) -> Result<(), ServiceError> {
        let mut memory = self.service.alloc(bytes.len() as u32)?;
        memory.copy_from_slice(bytes);
        let mut memory = Some(memory);
        let loan = loop {
            match writer!(self, writer => writer.lend_from(&mut memory, bytes.len())) {
                Err(ServiceError::WouldBlock) => without_room(),
                lent => break lent,
            }
        };
        let mut loan = loan?;
        loop {
            match writer!(self, writer => writer.reclaim(loan)) {
                Ok(_) => return Ok(()),
                Err(again) if matches!(again.error, ServiceError::WouldBlock) => {
                    loan = again.loan;
                    without_room();
                }
                Err(failed) => return Err(failed.error),
            }
        }
    }

    fn waiting<T>(&mut self, call: impl FnOnce(&Service, &mut Stream) -> T) -> T {
        let service = self.service.clone();
        let stream = self.whole().expect("not split");
        stream.set_nonblocking(false);
        stream.set_read_timeout(Some(STUCK));
        stream.set_write_timeout(Some(STUCK));
        let done = call(&service, stream);
        stream.set_nonblocking(true);
        done
    }

    /// Exports memory.
    pub(super) fn export(&mut self, rights: Rights) -> Result<Export, ServiceError> {
        self.waiting(|service, stream| {
            let mut memory = service.alloc(4096)?;
            memory.fill(0);
            stream.export(memory, rights)
        })
    }

    /// Takes exported memory back.
    pub(super) fn revoke(&mut self, export: Export) -> Result<SharedMemory, ServiceError> {
        self.waiting(|_, stream| stream.revoke(export).map_err(|failed| failed.error))
    }

    /// Writes `word` at offset `at` of the other end's memory, adds 1 to it, and reads it. Returns it.
    pub(super) fn count(&mut self, export: u32, at: u64, word: u64) -> Result<u64, ServiceError> {
        self.waiting(|service, stream| {
            let mut memory = service.alloc(8)?;
            memory.copy_from_slice(&word.to_le_bytes());
            let memory = stream.write_to(export, at, memory)?;
            assert_eq!(stream.fetch_add(export, at, 1)?, word, "what was written");
            let memory = stream.read_from(export, at, memory)?;
            Ok(u64::from_le_bytes(
                memory[..8].try_into().expect("eight bytes"),
            ))
        })
    }
}

impl End for ServiceEnd {
    fn send(&mut self, bytes: &[u8], transfer: Transfer) -> io::Result<usize> {
        Ok(writer!(self, writer => writer.send_as(bytes, transfer))?)
    }

    fn send_within(&mut self, limit: Duration, bytes: &[u8]) -> io::Result<usize> {
        writer!(self, writer => {
            writer.set_nonblocking(false);
            writer.set_write_timeout(Some(limit));
            let sent = writer.send(bytes);
            writer.set_nonblocking(true);
            Ok(sent?)
        })
    }

    fn receive(&mut self, most: usize, by: ReceiveBy) -> io::Result<Vec<u8>> {
        match by {
            ReceiveBy::WaitingRecv => self.receive_within(STUCK, most),
            ReceiveBy::Recv => {
                let mut bytes = vec![0; most];
                let len = reader!(self, reader => reader.recv(&mut bytes))?;
                bytes.truncate(len);
                Ok(bytes)
            }
            ReceiveBy::Peek => reader!(self, reader => {
                let peeked = reader.peek()?;
                let bytes = peeked[..peeked.len().min(most)].to_vec();
                peeked.consume(bytes.len())?;
                Ok(bytes)
            }),
            ReceiveBy::Chunk => Ok(reader!(self, reader => reader.recv_chunk())?.to_vec()),
        }
    }

    fn receive_within(&mut self, limit: Duration, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; most];
        let len = reader!(self, reader => {
            reader.set_nonblocking(false);
            reader.set_read_timeout(Some(limit));
            let received = reader.recv(&mut bytes);
            reader.set_nonblocking(true);
            received
        })?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn peek(&mut self, most: usize) -> io::Result<Vec<u8>> {
        reader!(self, reader => {
            let peeked = reader.peek()?;
            Ok(peeked[..peeked.len().min(most)].to_vec())
        })
    }

    fn end(&mut self) -> io::Result<()> {
        Ok(writer!(self, writer => writer.end())?)
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        let Handles::Whole(streams) = &mut self.handles else {
            return Ok(());
        };
        match change {
            Change::Clone => {
                let another = streams.last_mut().expect("a handle").try_clone()?;
                streams.push(another);
            }
            Change::DropOthers => drop(streams.drain(..streams.len() - 1)),
            Change::Split => {
                let halves = streams.pop().expect("a handle").split();
                self.handles = Handles::Halves(Box::new(halves));
            }
        }
        Ok(())
    }

    fn of_service(&mut self) -> Option<&mut ServiceEnd> {
        Some(self)
    }
}

/// An end of a connection of kernel TCP. The last handle is used.
pub(super) struct TcpEnd(Vec<TcpStream>);

impl TcpEnd {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self(vec![stream]))
    }

    fn latest(&mut self) -> &mut TcpStream {
        self.0.last_mut().expect("a handle")
    }
}

impl End for TcpEnd {
    fn send(&mut self, bytes: &[u8], _: Transfer) -> io::Result<usize> {
        self.latest().write(bytes)
    }

    fn send_within(&mut self, limit: Duration, bytes: &[u8]) -> io::Result<usize> {
        let stream = self.latest();
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(limit))?;
        let sent = stream.write(bytes);
        stream.set_nonblocking(true)?;
        sent
    }

    fn receive(&mut self, most: usize, by: ReceiveBy) -> io::Result<Vec<u8>> {
        if by == ReceiveBy::WaitingRecv {
            return self.receive_within(STUCK, most);
        }
        let mut bytes = vec![0; most];
        let len = self.latest().read(&mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn receive_within(&mut self, limit: Duration, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; most];
        let stream = self.latest();
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(limit))?;
        let received = stream.read(&mut bytes);
        stream.set_nonblocking(true)?;
        bytes.truncate(received?);
        Ok(bytes)
    }

    fn peek(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; most];
        let len = self.latest().peek(&mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn end(&mut self) -> io::Result<()> {
        self.latest().shutdown(Shutdown::Write)
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        let streams = &mut self.0;
        match change {
            Change::Clone | Change::Split => {
                let another = streams.last_mut().expect("a handle").try_clone()?;
                streams.push(another);
            }
            Change::DropOthers => drop(streams.drain(..streams.len() - 1)),
        }
        Ok(())
    }
}
