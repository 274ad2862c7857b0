//! An echo server on a port of this host's daemon: one thread for each connection.

use std::thread;

use headworks::service::{Service, ServiceError, Stream};

fn main() -> Result<(), ServiceError> {
    let service = Service::open("echo-server")?;
    let listener = service.listen(7000, 128)?;
    println!("listening on port {}", listener.port());
    // If the daemon ends, there are no new connections, but direct ones go on. The scope ends after the last one.
    thread::scope(|scope| {
        loop {
            let stream = listener
                .accept()
                .inspect_err(|error| eprintln!("no more connections: {error}"))?;
            scope.spawn(move || {
                let peer = stream.peer_addr();
                if let Err(error) = echo(stream) {
                    eprintln!("{peer}: {error}");
                }
            });
        }
    })
}

fn echo(mut stream: Stream) -> Result<(), ServiceError> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = stream.recv(&mut buffer)?;
        if len == 0 {
            // The client has ended its direction. Dropping the stream closes ours.
            return Ok(());
        }
        stream.send_all(&buffer[..len])?;
    }
}
