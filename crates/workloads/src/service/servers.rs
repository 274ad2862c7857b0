//! Applications that serve requests. The first byte that a client sends says what the connection is for.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use headworks::service::{Export, Interest, Poller, Rights, Service, ServiceError, Stream};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{listen, sockopt};

use super::control::reply;
use super::controlled_app::AppReply;
use super::echo::{Context, EchoSocket, echo_all};
use super::{Result, failed};

/// Number of connections that may wait to be accepted.
const BACKLOG: u32 = 4096;

/// First byte sent over a connection: what the connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ConnectionPurpose {
    /// The server echoes everything. It waits as streams do by default.
    Echo = b'e',
    /// The server echoes everything from a thread that sleeps in poll(2) whenever no data is there.
    EchoAsleep = b'a',
    /// The server discards everything. The next eight bytes give a number N: it answers one byte for every N
    /// received. It reads the first byte of each piece of data, which over the service is in place. The four bytes after
    /// N give the size of the kernel's buffers of a TCP connection; 0: the kernel chooses.
    Sink = b's',
    /// The next eight bytes give a size. The server exports that much memory and sends back the
    /// export id, four bytes.
    WriteExport = b'w',
    /// As [`Self::Echo`], from a thread that spins.
    EchoSpinning = b'!',
    /// The next bytes are a number that the client chose and the number of its connections, four bytes each. Once all
    /// of them are there, one thread echoes everything on them; it waits for all of them at once.
    EchoPolled = b'p',
    /// The server sends each message back once it is there as a whole. A message begins with its length, eight bytes.
    Messages = b'm',
    /// The first message, whose length is in the next four bytes, is sent back as a whole, this byte included. Then the
    /// server closes the connection.
    Once = b'o',
}

/// Bytes at the beginning of a message of [`ConnectionPurpose::Messages`].
pub(super) const MESSAGE_HEADER: usize = 8;
/// Longest message.
const MESSAGE_MAX: usize = 1 << 20;

/// Connections of clients that have not made all of theirs, by the number that the client chose.
type PolledStreams<S> = HashMap<u32, Vec<S>>;

/// Serves a connection as its first byte `purpose` says: here if that takes no longer than the first message, else
/// on a thread that ends with the connection.
fn serve_stream<S: EchoSocket + Send + 'static>(
    context: &Context<S>,
    mut stream: S,
    purpose: u8,
    polled: &mut PolledStreams<S>,
    otherwise: impl FnOnce(S) -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<()> {
    if purpose == ConnectionPurpose::Once as u8 {
        return once(&mut stream);
    }
    if purpose == ConnectionPurpose::EchoPolled as u8 {
        let (client, connections) = (number4(&mut stream)?, number4(&mut stream)?);
        let all = polled.entry(client).or_default();
        all.push(stream);
        if all.len() < connections as usize {
            return Ok(());
        }
        let all = polled.remove(&client).unwrap_or_default();
        let context = context.clone();
        return spawn(move || drop(echo_all(&context, all)));
    }
    spawn(move || {
        drop(match purpose {
            b'm' => messages(&mut stream),
            _ => otherwise(stream),
        });
    })
}

fn spawn(serve: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let named = thread::Builder::new().name("experiment-serve".to_owned());
    named.spawn(serve).map(drop)
}

fn number4(stream: &mut impl Read) -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn too_long() -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidData, "a message is too long or too short")
}

/// Answers the first message, whose first byte was received.
fn once(stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    let len = number4(stream)?;
    if !(5..=MESSAGE_MAX as u32).contains(&len) {
        return Err(too_long());
    }
    let mut message = vec![0; len as usize];
    message[0] = ConnectionPurpose::Once as u8;
    message[1..5].copy_from_slice(&len.to_le_bytes());
    stream.read_exact(&mut message[5..])?;
    stream.write_all(&message)
}

