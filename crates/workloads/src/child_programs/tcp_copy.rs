//! A plain program that sends standard input over TCP: it reads and writes, with the best buffer size.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::WorkloadError;

/// How long the sender waits for the receiver's port file.
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes its port to the file `port`, and copies what it receives to standard output.
pub(super) fn receive(port: &Path, buffer: usize) -> Result<(), WorkloadError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (listener, number) = listener
        .and_then(|l| l.local_addr().map(|a| (l, a.port())))
        .map_err(|e| WorkloadError::at("listening", e))?;
    crate::atomic_file::replace(port, number.to_string().as_bytes())
        .map_err(|e| WorkloadError::at("port file", e))?;
    let (stream, _) = listener
        .accept()
        .map_err(|e| WorkloadError::at("accepting", e))?;
    copy(stream, standard(std::io::stdout())?, buffer)
}

/// Sends standard input to the receiver that wrote its port to the file `port`.
pub(super) fn send(port: &Path, buffer: usize) -> Result<(), WorkloadError> {
    let deadline = Instant::now() + PATIENCE;
    let number = loop {
        match std::fs::read_to_string(port) {
            Ok(text) => {
                break text
                    .parse::<u16>()
                    .map_err(|e| WorkloadError::at("port", e))?;
            }
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(500)),
            Err(why) => return Err(WorkloadError::at("port file", why)),
        }
    };
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, number))
        .and_then(|s| s.set_nodelay(true).map(|()| s))
        .map_err(|e| WorkloadError::at("connecting", e))?;
    copy(standard(std::io::stdin())?, stream, buffer)
}

/// A standard stream without Rust's own buffer around it.
fn standard(stream: impl AsFd) -> Result<File, WorkloadError> {
    let fd = stream.as_fd().try_clone_to_owned();
    fd.map(File::from)
        .map_err(|e| WorkloadError::at("standard stream", e))
}

fn copy(mut from: impl Read, mut to: impl Write, buffer: usize) -> Result<(), WorkloadError> {
    let mut bytes = vec![0; buffer.max(1)];
    loop {
        match from
            .read(&mut bytes)
            .map_err(|e| WorkloadError::at("reading", e))?
        {
            0 => return Ok(()),
            n => to
                .write_all(&bytes[..n])
                .map_err(|e| WorkloadError::at("writing", e))?,
        }
    }
}
