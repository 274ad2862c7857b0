//! `headworks pipe`.

use std::io;
use std::os::fd::AsFd;

use anyhow::Context;
use headworks::net::standard_streams::was_closed_at_start;
use headworks::net::{Interrupt, clock};
use headworks::pipe::{Direction, Pipe, WaitOptions, default_device_for};
use headworks::verbs::Duration;

use crate::args;
use crate::exit_status::{bad_input, check_not_simulated};
use crate::progress::Progress;

/// Refuses a standard input or output that was closed when the program started, because the bytes would be
/// lost unnoticed. `connects` says whether the connecting side receives; it is `None` for a listener, which
/// learns the direction only later and usually receives.
fn check_open(connects: Option<bool>) -> anyhow::Result<()> {
    let (closed, name) = match connects {
        Some(false) => (was_closed_at_start(&io::stdin()), "input"),
        None | Some(true) => (was_closed_at_start(&io::stdout()), "output"),
    };
    if closed {
        let line = format!("standard {name} is closed: redirect it to a file, a pipe or /dev/null");
        return Err(bad_input(line));
    }
    Ok(())
}

/// Runs one side of a pipe.
pub(crate) fn run(command: &args::Pipe) -> anyhow::Result<()> {
    let receives = match command {
        args::Pipe::Listen(_) => None,
        args::Pipe::Connect { reverse, .. } => Some(*reverse),
    };
    check_open(receives)?;
    let interrupt = Interrupt::install().context("catching signals")?;
    let args = match command {
        args::Pipe::Listen(args) | args::Pipe::Connect { args, .. } => args,
    };
    let patience = WaitOptions {
        interrupt: Some(interrupt.as_fd()),
        deadline: args
            .timeout
            .map(|seconds| clock::now() + Duration::from_secs(seconds)),
    };
    let device = match &args.device {
        Some(device) => device.clone(),
        None => default_device_for(&args.name).parse()?,
    };
    check_not_simulated(&device)?;
    let pipe = match command {
        args::Pipe::Listen(args) => Pipe::listen(&device, &args.name, patience)?,
        args::Pipe::Connect { args, reverse } => {
            let direction = if *reverse {
                Direction::ToConnector
            } else {
                Direction::ToListener
            };
            Pipe::connect(&device, &args.name, direction, patience)?
        }
    };
    let bytes;
    match pipe {
        Pipe::Sender(sender) => {
            let mut progress = Progress::new(args.progress, None, "sent");
            bytes = sender.send_fd(&io::stdin(), |bytes| progress.at(bytes))?;
            progress.finish(bytes);
        }
        Pipe::Receiver(receiver) => {
            let mut progress = Progress::new(args.progress, None, "received");
            bytes = receiver.receive_fd(&io::stdout(), |bytes| progress.at(bytes))?;
            progress.finish(bytes);
        }
    }
    tracing::info!(bytes, "delivered");
    Ok(())
}