/// Sends each message back once it is there as a whole.
fn messages(stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    let mut buffer = vec![0; MESSAGE_MAX];
    let mut have = 0;
    loop {
        let got = stream.read(&mut buffer[have..])?;
        if got == 0 {
            return Ok(());
        }
        have += got;
        while let Some(header) = buffer[..have].first_chunk::<MESSAGE_HEADER>() {
            let len = u64::from_le_bytes(*header) as usize;
            if !(MESSAGE_HEADER..=MESSAGE_MAX).contains(&len) {
                return Err(too_long());
            }
            if have < len {
                break;
            }
            stream.write_all(&buffer[..len])?;
            buffer.copy_within(len..have, 0);
            have -= len;
        }
    }
}

/// Serves until the process is killed.
pub(super) fn serve(socket: &Path, port: u16) -> Result<()> {
    let service = Service::attach(socket, "experiment")?;
    let listener = service.listen(port, BACKLOG)?;
    reply(&AppReply::Ready)?;
    let mut held = Vec::new();
    let mut polled = PolledStreams::new();
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
        let (purpose, own) = (wish[0], service.clone());
        let otherwise = move |mut stream: Stream| match purpose {
            b'a' => echo(&mut WaitingStream::asleep(stream)?),
            b'!' => echo(&mut PolledStream::new(&own, stream)?),
            b's' => sink(&mut stream),
            _ => echo(&mut stream),
        };
        // A client that goes away harms no other.
        drop(serve_stream(
            &service,
            stream,
            wish[0],
            &mut polled,
            otherwise,
        ));
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

fn number(stream: &mut impl Read) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn sink(stream: &mut Stream) -> std::io::Result<()> {
    let each = number(stream)?;
    number4(stream)?;
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

fn sink_tcp(stream: &mut TcpStream) -> std::io::Result<()> {
    let each = number(stream)?;
    let buffers = number4(stream)?;
    set_buffers(stream, (buffers > 0).then_some(buffers))?;
    let mut buffer = vec![0; 1 << 20];
    let (mut came, mut answered) = (0, 0);
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        std::hint::black_box(buffer.first());
        came += len as u64;
        while came / each > answered {
            stream.write_all(&[0])?;
            answered += 1;
        }
    }
}

/// Sets the size of a connection's buffers in the kernel.
pub(super) fn set_buffers(stream: &TcpStream, bytes: Option<u32>) -> std::io::Result<()> {
    if let Some(bytes) = bytes {
        sockopt::set_socket_send_buffer_size(stream, bytes as usize)?;
        sockopt::set_socket_recv_buffer_size(stream, bytes as usize)?;
    }
    Ok(())
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

/// Serves over TCP until the process is killed.
pub(super) fn serve_tcp() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // As many wait to be accepted as with the service; the kernel's own limit may be lower.
    listen(&listener, BACKLOG as i32).map_err(failed("listening"))?;
    reply(&listener.local_addr()?.port())?;
    let mut polled = PolledStreams::new();
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut wish = [0];
        if !matches!(stream.read(&mut wish), Ok(1)) {
            continue;
        }
        let purpose = wish[0];
        let otherwise = move |mut stream: TcpStream| match purpose {
            b'!' => echo(&mut WaitingStream::spinning(stream)?),
            b's' => sink_tcp(&mut stream),
            _ => echo(&mut stream),
        };
        drop(serve_stream(&(), stream, wish[0], &mut polled, otherwise));
    }
}

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

/// A stream of the service whose calls never sleep. They make no system call while they find nothing, because the stream
/// is in a poller.
pub(super) struct PolledStream {
    stream: WaitingStream<Stream>,
    _poller: Poller,
}

impl PolledStream {
    pub(super) fn new(service: &Service, mut stream: Stream) -> std::io::Result<Self> {
        let mut poller = Poller::new(service)?;
        poller.add(&mut stream, 0, Interest::BOTH)?;
        let wait = |_: &mut Stream, _| Ok(());
        Ok(Self {
            stream: WaitingStream { stream, wait },
            _poller: poller,
        })
    }
}

impl Read for PolledStream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for PolledStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
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
