//! Notifications to the service manager about the daemon's state: systemd's protocol, datagrams to
//! `$NOTIFY_SOCKET`.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Connection to the service manager that started the daemon.
#[derive(Debug)]
pub struct Notify(UnixDatagram);

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
        Ok(Self(socket))
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
        if let Err(error) = self.0.send(what.as_bytes()) {
            tracing::warn!("the service manager cannot be notified: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
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
}
