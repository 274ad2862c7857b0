//! Notifications to the service manager about the daemon's state: systemd's protocol, datagrams to
//! `$NOTIFY_SOCKET`.

use std::cell::Cell;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Connection to the service manager that started the daemon. Notifying it never blocks.
#[derive(Debug)]
pub struct Notify {
    socket: UnixDatagram,
    /// Whether a notification was lost. Only the first one is logged.
    has_lost: Cell<bool>,
}

impl Notify {
    /// Connects to the service manager that the environment names. Returns `None` if it names none.
    ///
    /// # Errors
    ///
    /// Errors of socket(2) and connect(2): nobody listens there.
    pub fn from_env() -> io::Result<Option<Self>> {
        match env::var_os("NOTIFY_SOCKET") {
            Some(at) if !at.is_empty() => Self::at(&at).map(Some),
            _ => Ok(None),
        }
    }

    /// Connects to a path, or, after `@`, to an abstract name.
    fn at(at: &OsStr) -> io::Result<Self> {
        let address = match at.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(at)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A service manager that does not read must not stop the daemon.
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            has_lost: Cell::new(false),
        })
    }

    /// Reports that the daemon serves now. `status` says what it serves.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the daemon is about to end. `status` says what it waits for.
    pub fn stopping(&self, status: &str) {
        self.say(&format!("STOPPING=1\nSTATUS={status}"));
    }

    fn say(&self, what: &str) {
        let sent = self.socket.send(what.as_bytes());
        let Err(error) = sent else { return };
        if self.has_lost.replace(true) {
            return;
        }
        let why = match error.kind() {
            io::ErrorKind::WouldBlock => "it does not read its socket: is it stopped?".to_owned(),
            _ => error.to_string(),
        };
        let what = what.lines().next().unwrap_or_default();
        tracing::warn!("the service manager cannot be notified of {what}: {why}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;

    #[test]
    fn notifications_reach_path_and_abstract_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("headworks-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let listeners = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path)),
            (
                format!("@{name}").into(),
                UnixDatagram::bind_addr(&abstract_name),
            ),
        ];
        for (at, listener) in listeners {
            let listener = listener.unwrap();
            let notify = Notify::at(&at).unwrap();
            notify.ready("serving");
            notify.stopping("3 left");
            let mut bytes = [0; 100];
            for expected in ["READY=1\nSTATUS=serving", "STOPPING=1\nSTATUS=3 left"] {
                let len = listener.recv(&mut bytes).unwrap();
                assert_eq!(&bytes[..len], expected.as_bytes());
            }
        }
        assert!(Notify::at(directory.path().join("nobody").as_os_str()).is_err());
    }

    /// Collects what is logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_service_manager_that_does_not_read_blocks_nothing_and_is_logged_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let log = Log::default();
        let (to, ended) = mpsc::channel();
        let writer = log.clone();
        let notifies = move || {
            let subscriber = tracing_subscriber::fmt()
                .with_writer(move || writer.clone())
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                let notify = Notify::at(path.as_os_str()).unwrap();
                // No socket buffer holds that many.
                for _ in 0..100_000 {
                    notify.ready("serving");
                }
            });
            to.send(()).unwrap();
        };
        let thread = std::thread::spawn(notifies);
        let limit = std::time::Duration::from_secs(60);
        ended.recv_timeout(limit).expect("it does not block");
        thread.join().unwrap();
        let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains("cannot be notified of READY=1: it does not read its socket"),
            "{said}"
        );
        drop(listener);
    }
}
