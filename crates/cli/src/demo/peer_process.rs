//! The other process of the demonstration. Unless it is a daemon, it does not catch signals. When Ctrl-C or
//! the first process kills it, the first process removes what it leaves.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use anyhow::{Context, anyhow};
use headworks::connect;
use headworks::net::{Listener, clock};
use headworks::pipe::{Pipe, WaitOptions};
use headworks::verbs::DeviceName;

use super::bulk_pipe::Hashed;
use super::small_messages::{self, END, SpinWait, message, soon};
use super::{PATIENCE, daemons, echo, os_transports};

/// Runs the role `role`. `place` is a name, a port or a path. `pieces` is the number of stream pieces that it
/// receives over a transport of the operating system, or of connections that it echoes. `at` is the address
/// of a daemon.
pub(crate) fn run(
    role: &str,
    place: &str,
    pieces: usize,
    at: Option<SocketAddr>,
    device: &DeviceName,
) -> anyhow::Result<()> {
    match role {
        "daemon" => daemons::run_daemon(place, at.context("no address")?, device, false),
        "direct-daemon" => daemons::run_daemon(place, at.context("no address")?, device, true),
        "echo" => echo::run(place, pieces, true),
        "echo-service" => echo::run(place, pieces, false),
        "check" => {
            let mut sink = Hashed::new(io::sink());
            let bytes = receive(place, device, &mut sink)?;
            let line = format!("{bytes} bytes, CRC-32 {:08x}\n", sink.hash.finalize());
            io::stdout().write_all(line.as_bytes()).context("answering")
        }
        "drop" => receive(place, device, &mut io::sink()).map(drop),
        "rings" => rings(place, device),
        "tcp" => {
            let port: u16 = place.parse().context("port")?;
            let stream = TcpStream::connect(("127.0.0.1", port)).context("TCP")?;
            os_transports::answer(pieces, &mut os_transports::tcp(&stream)?, &mut &stream)
        }
        "unix" => {
            let stream = UnixStream::connect(place).context("Unix socket")?;
            os_transports::answer(pieces, &mut &stream, &mut &stream)
        }
        _ => {
            // The raw descriptors are used, because the buffers of the standard streams would add a copy.
            let (from, to) = (own(io::stdin())?, own(io::stdout())?);
            os_transports::answer(pieces, &mut &from, &mut &to)
        }
    }
}

fn own(stream: impl std::os::fd::AsFd) -> anyhow::Result<std::fs::File> {
    let fd = stream.as_fd().try_clone_to_owned();
    Ok(fd.context("standard stream")?.into())
}

fn receive(name: &str, device: &DeviceName, sink: &mut impl Write) -> anyhow::Result<u64> {
    let patience = WaitOptions {
        interrupt: None,
        deadline: Some(clock::now() + PATIENCE),
    };
    match Pipe::listen(device, name, patience)? {
        Pipe::Receiver(receiver) => Ok(receiver.receive_into(sink, |_| {})?),
        Pipe::Sender(_) => Err(anyhow!("the pipe goes the wrong way")),
    }
}

fn rings(name: &str, device: &DeviceName) -> anyhow::Result<()> {
    let listener = Listener::bind(&headworks::registry()?, name)?;
    let device = headworks::open(device)?;
    let accept = || listener.accept(soon(None));
    let mut line = accept()?;
    let mut receiver =
        connect::receiver(&device, &small_messages::one_way(), &mut line, soon(None))?;
    let mut right = true;
    {
        let mut spin = SpinWait::on(&line, None);
        let mut ended = false;
        for number in 0.. {
            let expected = message(number);
            small_messages::recv(&mut receiver, &mut spin, |found| {
                if found != expected {
                    ended = found == END;
                    right &= ended;
                }
            })?;
            if ended {
                break;
            }
        }
        receiver.push_head()?;
    }
    line.send_control(if right { b"all right" } else { b"wrong" })?;
    let (mut out_line, mut back_line) = (accept()?, accept()?);
    let mut out = connect::receiver(
        &device,
        &small_messages::latency(),
        &mut out_line,
        soon(None),
    )?;
    let mut back = connect::sender(
        &device,
        &small_messages::latency(),
        &mut back_line,
        soon(None),
    )?;
    let mut spin = SpinWait::on(&out_line, None);
    let mut bytes = [0; small_messages::LEN];
    loop {
        small_messages::recv(&mut out, &mut spin, |found| bytes.copy_from_slice(found))?;
        if bytes == END {
            // The other side waits for the head that shows that this message was received.
            while !out.push_head()? {
                spin.spin_once()?;
            }
            break;
        }
        small_messages::send(&mut back, &bytes, &mut spin)?;
        while !back.flush()? {
            spin.spin_once()?;
        }
    }
    // The other side must receive the last answer before the ring is closed.
    while !back_line.peer_gone() {
        std::thread::yield_now();
    }
    Ok(())
}
