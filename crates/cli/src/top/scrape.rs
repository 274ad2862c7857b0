//! Reads a daemon's metrics endpoint. One time limit holds for all of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, anyhow, bail};
use headworks::daemon::server::MetricsAt;
use headworks::net::clock;
use headworks::verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};

use crate::exit_status::interrupted;

/// Longest time from the attempt to connect to the end of the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Interval at which a Unix socket is tried whose backlog is full: poll(2) does not report when it has room.
const RETRY_EVERY: Duration = Duration::from_millis(10);
/// Longest answer that is read, in bytes. No sane number of applications needs more.
const ANSWER_MAX: usize = 64 << 20;
/// Bytes received at a time.
const PIECE: usize = 64 << 10;
const REQUEST: &[u8] = b"GET /metrics HTTP/1.0\r\n\r\n";

/// Requests a daemon's metrics. Ends early if `interrupt` is readable.
pub(crate) fn scrape(at: &MetricsAt, interrupt: impl AsFd) -> anyhow::Result<String> {
    scrape_within(at, LIMIT, interrupt.as_fd())
}

fn scrape_within(
    at: &MetricsAt,
    limit: Duration,
    interrupt: BorrowedFd<'_>,
) -> anyhow::Result<String> {
    let scrape = Scrape {
        at,
        limit,
        until: clock::now() + limit,
        interrupt,
    };
    let socket = match at {
        MetricsAt::Path(path) => {
            let address = SocketAddrUnix::new(path);
            let address = address.with_context(|| scrape.nobody())?;
            scrape.connect(AddressFamily::UNIX, &address)
        }
        MetricsAt::Address(address) => {
            let family = match address.is_ipv4() {
                true => AddressFamily::INET,
                false => AddressFamily::INET6,
            };
            scrape.connect(family, address)
        }
    };
    let answer = scrape.exchange(&socket?)?;
    body(&answer).with_context(|| scrape.is_strange())
}

/// A scrape in progress.
struct Scrape<'a> {
    at: &'a MetricsAt,
    limit: Duration,
    until: Instant,
    interrupt: BorrowedFd<'a>,
}

impl Scrape<'_> {
    fn nobody(&self) -> String {
        format!("no daemon serves metrics at {}", self.at)
    }

    fn is_strange(&self) -> String {
        format!("{} does not answer like a daemon", self.at)
    }

    /// Connects without blocking: connect(2) to a Unix socket waits for ever while the backlog is full.
    fn connect(
        &self,
        family: AddressFamily,
        address: &impl SocketAddrArg,
    ) -> anyhow::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None).context("a socket")?;
        loop {
            match connect(&socket, address) {
                Ok(()) => return Ok(socket),
                Err(Errno::INPROGRESS) => {
                    self.wait(Some((&socket, PollFlags::OUT)), self.until)?;
                    let connected = sockopt::socket_error(&socket).context("a socket")?;
                    connected.with_context(|| self.nobody())?;
                    return Ok(socket);
                }
                Err(Errno::AGAIN) => self.wait(None, clock::now() + RETRY_EVERY)?,
                Err(Errno::INTR) => {}
                // Applications attach to sockets that keep the borders of messages.
                Err(Errno::PROTOTYPE) => bail!(
                    "{}: applications attach there; name the daemon's address, its first socket, or where it serves its \
                     metrics (a path or IP:PORT)",
                    self.nobody()
                ),
                Err(errno) => return Err(errno).with_context(|| self.nobody()),
            }
        }
    }

    /// Sends the request, and returns the answer.
    fn exchange(&self, socket: &OwnedFd) -> anyhow::Result<Vec<u8>> {
        let mut sent = 0;
        while sent < REQUEST.len() {
            match send(socket, &REQUEST[sent..], SendFlags::NOSIGNAL) {
                Ok(more) => sent += more,
                Err(Errno::AGAIN) => self.wait(Some((socket, PollFlags::OUT)), self.until)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).with_context(|| self.is_strange()),
            }
        }
        let (mut answer, mut piece) = (Vec::new(), vec![0; PIECE]);
        while answer.len() < ANSWER_MAX {
            match recv(socket, &mut piece[..], RecvFlags::empty()) {
                Ok((0, _)) => break,
                Ok((len, _)) => answer.extend_from_slice(&piece[..len]),
                Err(Errno::AGAIN) => self.wait(Some((socket, PollFlags::IN)), self.until)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).with_context(|| self.is_strange()),
            }
        }
        Ok(answer)
    }

    fn check_time(&self) -> anyhow::Result<()> {
        match clock::now() < self.until {
            true => Ok(()),
            false => Err(anyhow!(
                "the daemon at {} did not answer for {} s: is it stopped?",
                self.at,
                self.limit.as_secs_f64()
            )),
        }
    }

    /// Waits until the socket is ready, or until `until`. Fails at the time limit and at an interrupt.
    fn wait(&self, socket: Option<(&OwnedFd, PollFlags)>, until: Instant) -> anyhow::Result<()> {
        let interrupt = PollFd::from_borrowed_fd(self.interrupt, PollFlags::IN);
        let mut fds = vec![interrupt];
        fds.extend(socket.map(|(socket, flags)| PollFd::new(socket, flags)));
        let left = until.min(self.until).since(clock::now()).nanos();
        let timeout = Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as _,
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("waiting for the daemon"),
        }
        if !fds[0].revents().is_empty() {
            return Err(interrupted());
        }
        // Also if the socket is ready: a peer may send a byte now and then.
        self.check_time()
    }
}

