//! The actor that holds all sending ends.

use headworks::ring::{SendError, Sender, SenderSetup};
use headworks_runtime::{Actor, ActorContext, ActorError, Step};

use super::{BURST, FaninLoad, FaninTask, SIZE, config, failed};
use crate::actor_pair::{PairContext, PairMail, wait};
use crate::connecting_actor::{WorkloadDriver, connecting_actor};
use crate::error::{Result, WorkloadError};
use crate::mail_bring_up::MailBringUp;

/// Number of bursts between two checks for mail.
const BURSTS: usize = 64;

/// A ring, and how many messages were put into it.
struct Ring {
    sender: Sender,
    sent: u64,
}

impl Ring {
    /// Sends one message if there is room.
    #[inline(always)]
    fn send(&mut self) -> Result<bool> {
        let mut message = [0; SIZE];
        message[..8].copy_from_slice(&self.sent.to_le_bytes());
        message[SIZE - 8..].copy_from_slice(&self.sent.to_le_bytes());
        match self.sender.try_send(&message) {
            Ok(()) => {
                self.sent += 1;
                Ok(true)
            }
            Err(SendError::Full) => Ok(false),
            Err(why) => Err(WorkloadError::at("sending", why)),
        }
    }

    #[inline]
    fn burst(&mut self) -> Result<()> {
        for _ in 0..BURST {
            if !self.send()? {
                break;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<bool> {
        let failed = |e| WorkloadError::at("sending", e);
        let flushed = self.sender.flush().map_err(failed)?;
        if !flushed {
            self.sender.step().map_err(failed)?;
        }
        Ok(flushed)
    }
}

/// Makes the sending actor.
pub(super) fn actor(task: &FaninTask, pair: &PairContext) -> Result<Box<dyn Actor>> {
    let device = pair.open_device()?;
    let ends = (0..task.rings).map(|_| SenderSetup::new(&device, &config()).map_err(failed));
    let ends = ends.collect::<Result<_, _>>()?;
    let meet = MailBringUp::start(device, ends, |ends| {
        let rings = ends.into_iter().map(|(end, peer)| {
            let sender = end.finish(&peer).map_err(failed)?;
            Ok(Ring { sender, sent: 0 })
        });
        rings.collect::<Result<Vec<_>>>()
    })?;
    let state = SenderState::Waiting;
    Ok(connecting_actor(meet, false, Sending { state, next: 0 }))
}

#[derive(Clone, Copy)]
enum SenderState {
    /// Waits to be told the next load.
    Waiting,
    Sending(FaninLoad),
    /// Publishes the messages that are not published yet, then mails how many were sent in all.
    Ending,
}

struct Sending {
    state: SenderState,
    /// Index of the ring that is next in turn.
    next: usize,
}

impl Sending {
    fn send(&mut self, rings: &mut [Ring], load: FaninLoad) -> Result<()> {
        for _ in 0..BURSTS {
            match load {
                FaninLoad::Idle => return Ok(()),
                FaninLoad::One => rings[0].burst()?,
                FaninLoad::All => rings[self.turn(0, rings.len())].burst()?,
                FaninLoad::Flood => {
                    rings[0].burst()?;
                    if rings.len() > 1 {
                        let other = &mut rings[self.turn(1, rings.len())];
                        other.send()?;
                        other.flush()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the index of the next ring in round-robin order over `first..rings`.
    fn turn(&mut self, first: usize, rings: usize) -> usize {
        if self.next < first || self.next >= rings {
            self.next = first;
        }
        self.next += 1;
        self.next - 1
    }
}

impl WorkloadDriver<Vec<Ring>> for Sending {
    fn step(
        &mut self,
        rings: &mut Vec<Ring>,
        cx: &mut ActorContext<'_>,
    ) -> Result<Step, ActorError> {
        match self.state {
            SenderState::Waiting => {
                let Some(mail) = cx.receive_mail() else {
                    return Ok(wait());
                };
                match mail
                    .first()
                    .and_then(|load| FaninLoad::ALL.get(usize::from(*load)))
                {
                    Some(load) => self.state = SenderState::Sending(*load),
                    None => return Ok(Step::Done),
                }
            }
            SenderState::Sending(_) if cx.receive_mail().is_some() => {
                self.state = SenderState::Ending
            }
            SenderState::Sending(FaninLoad::Idle) => return Ok(wait()),
            SenderState::Sending(load) => self.send(rings, load)?,
            SenderState::Ending => {
                let mut all = true;
                for ring in &mut *rings {
                    all &= ring.flush()?;
                }
                if all {
                    let sent: u64 = rings.iter().map(|ring| ring.sent).sum();
                    cx.send_mail(&sent.to_le_bytes())?;
                    self.state = SenderState::Waiting;
                }
            }
        }
        Ok(Step::Again)
    }
}
