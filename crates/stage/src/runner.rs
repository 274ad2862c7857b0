//! Steps one actor in real time until it ends: the shell around [`Actor::step`].

use std::any::Any;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use headworks_verbs::Instant;
use rustix::event::{PollFd, PollFlags};

use crate::actor::{Actor, ActorError, Change, Cx, Step};
use crate::cast::{Cast, Part};
use crate::desk::{Desk, Post};
use crate::pin;
use crate::waiting::{Phase, SPIN_BUDGET, Spin, Waiter, Woken};
use crate::{clock, world::Outcome};

/// Makes and runs the actor of `part` on this thread. `parts` is how many run at the same time.
pub(crate) fn perform<P: Post>(
    cast: &Cast,
    part: &Part,
    parts: usize,
    desk: &mut Desk<P>,
) -> Outcome {
    // Counted before pinning, after which this thread has one core.
    let waiter = Waiter::new(SPIN_BUDGET, Spin::for_waiters(parts));
    let ended = caught(|| {
        if let Some(cpu) = part.cpu {
            pin::pin_to(cpu)?;
        }
        let mut actor = cast.construct(part)?;
        step_to_the_end(actor.as_mut(), waiter, desk)
    });
    match ended {
        Ok(()) => Outcome::Done,
        Err(outcome) => outcome,
    }
}

/// For worlds: calls what an actor does. The error is how it ended, by an error of its own or by a panic.
/// What it was doing is used afterwards only to say so.
pub fn caught<T>(act: impl FnOnce() -> Result<T, ActorError>) -> Result<T, Outcome> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Outcome::Failed(error.to_string())),
        Err(panic) => {
            let why = panic_text(panic.as_ref());
            Err(Outcome::Failed(format!("panicked: {why}")))
        }
    }
}

fn step_to_the_end<P: Post>(
    actor: &mut dyn Actor,
    mut waiter: Waiter,
    desk: &mut Desk<P>,
) -> Result<(), ActorError> {
    loop {
        if desk.mailbox.abandoned() {
            return Err(ActorError::new("was ended by the director"));
        }
        let step = actor.step(&mut Cx::new(desk))?;
        desk.post.flush()?;
        match step {
            Step::Again => {}
            Step::At(at) => wait_until(at, &mut waiter, desk)?,
            Step::OnChange(change) => wait_for(&change, &mut waiter, desk)?,
            Step::Done => return Ok(()),
        }
    }
}

fn wait_until<P: Post>(at: Instant, waiter: &mut Waiter, desk: &Desk<P>) -> Result<(), ActorError> {
    // Being woken takes about as long as the budget: sleep for less, and look for the rest.
    let left = at.since(clock::now());
    if left > SPIN_BUDGET.times(2) {
        let nearly = clock::now() + (left - SPIN_BUDGET);
        wait_for(&Change::default().until(nearly), waiter, desk)?;
        if clock::now() < nearly {
            return Ok(());
        }
    }
    while clock::now() < at && !desk.mailbox.take_poke() {
        waiter.pass();
    }
    Ok(())
}

fn wait_for<P: Post>(
    change: &Change,
    waiter: &mut Waiter,
    desk: &Desk<P>,
) -> Result<(), ActorError> {
    if change.on_memory() {
        // Nothing tells of it, so the actor looks itself.
        waiter.pass();
        return Ok(());
    }
    let mailbox = &desk.mailbox;
    let unwritten = desk.post.unwritten();
    let alarm = mailbox.as_fd();
    let readable = std::iter::once(&alarm).map(|fd| PollFd::new(fd, PollFlags::IN));
    let mut fds: Vec<_> = readable
        .chain(change.fds().iter().map(|fd| PollFd::new(fd, PollFlags::IN)))
        .chain(unwritten.iter().map(|fd| PollFd::new(fd, PollFlags::OUT)))
        .collect();
    let woken = waiter.wait_polling(&mut fds, change.deadline(), &mut |phase| {
        if phase == Phase::Arm {
            mailbox.about_to_sleep();
        }
        mailbox.take_poke() || (change.on_mail() && mailbox.has_mail())
    });
    mailbox.awake(matches!(woken, Ok(Woken::Fd)));
    woken?;
    Ok(())
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
