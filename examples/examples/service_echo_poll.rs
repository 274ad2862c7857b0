//! An echo server on a port of this host's daemon: one thread for all connections, with poll(2).

use std::error::Error;

use headworks::service::{Service, ServiceError, Stream};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

struct Client {
    stream: Stream,
    /// Bytes that were received and not yet sent back.
    pending: Vec<u8>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let service = Service::open("echo-server")?;
    let mut listener = service.listen(7000, 128)?;
    println!("listening on port {}", listener.port());
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(listener.fd()?, PollFlags::IN)];
        for client in &mut clients {
            let events = match client.pending.is_empty() {
                true => PollFlags::IN,
                false => PollFlags::OUT,
            };
            fds.push(PollFd::from_borrowed_fd(client.stream.fd()?, events));
        }
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let ready: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();

        let mut ready = ready.into_iter();
        clients.retain_mut(|client| {
            if ready.next() != Some(true) {
                return true;
            }
            // Removing a client drops its stream, which closes the connection.
            client.echo().unwrap_or_else(|error| {
                eprintln!("{}: {error}", client.stream.peer_addr());
                false
            })
        });
        while let Some(mut stream) = listener.try_accept()? {
            stream.set_nonblocking(true);
            clients.push(Client {
                stream,
                pending: Vec::new(),
            });
        }
    }
}

impl Client {
    /// Moves as many bytes as it can without waiting. Returns `false` once the client has ended its direction
    /// and everything was sent back.
    fn echo(&mut self) -> Result<bool, ServiceError> {
        if self.pending.is_empty() {
            let mut buffer = [0; 16 << 10];
            match self.stream.recv(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(len) => self.pending.extend_from_slice(&buffer[..len]),
                Err(ServiceError::WouldBlock) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        match self.stream.send(&self.pending) {
            Ok(sent) => drop(self.pending.drain(..sent)),
            Err(ServiceError::WouldBlock) => {}
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}
