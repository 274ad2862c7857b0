//! Metrics endpoint: HTTP on a Unix socket or a TCP port. Each client has a thread for as long as it is answered, so
//! up to 63 silent clients delay no other. The event loop's thread produces the text.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, listen, socket_with};

use headworks_net::clock;

use super::{ServerMessage, ServerSender};
use crate::config::MetricsAt;

/// How long one read or write of a client may take, and the event loop to produce the text.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a whole request and its answer may take, roughly.
const WHOLE: headworks_verbs::Duration = headworks_verbs::Duration::from_secs(5);
/// Maximum number of clients that wait.
const BACKLOG: i32 = 128;
/// Maximum number of clients that are answered at a time.
const CLIENTS_MAX: usize = 64;
/// Interval at which the number of clients is looked at while there are that many.
const FULL: Duration = Duration::from_millis(20);
/// Bytes written at a time.
const PIECE: usize = 64 << 10;
/// Maximum length of a request in bytes. `HEADERS_MAX` is the maximum number of headers.
const REQUEST_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// Status of an answer without metrics.
const UNAVAILABLE: &str = "503 Service Unavailable";

trait Caller: Read + Write + Send {}
impl<T: Read + Write + Send> Caller for T {}

enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    fn bind(at: &MetricsAt) -> io::Result<Self> {
        let listener = match at {
            MetricsAt::Path(path) => {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(io::ErrorKind::AddrInUse.into());
                }
                // Removes the socket of a dead daemon, but no other kind of file.
                let left = std::fs::symlink_metadata(path);
                if left.is_ok_and(|left| is_socket(&left)) {
                    std::fs::remove_file(path)?;
                }
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
                // Permissions are set before listening, while nobody can connect yet.
                chmod(path, Mode::from_raw_mode(0o600))?;
                listen(&socket, BACKLOG)?;
                Self::Unix(socket.into(), path.clone())
            }
            MetricsAt::Address(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Self::Tcp(listener)
            }
        };
        Ok(listener)
    }

    fn accept(&self) -> io::Result<Box<dyn Caller>> {
        match self {
            Self::Unix(listener, _) => {
                let (caller, _) = listener.accept()?;
                caller.set_nonblocking(false)?;
                caller.set_read_timeout(Some(PATIENCE))?;
                caller.set_write_timeout(Some(PATIENCE))?;
                Ok(Box::new(caller))
            }
            Self::Tcp(listener) => {
                let (caller, _) = listener.accept()?;
                caller.set_nonblocking(false)?;
                caller.set_read_timeout(Some(PATIENCE))?;
                caller.set_write_timeout(Some(PATIENCE))?;
                Ok(Box::new(caller))
            }
        }
    }
}

fn is_socket(left: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&left.file_type())
}

impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The thread that serves metrics. Dropping this ends it.
pub(super) struct MetricsServer {
    thread: Option<JoinHandle<()>>,
    /// Closing this ends the thread.
    end: Option<OwnedFd>,
}

impl MetricsServer {
    /// Listens, and answers with the text of the event loop that `teller` reaches.
    pub(super) fn start(at: &MetricsAt, teller: ServerSender) -> io::Result<Self> {
        let listener = Listener::bind(at)?;
        let (ended, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let name = "headworks-metrics".to_owned();
        let serve = move || serve(&listener, &ended, &teller);
        let thread = std::thread::Builder::new().name(name).spawn(serve)?;
        Ok(Self {
            thread: Some(thread),
            end: Some(end),
        })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &Listener, ended: &OwnedFd, teller: &ServerSender) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(ended, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return tracing::warn!("metrics are not served any more: {error}"),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        if clients.load(Ordering::Acquire) >= CLIENTS_MAX {
            // Others wait in the backlog until one of these has been answered or given up.
            wait_for(ended, FULL);
            continue;
        }
        match listener.accept() {
            Ok(caller) => serve_client(caller, teller, &clients),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!("a metrics client cannot be accepted: {error}");
                // Mostly there are too few descriptors. The client stays in the backlog, so wait instead of
                // spinning.
                wait_for(ended, Duration::from_secs(1));
            }
        }
    }
}

/// Waits until `ended` is readable, at most `limit`.
fn wait_for(ended: &OwnedFd, limit: Duration) {
    let limit = rustix::event::Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    let _ = poll(&mut [PollFd::new(ended, PollFlags::IN)], Some(&limit));
}

/// Answers a client on a thread of its own.
fn serve_client(mut caller: Box<dyn Caller>, teller: &ServerSender, clients: &Arc<AtomicUsize>) {
    let teller = teller.clone();
    clients.fetch_add(1, Ordering::AcqRel);
    let served = Served(clients.clone());
    let serve = move || {
        let _served = served;
        let look = || {
            let (to, text) = mpsc::channel();
            match teller.tell(ServerMessage::Look(to)) {
                true => text.recv_timeout(PATIENCE),
                false => Err(RecvTimeoutError::Disconnected),
            }
        };
        if let Err(error) = answer(&mut *caller, look) {
            tracing::debug!("a metrics client was not answered: {error}");
        }
    };
    let thread = std::thread::Builder::new().name("headworks-scrape".to_owned());
    if let Err(error) = thread.spawn(serve) {
        tracing::warn!("a metrics client cannot be answered: {error}");
    }
}

