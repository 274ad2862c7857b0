//! Two applications with as many connections as one likes, over which next to nothing goes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;

use headworks::service::{Service, ServiceError, Stream};
use serde::{Deserialize, Serialize};

use super::control::{say, told};
use super::failed;
use crate::transports::ArmError;

/// An application that holds connections.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Idle {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Which end it is of.
    pub end: End,
    /// Connections.
    pub connections: usize,
}

/// Which end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum End {
    /// It connects to that address, by threads each of which makes one after the other.
    Opens {
        /// There.
        to: SocketAddr,
        /// Threads.
        threads: usize,
    },
    /// It listens at that port, and accepts.
    Accepts {
        /// The port.
        port: u16,
    },
}

/// What it says that it has done. It goes on once it is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// It is attached, and listens.
    Ready,
    /// All are open.
    Opened,
    /// A byte went each way over each.
    Used,
    /// All were dropped.
    Closed,
}

/// That it is to go on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Go;

impl Idle {
    pub(super) fn play(&self) -> Result<(), ArmError> {
        let service = Service::attach(&self.socket, "idle").map_err(failed("attaching"))?;
        let listener = match self.end {
            End::Opens { .. } => None,
            End::Accepts { port } => {
                Some(service.listen(port, 16_384).map_err(failed("listening"))?)
            }
        };
        say(&Done::Ready)?;
        if let End::Opens { .. } = self.end
            && told::<Go>()?.is_none()
        {
            return Ok(());
        }
        let held = match (&self.end, listener) {
            (End::Opens { to, threads }, _) => self.open(&service, *to, *threads),
            (_, Some(listener)) => (0..self.connections).map(|_| listener.accept()).collect(),
            (End::Accepts { .. }, None) => Ok(Vec::new()),
        };
        let mut held = held.map_err(failed("connecting"))?;
        say(&Done::Opened)?;
        told::<Go>()?;
        use_all(&mut held).map_err(failed("a byte"))?;
        say(&Done::Used)?;
        told::<Go>()?;
        drop(held);
        say(&Done::Closed)?;
        // It stays attached until nobody wants to know any more what it takes.
        told::<Go>()?;
        Ok(())
    }

    fn open(
        &self,
        service: &Service,
        to: SocketAddr,
        threads: usize,
    ) -> Result<Vec<Stream>, ServiceError> {
        thread::scope(|scope| {
            let share = |at| (self.connections + at) / threads;
            let opening = (0..threads).map(|at| {
                scope.spawn(move || (0..share(at)).map(|_| service.connect(to)).collect())
            });
            let opening: Vec<_> = opening.collect();
            let mut held = Vec::with_capacity(self.connections);
            for thread in opening {
                let opened: Result<Vec<Stream>, ServiceError> =
                    thread.join().expect("it does not panic");
                held.extend(opened?);
            }
            Ok(held)
        })
    }
}

/// A byte each way. Both ends send before they receive, since each has its connections in an order of its own.
fn use_all(streams: &mut [Stream]) -> Result<(), ServiceError> {
    for stream in &mut *streams {
        stream.send_all(&[1])?;
    }
    for stream in streams {
        stream.recv(&mut [0])?;
    }
    Ok(())
}
