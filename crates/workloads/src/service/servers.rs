//! Applications that serve requests. The first byte that a client sends says what the connection is for.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use headworks::service::{Export, Rights, Service, ServiceError, Stream};
use rustix::event::{PollFd, PollFlags, poll};

use super::Result;
use super::control::reply;
use super::controlled_app::AppReply;

/// First byte sent over a connection: what the connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ConnectionPurpose {
    /// The server echoes everything. It waits as streams do by default.
    Echo = b'e',
    /// The server echoes everything from a thread that sleeps in poll(2) whenever no data is there.
    EchoAsleep = b'a',
    /// The server discards everything. The next eight bytes give a number N: it answers one byte for every N
    /// received. It reads the first byte of each piece of data in place.
    Sink = b's',
    /// The next eight bytes give a size. The server exports that much memory and sends back the
    /// export id, four bytes.
    WriteExport = b'w',
}

/// Serves until the process is killed.
pub(super) fn serve(socket: &Path, port: u16) -> Result<()> {
    let service = Service::attach(socket, "experiment")?;
    let listener = service.listen(port, 16_384)?;
    reply(&AppReply::Ready)?;
    let mut held = Vec::new();
    loop {
        let mut stream = listener.accept()?;
        let mut wish = [0];
        // A client that only checks whether the application is there sends nothing.
        if !matches!(stream.recv(&mut wish), Ok(1)) {
            continue;
        }
        if wish[0] == ConnectionPurpose::WriteExport as u8 {
            // There are many such connections, and they need no thread. First revoke the memory of peers that
            // are gone.
            held = held.into_iter().filter_map(still_held).collect();
            if let Ok(export) = export(&service, &mut stream) {
                stream.set_nonblocking(true);
                held.push((stream, export));
            }
            continue;
        }
        let name = "experiment-serve".to_owned();
        thread::Builder::new().name(name).spawn(move || {
            // The thread ends when its client disconnects.
            match wish[0] {
                b'a' => {
                    drop(WaitingStream::asleep(stream).and_then(|mut stream| echo(&mut stream)))
                }
                b's' => drop(sink(&mut stream)),
                _ => drop(echo(&mut stream)),
            }
        })?;
    }
}

fn echo(stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..len])?;
    }
}

fn number(stream: &mut Stream) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn sink(stream: &mut Stream) -> std::io::Result<()> {
    let each = number(stream)?;
    let (mut came, mut answered) = (0, 0);
    loop {
        let peeked = stream.peek()?;
        let len = peeked.len();
        if len == 0 {
            return Ok(());
        }
        std::hint::black_box(peeked.first());
        peeked.consume(len)?;
        came += len as u64;
        while came / each > answered {
            stream.send_all(&[0])?;
            answered += 1;
        }
    }
}

/// Keeps a connection whose peer is still there; else revokes its memory and drops it.
fn still_held((mut stream, export): (Stream, Export)) -> Option<(Stream, Export)> {
    match stream.recv(&mut [0]) {
        Err(ServiceError::WouldBlock) => Some((stream, export)),
        _ => {
            stream.set_nonblocking(false);
            drop(stream.revoke(export));
            None
        }
    }
}

fn export(service: &Service, stream: &mut Stream) -> std::io::Result<Export> {
    let mut memory = service.alloc(number(stream)? as u32)?;
    memory.fill(0);
    let export = stream.export(memory, Rights::ALL)?;
    stream.send_all(&export.id().to_le_bytes())?;
    Ok(export)
}

/// Echoes everything over TCP until the process is killed. If a client's first byte is [`SPINNING`], its
/// thread spins.
pub(super) fn serve_tcp() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    reply(&listener.local_addr()?.port())?;
    loop {
        let (mut stream, _) = listener.accept()?;
        let serve = move || {
            let mut wish = [0];
            stream.set_nodelay(true)?;
            stream.read_exact(&mut wish)?;
            match wish[0] {
                SPINNING => echo(&mut WaitingStream::spinning(stream)?),
                _ => echo(&mut stream),
            }
        };
        // The thread ends when its client disconnects.
        thread::spawn(move || drop(serve()));
    }
}

/// First byte over TCP that asks for an answering thread that spins.
pub(super) const SPINNING: u8 = b'!';

/// A nonblocking stream. A call that would block waits with `wait` and tries again.
pub(super) struct WaitingStream<S> {
    stream: S,
    wait: fn(&mut S, PollFlags) -> std::io::Result<()>,
}

impl WaitingStream<Stream> {
    /// Makes a stream that waits by sleeping in poll(2).
    pub(super) fn asleep(mut stream: Stream) -> std::io::Result<Self> {
        stream.fd()?;
        stream.set_nonblocking(true);
        let wait = |stream: &mut Stream, flags| {
            poll(&mut [PollFd::from_borrowed_fd(stream.fd()?, flags)], None)?;
            Ok(())
        };
        Ok(Self { stream, wait })
    }
}

impl WaitingStream<TcpStream> {
    /// Makes a stream that tries again at once.
    pub(super) fn spinning(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let wait = |_: &mut TcpStream, _| Ok(());
        Ok(Self { stream, wait })
    }
}

impl<S> WaitingStream<S> {
    fn until_done<T>(
        &mut self,
        flags: PollFlags,
        mut act: impl FnMut(&mut S) -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        loop {
            match act(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    (self.wait)(&mut self.stream, flags)?;
                }
                done => return done,
            }
        }
    }
}

impl<S: Read> Read for WaitingStream<S> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.until_done(PollFlags::IN, |stream| stream.read(into))
    }
}

impl<S: Write> Write for WaitingStream<S> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.until_done(PollFlags::OUT, |stream| stream.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
