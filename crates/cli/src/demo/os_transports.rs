//! The operating system's transports, measured between the same two processes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::Instant;

use anyhow::Context;

use super::small_messages::{LEN, message};
use super::stall_limit::StepCount;
use super::{Demo, MeasuredLoad, PeerProcess, ResultRow};

/// Bytes of a stream piece.
const PIECE: usize = 256 << 10;
/// Stream pieces of the usual load.
pub(super) const PIECES: usize = 6 << 10;

/// A transport of the operating system.
#[derive(Clone, Copy)]
pub(super) enum OsTransport {
    Tcp,
    Unix,
    OsPipe,
}

/// Every transport of the operating system that the demo measures.
pub(super) const OS_TRANSPORTS: [OsTransport; 3] =
    [OsTransport::Tcp, OsTransport::Unix, OsTransport::OsPipe];

impl OsTransport {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP loopback",
            Self::Unix => "Unix socket",
            Self::OsPipe => "OS pipe",
        }
    }
}

impl Demo {
    /// Measures one transport.
    pub(super) fn measure_transport(
        &self,
        kind: OsTransport,
        load: MeasuredLoad,
    ) -> anyhow::Result<ResultRow> {
        let pieces = load.pieces.to_string();
        let measured = match kind {
            OsTransport::Tcp => {
                let listener = TcpListener::bind(("127.0.0.1", 0)).context("TCP")?;
                let port = listener.local_addr().context("TCP")?.port().to_string();
                let other = self.spawn(&["tcp", &port, "--pieces", &pieces])?;
                self.await_readable(&listener, kind.name())?;
                let stream = listener.accept().context("TCP")?.0;
                let measured =
                    self.measure(load, kind, &other, &mut tcp(&stream)?, &mut &stream)?;
                drop(stream);
                self.finish(other, kind.name())?;
                measured
            }
            OsTransport::Unix => {
                let dir = tempfile::tempdir().context("Unix socket")?;
                let path = dir.path().join("s");
                let listener = UnixListener::bind(&path).context("Unix socket")?;
                let other = self.spawn(&["unix", &path.to_string_lossy(), "--pieces", &pieces])?;
                self.await_readable(&listener, kind.name())?;
                let stream = listener.accept().context("Unix socket")?.0;
                let measured = self.measure(load, kind, &other, &mut &stream, &mut &stream)?;
                drop(stream);
                self.finish(other, kind.name())?;
                measured
            }
            OsTransport::OsPipe => {
                let mut other = self.spawn(&["stdio", "", "--pieces", &pieces])?;
                let (Some(mut to), Some(mut from)) = (other.0.stdin.take(), other.0.stdout.take())
                else {
                    return Err(anyhow::anyhow!("the other process has no pipes"));
                };
                let measured = self.measure(load, kind, &other, &mut from, &mut to)?;
                drop((to, from));
                self.finish(other, kind.name())?;
                measured
            }
        };
        Ok(ResultRow {
            name: kind.name(),
            gigabytes: measured.0,
            one_way_ns: measured.1,
        })
    }

    /// Runs this process's side. Returns GB/s, and nanoseconds one way.
    fn measure(
        &self,
        load: MeasuredLoad,
        kind: OsTransport,
        other: &PeerProcess,
        from: &mut impl Read,
        to: &mut impl Write,
    ) -> anyhow::Result<(f64, f64)> {
        let exchange = |steps: &StepCount| self.exchange(load, from, to, steps);
        self.with_stall_limit(other, kind.name(), exchange)
    }

    fn exchange(
        &self,
        MeasuredLoad { pieces, trips }: MeasuredLoad,
        from: &mut impl Read,
        to: &mut impl Write,
        steps: &StepCount,
    ) -> anyhow::Result<(f64, f64)> {
        let what = "talking to the other process";
        let piece = vec![7; PIECE];
        let mut answer = [0; LEN];
        let began = Instant::now();
        for _ in 0..pieces {
            self.check_interrupt()?;
            to.write_all(&piece).context(what)?;
            steps.count();
        }
        from.read_exact(&mut answer[..1]).context(what)?;
        let gigabytes = (pieces * PIECE) as f64 / began.elapsed().as_secs_f64() / 1e9;
        let began = Instant::now();
        for number in 0..trips {
            self.check_interrupt()?;
            to.write_all(&message(number)).context(what)?;
            from.read_exact(&mut answer).context(what)?;
            steps.count();
        }
        let one_way_ns = began.elapsed().as_nanos() as f64 / trips as f64 / 2.0;
        Ok((gigabytes, one_way_ns))
    }
}

pub(super) fn tcp(stream: &TcpStream) -> anyhow::Result<&TcpStream> {
    stream.set_nodelay(true).context("TCP_NODELAY")?;
    Ok(stream)
}

/// Runs the other process's side: receives `pieces` pieces, then echoes messages.
pub(super) fn answer(
    pieces: usize,
    from: &mut impl Read,
    to: &mut impl Write,
) -> anyhow::Result<()> {
    let what = "talking to the other process";
    let mut piece = vec![0; PIECE];
    let mut left = pieces * PIECE;
    while left > 0 {
        let room = left.min(PIECE);
        match from.read(&mut piece[..room]).context(what)? {
            0 => return Ok(()),
            got => left -= got,
        }
    }
    to.write_all(&[1]).context(what)?;
    let mut message = [0; LEN];
    // The first process closes the stream when it is done.
    while from.read_exact(&mut message).is_ok() {
        to.write_all(&message).context(what)?;
    }
    Ok(())
}