/// Returns the body of an HTTP answer with the status 200.
fn body(answer: &[u8]) -> anyhow::Result<String> {
    let answer = str::from_utf8(answer).context("the answer is not UTF-8")?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        bail!("no HTTP answer");
    };
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => {}
        // The daemon says why it has no metrics.
        Some("503") => bail!("{status:?}: {}", body.trim_end()),
        _ => bail!("{status:?}"),
    }
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("Content-Length");
        is_length.then(|| value.trim().parse::<usize>().ok())?
    });
    match length {
        Some(length) if body.len() < length => {
            bail!("only {} of {length} bytes came", body.len())
        }
        _ => Ok(body.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    /// Scrapes on a thread, so that a scrape without a limit fails the test instead of blocking it.
    fn scraped(at: &MetricsAt, limit: Duration, interrupt: UnixStream) -> Result<String, String> {
        let (to, result) = std::sync::mpsc::channel();
        let at = at.clone();
        std::thread::spawn(move || {
            let scraped = scrape_within(&at, limit, interrupt.as_fd());
            let _ = to.send(scraped.map_err(|error| format!("{error:#}")));
        });
        let limit = std::time::Duration::from_secs(60);
        result.recv_timeout(limit).expect("a scrape that ends")
    }

    fn place() -> (tempfile::TempDir, std::path::PathBuf, MetricsAt) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        let at = MetricsAt::Path(path.clone());
        (directory, path, at)
    }

    fn unix_socket() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    }

    /// Binds a socket whose backlog is full. Returns what keeps it so.
    fn full_listener(path: &std::path::Path) -> Vec<OwnedFd> {
        let address = SocketAddrUnix::new(path).unwrap();
        let listener = unix_socket();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut kept = vec![listener];
        loop {
            let client = unix_socket();
            match connect(&client, &address) {
                Ok(()) => kept.push(client),
                Err(Errno::AGAIN) => return kept,
                Err(errno) => panic!("{errno}"),
            }
        }
    }

    #[test]
    fn a_daemon_that_accepts_nobody_or_answers_nothing_is_waited_for_until_the_limit() {
        let (_directory, path, at) = place();
        let (quiet, _other) = UnixStream::pair().unwrap();
        let expected = format!("the daemon at {at} did not answer for 0.2 s: is it stopped?");
        let kept = full_listener(&path);
        let said = scraped(&at, SHORT, quiet.try_clone().unwrap());
        assert_eq!(said.unwrap_err(), expected);
        drop(kept);
        std::fs::remove_file(&path).unwrap();
        // This one accepts into its backlog.
        let _silent = UnixListener::bind(&path).unwrap();
        let said = scraped(&at, SHORT, quiet.try_clone().unwrap());
        assert_eq!(said.unwrap_err(), expected);
        std::fs::remove_file(&path).unwrap();
        let said = scraped(&at, SHORT, quiet).unwrap_err();
        assert!(said.starts_with("no daemon serves metrics at "), "{said}");
    }

    #[test]
    fn a_socket_that_applications_attach_to_is_named_as_such() {
        let (_directory, path, at) = place();
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 1).unwrap();
        let (quiet, _other) = UnixStream::pair().unwrap();
        let said = scraped(&at, SHORT, quiet).unwrap_err();
        let expected = format!("no daemon serves metrics at {at}: applications attach there; name");
        assert!(said.starts_with(&expected), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_a_daemon_that_accepts_nobody() {
        let (_directory, path, at) = place();
        let _kept = full_listener(&path);
        let (raised, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"x").unwrap();
        let said = scraped(&at, Duration::from_secs(3600), raised);
        assert_eq!(said.unwrap_err(), "interrupted");
    }

    #[test]
    fn the_limit_holds_for_a_daemon_that_sends_a_byte_now_and_then() {
        let (_directory, path, at) = place();
        let listener = UnixListener::bind(&path).unwrap();
        let trickles = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.read_exact(&mut [0; REQUEST.len()]).unwrap();
            while client.write_all(b"x").is_ok() {}
        });
        let (quiet, _other) = UnixStream::pair().unwrap();
        let said = scraped(&at, Duration::from_millis(20), quiet).unwrap_err();
        assert!(said.contains("did not answer for 0.02 s"), "{said}");
        trickles.join().unwrap();
    }

    #[test]
    fn refusals_and_answers_that_are_cut_off_are_errors() {
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n";
        assert_eq!(body(format!("{ok}a 1\n").as_bytes()).unwrap(), "a 1\n");
        let refused = |answer: String| body(answer.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused(format!("{ok}a 1")), "only 3 of 4 bytes came");
        assert_eq!(
            refused("HTTP/1.1 503 Service Unavailable\r\n\r\nthe daemon is ending\n".to_owned()),
            "\"HTTP/1.1 503 Service Unavailable\": the daemon is ending"
        );
        assert_eq!(refused("220 mail".to_owned()), "no HTTP answer");
    }
}