/// Counts a client until dropped.
struct Served(Arc<AtomicUsize>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Answers one request. `look` asks the event loop for the text.
fn answer(
    caller: &mut dyn Caller,
    look: impl FnOnce() -> Result<String, RecvTimeoutError>,
) -> io::Result<()> {
    // Bounds the whole exchange, for a client that sends or reads one byte at a time.
    let until = clock::now() + WHOLE;
    let in_time = || match clock::now() < until {
        true => Ok(()),
        false => Err(io::Error::from(io::ErrorKind::TimedOut)),
    };
    let mut request = Vec::new();
    let (status, body) = loop {
        in_time()?;
        let mut piece = [0; 1024];
        let read = caller.read(&mut piece)?;
        request.extend_from_slice(&piece[..read]);
        match asked(&request) {
            ScrapeRequest::More if read == 0 => return Ok(()),
            ScrapeRequest::More => {}
            ScrapeRequest::Metrics => match look() {
                Ok(text) => break ("200 OK", text),
                Err(RecvTimeoutError::Timeout) => {
                    let limit = PATIENCE.as_secs();
                    let line = format!("the daemon did not answer within {limit} s\n");
                    break (UNAVAILABLE, line);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    break (UNAVAILABLE, "the daemon is ending\n".to_owned());
                }
            },
            ScrapeRequest::Other => break ("404 Not Found", "use GET /metrics\n".to_owned()),
            ScrapeRequest::Nonsense => {
                break ("400 Bad Request", "use GET /metrics\n".to_owned());
            }
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let all = [head.as_bytes(), body.as_bytes()].concat();
    for piece in all.chunks(PIECE) {
        in_time()?;
        caller.write_all(piece)?;
    }
    caller.flush()
}

#[derive(Debug, PartialEq, Eq)]
enum ScrapeRequest {
    /// The request is incomplete.
    More,
    Metrics,
    Other,
    Nonsense,
}

fn asked(request: &[u8]) -> ScrapeRequest {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {
            let path = parsed.path.unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            match (parsed.method, path) {
                (Some("GET"), "/" | "/metrics") => ScrapeRequest::Metrics,
                _ => ScrapeRequest::Other,
            }
        }
        Ok(httparse::Status::Partial) if request.len() < REQUEST_MAX => ScrapeRequest::More,
        _ => ScrapeRequest::Nonsense,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that sends `says` a byte at a time.
    struct SlowCaller<'a> {
        says: &'a [u8],
        hears: Vec<u8>,
    }

    impl Read for SlowCaller<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let len = self.says.len().min(1);
            into[..len].copy_from_slice(&self.says[..len]);
            self.says = &self.says[len..];
            Ok(len)
        }
    }

    impl Write for SlowCaller<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.hears.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn heard(says: &[u8], text: &str) -> String {
        heard_from(says, || Ok(text.to_owned()))
    }

    fn heard_from(says: &[u8], look: impl FnOnce() -> Result<String, RecvTimeoutError>) -> String {
        let mut caller = SlowCaller {
            says,
            hears: Vec::new(),
        };
        answer(&mut caller, look).unwrap();
        String::from_utf8(caller.hears).unwrap()
    }

    #[test]
    fn requests_are_answered_however_slowly_they_come() {
        let get = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
        let said = heard(get, "a 1\n");
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        assert!(
            said.ends_with("Content-Length: 4\r\nConnection: close\r\n\r\na 1\n"),
            "{said}"
        );
        for (why, line) in [
            (
                RecvTimeoutError::Timeout,
                "the daemon did not answer within 2 s\n",
            ),
            (RecvTimeoutError::Disconnected, "the daemon is ending\n"),
        ] {
            let said = heard_from(get, || Err(why));
            assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
            assert!(said.ends_with(&format!("\r\n\r\n{line}")), "{said}");
        }
        let post = b"POST /metrics HTTP/1.1\r\n\r\n";
        assert!(heard(post, "").starts_with("HTTP/1.1 404 "));
        assert!(heard(b"\x16\x03\x01\x02", "").starts_with("HTTP/1.1 400 "));
        let long = [b"GET /".as_slice(), &[b'a'; REQUEST_MAX]].concat();
        assert!(heard(&long, "").starts_with("HTTP/1.1 400 "));
        assert_eq!(heard(b"GET / HT", ""), "", "it went away");
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        let at = MetricsAt::Path(path.clone());
        // Dropping a listener of the standard library leaves its path, as the death of a daemon does.
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&at).unwrap();
        let again = Listener::bind(&at).err().expect("it is taken");
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(Listener::bind(&at).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
