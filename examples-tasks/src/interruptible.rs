//! Programs of tasks that end at Ctrl-C, or with the process that started them.

use std::os::fd::AsFd;
use std::thread;

use headworks::net::{Interrupt, Waiter};
use headworks_examples::program::{Failure, Outcome};
use tokio::sync::oneshot;

/// Runs a task on this thread until it ends, or until Ctrl-C.
///
/// # Errors
///
/// Those of the task; [`Failure::Interrupted`]; no runtime or thread can be made.
pub fn run<F: Future<Output = Outcome>>(interrupt: &Interrupt, task: F) -> Outcome {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build()?;
    let raised = interrupt.as_fd().try_clone_to_owned()?;
    let (tell, told) = oneshot::channel();
    // It ends with the program.
    thread::Builder::new()
        .name("interrupt".to_owned())
        .spawn(move || {
            let waited = Waiter::default().wait(&[raised.as_fd()], None, |_| false);
            let _ = tell.send(waited);
        })?;
    runtime.block_on(async {
        tokio::select! {
            done = task => done,
            _ = told => Err(Failure::Interrupted),
        }
    })
}
