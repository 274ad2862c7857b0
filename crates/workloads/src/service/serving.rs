//! Applications that are asked. Who connects says with the first byte what for.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use headworks::service::{Export, Memory, Rights, Service, ServiceError, Stream};
use serde::{Deserialize, Serialize};

use super::failed;
use crate::transports::ArmError;

/// What somebody connects for: the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Wish {
    /// Everything back, waiting as streams do by default.
    Echo = b'e',
    /// Everything back, from a thread that sleeps in poll(2) whenever nothing is there.
    EchoAsleep = b'a',
    /// Nothing back, but one byte for each so many, a number of eight bytes behind this one: of what comes the
    /// first byte is looked at, where it lies.
    Sink = b's',
    /// Memory, whose window and length, eight bytes each, come back; so many bytes of it as the eight behind this one
    /// say.
    Window = b'w',
}

/// Serves until it is ended.
pub(super) fn serve(socket: &Path, port: u16) -> Result<(), ArmError> {
    let service = Service::attach(socket, "experiment").map_err(failed("attaching"))?;
    let listener = service.listen(port, 16_384).map_err(failed("listening"))?;
    let mut held = Vec::new();
    loop {
        let mut stream = listener.accept().map_err(failed("accepting"))?;
        let service = service.clone();
        let mut wish = [0];
        // Who only looks whether somebody is there says nothing.
        match stream.recv(&mut wish) {
            Ok(1) if wish[0] == Wish::Window as u8 => {
                // These are many, and do nothing by themselves. What others had is given back first.
                held = held.into_iter().filter_map(still_held).collect();
                if let Ok(export) = export(&service, &mut stream) {
                    stream.set_nonblocking(true);
                    held.push((stream, export));
                }
                continue;
            }
            Ok(1) => {}
            _ => continue,
        }
        let name = "experiment-serve".to_owned();
        let spawned = thread::Builder::new().name(name).spawn(move || {
            // It ends with whoever asked.
            match wish[0] {
                b'a' => drop(echo_asleep(&mut stream)),
                b's' => drop(sink(&mut stream)),
                _ => drop(echo(&mut stream)),
            }
        });
        spawned.map_err(|error| ArmError::at("a thread", error))?;
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

fn echo_asleep(stream: &mut Stream) -> std::io::Result<()> {
    echo(&mut super::asking::Asleep::over(stream)?)
}

fn number(stream: &mut Stream) -> Result<u64, ServiceError> {
    let mut bytes = [0; 8];
    let mut got = 0;
    while got < bytes.len() {
        match stream.recv(&mut bytes[got..])? {
            0 => return Err(ServiceError::Ended),
            len => got += len,
        }
    }
    Ok(u64::from_le_bytes(bytes))
}

fn sink(stream: &mut Stream) -> Result<(), ServiceError> {
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

/// What somebody has still; else it is taken back.
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

fn export(service: &Service, stream: &mut Stream) -> Result<Export, ServiceError> {
    let len = number(stream)?;
    let mut memory: Memory = service.alloc(len as u32)?;
    for (at, byte) in memory.iter_mut().enumerate() {
        *byte = at as u8;
    }
    let len = memory.len() as u64;
    let export = stream.export(memory, Rights::ALL)?;
    let window = u64::from(export.window());
    stream.send_all(&[window.to_le_bytes(), len.to_le_bytes()].concat())?;
    Ok(export)
}

/// Sends everything back over TCP, until it is ended. Who says so with the first byte is answered by a thread that
/// spins.
pub(super) fn serve_tcp(port: &Path) -> Result<(), ArmError> {
    let failed = |error: std::io::Error| ArmError::at("a TCP server", error);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let number = listener.local_addr().map_err(failed)?.port();
    crate::files::replace(port, number.to_string().as_bytes())
        .map_err(|error| ArmError::at("port file", error))?;
    loop {
        let (mut stream, _) = listener.accept().map_err(failed)?;
        let serve = move || {
            let mut wish = [0];
            stream.set_nodelay(true)?;
            stream.read_exact(&mut wish)?;
            match wish[0] {
                SPINNING => echo(&mut Spinning::over(stream)?),
                _ => echo(&mut stream),
            }
        };
        // It ends with whoever asked.
        thread::spawn(move || drop(serve()));
    }
}

/// What somebody says first who is to be answered by a thread that spins.
pub(super) const SPINNING: u8 = b'!';

/// A TCP stream that is looked at all the time.
pub(super) struct Spinning(TcpStream);

impl Spinning {
    pub(super) fn over(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }
}

fn spin<T>(mut act: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match act() {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

impl Read for Spinning {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        spin(|| self.0.read(into))
    }
}

impl Write for Spinning {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        spin(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
