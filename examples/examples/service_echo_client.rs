//! Sends a text to an echo server and prints what comes back.

use std::error::Error;
use std::io::Read;

use headworks::service::Service;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(server), Some(text)) = (args.next(), args.next()) else {
        return Err("usage: service_echo_client HOST:PORT TEXT".into());
    };
    let service = Service::open("echo-client")?;
    let (mut reader, mut writer) = service.connect(&*server)?.split();

    // A second thread sends while this one receives, so an echo of any length works.
    let sender = std::thread::spawn(move || {
        writer.send_all(text.as_bytes())?;
        writer.end()
    });
    let mut answer = String::new();
    reader.read_to_string(&mut answer)?;
    sender.join().map_err(|_| "the sending thread panicked")??;
    println!("{answer}");
    Ok(())
}
