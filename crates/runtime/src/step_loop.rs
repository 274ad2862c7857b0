//! Steps one actor in real time until it ends: the shell around [`Actor::step`].

use std::any::Any;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use headworks_verbs::Instant;
use rustix::event::{PollFd, PollFlags};

use crate::actor::{Actor, ActorContext, ActorError, Step, WakeCondition};
use crate::context::{MailTransport, RealTimeContext};
use crate::world::ActorOutcome;
use crate::{ActorInit, ActorRegistry};
use headworks_net::clock;
use headworks_net::cpu_affinity;
use headworks_net::waiting::{SPIN_BUDGET, SpinMode, WaitPhase, Waiter, WakeReason};

/// Constructs the actor of `part` and runs it on this thread. `parts` is how many actors run at the same
/// time.
pub(crate) fn run_actor<P: MailTransport>(
    actors: &ActorRegistry,
    part: &ActorInit,
    parts: usize,
    context: &mut RealTimeContext<P>,
) -> ActorOutcome {
    // Processors are counted before pinning, after which this thread has only one.
    let waiter = Waiter::new(SPIN_BUDGET, SpinMode::for_waiters(parts));
    let ended = catch_failure(|| {
        if let Some(cpu) = part.cpu {
            cpu_affinity::pin_to_cpu(cpu)?;
        }
        let mut actor = actors.construct(part)?;
        step_until_done(actor.as_mut(), waiter, context)
    });
    match ended {
        Ok(()) => ActorOutcome::Done,
        Err(outcome) => outcome,
    }
}

/// For worlds: calls `act`, which runs code of an actor, and turns an error or a panic into the outcome of
/// that actor. After a panic, the actor's state must only be used to report it.
pub fn catch_failure<T>(act: impl FnOnce() -> Result<T, ActorError>) -> Result<T, ActorOutcome> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(ActorOutcome::Failed(error.to_string())),
        Err(panic) => {
            let why = panic_text(panic.as_ref());
            Err(ActorOutcome::Failed(format!("panicked: {why}")))
        }
    }
}

fn step_until_done<P: MailTransport>(
    actor: &mut dyn Actor,
    mut waiter: Waiter,
    context: &mut RealTimeContext<P>,
) -> Result<(), ActorError> {
    loop {
        if context.mailbox.cancelled() {
            return Err(ActorError::new("was ended by the coordinator"));
        }
        let step = actor.step(&mut ActorContext::new(context))?;
        context.post.flush()?;
        match step {
            Step::Again => {}
            Step::At(at) => wait_until(at, &mut waiter, context)?,
            Step::Wait(change) => wait_for(&change, &mut waiter, context)?,
            Step::Done => return Ok(()),
        }
    }
}

fn wait_until<P: MailTransport>(
    at: Instant,
    waiter: &mut Waiter,
    context: &RealTimeContext<P>,
) -> Result<(), ActorError> {
    // Being woken takes about as long as the budget: sleep for less, and spin for the rest.
    let left = at.since(clock::now());
    if left > SPIN_BUDGET.times(2) {
        let nearly = clock::now() + (left - SPIN_BUDGET);
        wait_for(&WakeCondition::default().until(nearly), waiter, context)?;
        if clock::now() < nearly {
            return Ok(());
        }
    }
    while clock::now() < at && !context.mailbox.take_poke() {
        waiter.spin_once();
    }
    Ok(())
}

fn wait_for<P: MailTransport>(
    change: &WakeCondition,
    waiter: &mut Waiter,
    context: &RealTimeContext<P>,
) -> Result<(), ActorError> {
    if change.on_memory() {
        // No event announces changes of memory, so the actor checks it in its next step.
        waiter.spin_once();
        return Ok(());
    }
    let mailbox = &context.mailbox;
    let unwritten = context.post.unwritten();
    let alarm = mailbox.as_fd();
    let readable = std::iter::once(&alarm).map(|fd| PollFd::new(fd, PollFlags::IN));
    let mut fds: Vec<_> = readable
        .chain(change.fds().iter().map(|fd| PollFd::new(fd, PollFlags::IN)))
        .chain(unwritten.iter().map(|fd| PollFd::new(fd, PollFlags::OUT)))
        .collect();
    let woken = waiter.wait_polling(&mut fds, change.deadline(), &mut |phase| {
        if phase == WaitPhase::Arm {
            mailbox.about_to_sleep();
        }
        mailbox.take_poke() || (change.on_mail() && mailbox.has_mail())
    });
    mailbox.awake(matches!(woken, Ok(WakeReason::Fd)));
    woken?;
    Ok(())
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
