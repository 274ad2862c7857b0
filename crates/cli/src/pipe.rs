//! `headworks pipe`.

use std::io;
use std::os::fd::AsFd;

use anyhow::Context;
use headworks::pipe::{Direction, Patience, Pipe};
use headworks::stage::{Interrupt, clock};
use headworks::verbs::Duration;

use crate::args;
use crate::progress::Progress;

/// Runs one side.
pub(crate) fn run(command: &args::Pipe) -> anyhow::Result<()> {
    let interrupt = Interrupt::install().context("catching signals")?;
    let args = match command {
        args::Pipe::Listen(args) | args::Pipe::Connect { args, .. } => args,
    };
    let patience = Patience {
        interrupt: Some(interrupt.as_fd()),
        deadline: args
            .timeout
            .map(|seconds| clock::now() + Duration::from_secs(seconds)),
    };
    let pipe = match command {
        args::Pipe::Listen(args) => Pipe::listen(&args.device, &args.name, patience)?,
        args::Pipe::Connect { args, reverse } => {
            let direction = if *reverse {
                Direction::ToConnector
            } else {
                Direction::ToListener
            };
            Pipe::connect(&args.device, &args.name, direction, patience)?
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
