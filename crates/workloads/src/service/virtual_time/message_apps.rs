//! Applications in virtual time that send each other messages in turn.

use headworks::client::connection::Wake;
use headworks::client::control_block::Transfer;
use headworks::runtime::{Actor, ActorContext, ActorError, Step};
use headworks::verbs::{Duration, Instant};

use super::daemon_host::SharedSession;
use super::nanos;
use super::one_sided_apps::{Client, LOOK, Opening};
use super::{CallerRun, SOON, ScenarioBuilder, SharedRun, locked};
use crate::service::Result;
use crate::service::one_sided::{MessageWay, OneSidedOp};

/// Bytes copied at a time: as many as a record carries.
const PIECE: usize = 64 << 10;

/// Adds the applications of these sessions: one that begins, and one on the other host that answers as many
/// bytes.
pub(super) fn add(
    scenario: &mut ScenarioBuilder,
    bytes: usize,
    sessions: [SharedSession; 2],
) -> Result<()> {
    let (load, preset) = (
        scenario.shared_run.load,
        &scenario.shared_run.machine.preset,
    );
    debug_assert!(load.callers == 1 && load.connections == 1 && load.outstanding == 1);
    let transfer = match load.what {
        OneSidedOp::Messages { way, .. } => match way {
            MessageWay::Any => Transfer::Any,
            MessageWay::Frames => Transfer::Send,
            MessageWay::Read => Transfer::Read,
        },
        _ => Transfer::Any,
    };
    let costs = [preset.message_ns, preset.line_ns].map(nanos);
    for (host, app_session) in sessions.into_iter().enumerate() {
        let shared_run = scenario.shared_run.clone();
        scenario.add(host, format!("m{host}"), move |_| {
            let (opening, phase) = match host {
                0 => (Opening::Connects(vec![1]), Phase::Rests),
                _ => (Opening::Listens(load.what), Phase::GETS),
            };
            Ok(Talker {
                shared_run: shared_run.clone(),
                share: (host == 0).then(|| shared_run.share(0)),
                client: Client::new(&app_session, &opening, 0),
                costs,
                transfer,
                message: vec![0; bytes],
                number: 0,
                phase,
                prepaid: 0,
            })
        })?;
    }
    Ok(())
}

/// How far an application is with a message.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The message is not begun.
    Rests,
    /// Number of bytes handed to the connection.
    Sends(usize),
    /// Number of bytes received, and how many more become visible at that time.
    Gets(usize, Option<(usize, Instant)>),
    /// Number of bytes received, and how many more were copied.
    Copied(usize, usize),
}

impl Phase {
    const GETS: Self = Self::Gets(0, None);
}

/// One of the two applications.
struct Talker {
    shared_run: SharedRun,
    /// Set for the application that begins.
    share: Option<CallerRun>,
    client: Client,
    /// Time of a message without its copies, and time to read a cache line that the daemon wrote last.
    costs: [Duration; 2],
    transfer: Transfer,
    /// The message being sent, or the one expected.
    message: Vec<u8>,
    /// Number of messages received, modulo 256.
    number: u8,
    phase: Phase,
    /// Bytes whose copy was charged but for which the connection had no room yet.
    prepaid: usize,
}

/// Writes the contents of message `number`.
fn fill(message: &mut [u8], number: u8) {
    for (at, byte) in message.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(31).wrapping_add(number);
    }
}

impl Actor for Talker {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if self.client.ends.is_empty() {
            self.client.process_events()?;
            return Ok(Step::At(now + SOON));
        }
        match &mut self.share {
            Some(share) => {
                if let Some(step) = share.wait_for_start(now) {
                    return Ok(step);
                }
            }
            None if self.shared_run.is_over() => return Ok(Step::Done),
            None => {}
        }
        let app_session = &mut *locked(&self.client.app_session);
        let connection = &mut self.client.ends[0].connection;
        connection.refresh(app_session.session.slabs());
        let [each, line] = self.costs;
        let len = self.message.len();
        self.phase = match self.phase {
            Phase::Rests => {
                if let Some(share) = &mut self.share {
                    if share.work.is_over(now) {
                        share.finish();
                        return Ok(Step::Done);
                    }
                    share.work.next(now);
                }
                fill(&mut self.message, self.number);
                cx.charge(each);
                Phase::Sends(0)
            }
            Phase::Sends(sent) => {
                let piece = PIECE.min(len - sent);
                if self.prepaid < piece {
                    cx.copied((piece - self.prepaid) as u64);
                    self.prepaid = piece;
                    return Ok(Step::Again);
                }
                let bytes = &self.message[sent..sent + piece];
                let (count, _) = connection.sending.send_as(bytes, self.transfer)?;
                self.prepaid -= count;
                app_session.wrote(connection.handle(), u64::from(count > 0));
                if count == 0 {
                    // This makes the daemon check whether there is room.
                    let _: Wake = connection.nudge();
                }
                cx.charge(LOOK);
                match sent + count == len {
                    true => Phase::GETS,
                    false => Phase::Sends(sent + count),
                }
            }
            Phase::Gets(got, None) => {
                cx.charge(LOOK);
                let count = connection.receiving.peek()?.len as usize;
                // The effects of the daemon's latest step are invisible until that step is over.
                let seen = (count > 0).then_some((count, now.max(app_session.seen_at)));
                Phase::Gets(got, seen)
            }
            Phase::Gets(_, Some((_, at))) if at > now => return Ok(Step::At(at)),
            Phase::Gets(got, Some((count, _))) => {
                let count = count.min(PIECE).min(len - got);
                cx.charge(if got == 0 { each + line } else { line });
                cx.copied(count as u64);
                let extent = connection.receiving.peek()?.part(0, count as u32);
                let slabs = app_session.session.slabs();
                if let Some(begin) = slabs
                    .slab(extent.slab)
                    .and_then(|slab| slab.ptr_at(extent.offset as usize, count))
                {
                    cx.reads(begin, count);
                }
                Phase::Copied(got, count)
            }
            Phase::Copied(got, count) => {
                if self.share.is_none() && got == 0 {
                    fill(&mut self.message, self.number);
                }
                let mut bytes = vec![0; count];
                let extent = connection.receiving.peek()?.part(0, count as u32);
                app_session.session.slabs().read(extent, &mut bytes)?;
                let _: Wake = connection.receiving.consume(count as u64);
                app_session.wrote(connection.handle(), 0);
                if bytes != self.message[got..got + count] {
                    return Err(ActorError::new("a message arrived with wrong bytes"));
                }
                cx.charge(LOOK);
                if got + count < len {
                    Phase::Gets(got + count, None)
                } else {
                    self.number = self.number.wrapping_add(1);
                    match &mut self.share {
                        None => Phase::Sends(0),
                        Some(share) => {
                            share.work.complete(0, now);
                            Phase::Rests
                        }
                    }
                }
            }
        };
        Ok(Step::Again)
    }
}
