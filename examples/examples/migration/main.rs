//! Moves a database to another host, after figure 19 of the RaaS paper. The sender lends memory with the
//! file's bytes to the daemon, without a copy. The receiver writes the bytes to the file from where they
//! arrived.
//!
//! ```text
//! migration [FILE]                              run both sides and two daemons: send FILE, or 256 MiB
//!                                               of generated data, to a temporary copy
//! migration receive INTO [--socket PATH] [--port N]
//!                                               receive one file at a port of the daemon at PATH; it
//!                                               is called INTO once it is complete
//! migration send FILE --to IP:PORT [--socket PATH]
//! ```
//!
//! The sender (`sender`) sends the length of the file, the file, and its checksum. When all of it has
//! arrived, the receiver (`receiver`) answers with a byte that says whether the checksum is right. It sends
//! another byte when the file has its name.

mod receiver;
mod sender;

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::process::ExitCode;

use headworks::net::Interrupt;
use headworks_examples::local_hosts::LocalHosts;
use headworks_examples::program::{self, Failure, Outcome};
use headworks_examples::service_program::{self, Args, check_interrupt};
use receiver::FileReceiver;

const NAME: &str = "migration";
const USAGE: &str = "usage: migration [FILE] | receive INTO [--socket PATH] [--port N] | \
                     send FILE --to IP:PORT [--socket PATH]";
/// Bytes of a generated file.
const MADE_UP: u64 = 256 << 20;
/// Answers of the receiver: the file is complete and right, or wrong; the file has its name.
const RIGHT: u8 = b'r';
const WRONG: u8 = b'w';
const NAMED: u8 = b'n';

fn main() -> ExitCode {
    service_program::run(NAME, |args, interrupt| match *args {
        ["receive", ..] => {
            let args = Args::of(args, &["--socket", "--port"], USAGE)?;
            let [_, into] = args.words[..] else {
                return Err(usage());
            };
            let port = args.port()?;
            let arrival = FileReceiver::at(Path::new(into))?;
            receiver::receive(&args.service(NAME)?, port, arrival, interrupt)
        }
        ["send", ..] => {
            let args = Args::of(args, &["--socket", "--to"], USAGE)?;
            let [_, path] = args.words[..] else {
                return Err(usage());
            };
            let (to, file) = (args.to()?[0], open(path)?);
            sender::send_file(&args.service(NAME)?, to, file, interrupt)
        }
        _ => {
            let args = Args::of(args, &[], USAGE)?;
            let file = match args.words[..] {
                [] => None,
                [path] => Some(open(path)?),
                _ => return Err(usage()),
            };
            let hosts = LocalHosts::start(interrupt)?;
            let file = match file {
                Some(file) => file,
                None => made_up(hosts.directory(), interrupt)?,
            };
            let copy = hosts.directory().join("copy");
            let (receiver, to) = {
                let args = ["receive", &copy.to_string_lossy()];
                hosts.serve(1, &args, interrupt)?
            };
            let to = *to.first().ok_or_else(program::gone)?;
            sender::send_file(&hosts.attach(0, NAME)?, to, file, interrupt)?;
            receiver.finish()
        }
    })
}

fn usage() -> Failure {
    Failure::BadInput(USAGE.to_owned())
}

/// Opens a regular file, whose length is known.
fn open(path: &str) -> Outcome<File> {
    let wrong = |why: String| Failure::BadInput(format!("{path}: {why}"));
    // Check before opening, because opening a FIFO blocks until it has a writer.
    let kind = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !kind.is_file() {
        return Err(wrong("not a regular file".to_owned()));
    }
    File::open(path).map_err(|error| wrong(error.to_string()))
}

/// Makes a file of varied bytes. It has no name, and disappears with this process.
fn made_up(directory: &Path, interrupt: &Interrupt) -> Outcome<File> {
    let mut file = tempfile::tempfile_in(directory)?;
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut piece = vec![0; 1 << 20];
    for _ in 0..MADE_UP / piece.len() as u64 {
        check_interrupt(interrupt)?;
        for word in piece.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&piece)?;
    }
    file.rewind()?;
    Ok(file)
}
