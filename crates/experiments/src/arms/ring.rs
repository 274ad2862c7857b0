//! The ring on verbs as an arm. The queue pairs are brought up by mail. The ring back is made only
//! for workloads that send something back: two arrays of large slots are a lot of memory.

use std::fmt;
use std::sync::Arc;

use headworks::ring::{Mode, Receiver, ReceiverSetup, RingConfig, SendError, Sender, SenderSetup};
use headworks::verbs::bringup::Tuning;
use headworks::verbs::{BringUp, Device, QueuePair};

use super::connect::{Connect, Role};
use super::job::{Job, RingMode, Workload};
use super::rings::{Ends, Rings};
use super::{ArmError, Env, Fill, Sink};
use crate::world::Handed;

/// Mail of a bring-up begins with which ring it is about: there, from the sending part, or back.
const THERE: u8 = 0;
const BACK: u8 = 1;

/// The ring's configuration for `job`: the papers' framing, α, β and γ as the mode says.
fn config(job: &Job, mode: RingMode) -> Result<RingConfig, ArmError> {
    let slots = job.slots.try_into();
    let slots = slots.map_err(|_| ArmError(format!("ring: {} slots", job.slots)))?;
    let mut config = RingConfig::fixed(slots, job.size);
    match mode {
        RingMode::Default => {}
        RingMode::Unbatched => {
            config.publish_every = Some(1);
            config.transmit_every = Some(1);
        }
        RingMode::Latency => config.mode = Mode::Latency,
    }
    Ok(config)
}

/// Connects the ring there and, where the workload needs it, the one back.
pub struct RingConnect {
    job: Job,
    device: Arc<dyn Device>,
    out: Option<(SenderSetup, Meeting)>,
    inward: Option<(ReceiverSetup, Meeting)>,
}

impl fmt::Debug for RingConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingConnect")
            .field("job", &self.job)
            .finish()
    }
}

impl RingConnect {
    /// Makes the ends on the part's device.
    pub fn new(job: Job, role: Role, mode: RingMode, handed: &Handed) -> Result<Self, ArmError> {
        let device = handed
            .open_device()
            .map_err(|e| ArmError::at("device", e))?;
        let config = config(&job, mode)?;
        let failed = |e| ArmError::at("ring", e);
        let both = job.workload == Workload::PingPong;
        let (mut out, mut inward) = (None, None);
        if role == Role::Sender || both {
            let mut setup = SenderSetup::new(&device, &config).map_err(failed)?;
            let way = if role == Role::Sender { THERE } else { BACK };
            let (greeting, tuning) = (setup.greeting(), setup.tuning());
            let meeting = Meeting::start(way, &*device, setup.queue_pair(), tuning, greeting)?;
            out = Some((setup, meeting));
        }
        if role == Role::Receiver || both {
            let mut setup = ReceiverSetup::new(&device, &config).map_err(failed)?;
            let way = if role == Role::Receiver { THERE } else { BACK };
            let (greeting, tuning) = (setup.greeting(), setup.tuning());
            let meeting = Meeting::start(way, &*device, setup.queue_pair(), tuning, greeting)?;
            inward = Some((setup, meeting));
        }
        Ok(Self {
            job,
            device,
            out,
            inward,
        })
    }
}

impl Connect for RingConnect {
    type Arm = Rings<RingEnds>;

    fn step(&mut self, env: &mut dyn Env) -> Result<Option<Self::Arm>, ArmError> {
        loop {
            let mut met = true;
            if let Some((_, meeting)) = &mut self.out {
                met &= meeting.say(env)?;
            }
            if let Some((_, meeting)) = &mut self.inward {
                met &= meeting.say(env)?;
            }
            if met {
                break;
            }
            // No mail is read beyond the last one about a ring: what follows is the workload's.
            let Some(mail) = env.mailed() else {
                return Ok(None);
            };
            let Some((way, bytes)) = mail.split_first() else {
                continue;
            };
            match (&mut self.out, &mut self.inward) {
                (Some((setup, meeting)), _) if meeting.way == *way => {
                    meeting.hear(setup.queue_pair(), bytes)?;
                }
                (_, Some((setup, meeting))) if meeting.way == *way => {
                    meeting.hear(setup.queue_pair(), bytes)?;
                }
                _ => return Err(ArmError(format!("ring: mail about a ring {way}"))),
            }
        }
        let failed = |e| ArmError::at("ring", e);
        let sender = match self.out.take() {
            Some((setup, meeting)) => Some(setup.finish(&meeting.greeting()?).map_err(failed)?),
            None => None,
        };
        let receiver = match self.inward.take() {
            Some((setup, meeting)) => Some(setup.finish(&meeting.greeting()?).map_err(failed)?),
            None => None,
        };
        let ends = RingEnds {
            sender,
            receiver,
            _device: self.device.clone(),
        };
        Ok(Some(Rings::new(&self.job, ends)))
    }
}

/// A queue pair's bring-up by mail.
struct Meeting {
    way: u8,
    bring_up: BringUp,
    inbox: Vec<u8>,
}

impl Meeting {
    fn start(
        way: u8,
        device: &dyn Device,
        qp: &mut dyn QueuePair,
        tuning: Tuning,
        greeting: Vec<u8>,
    ) -> Result<Self, ArmError> {
        let seed = std::process::id();
        let bring_up = BringUp::start(device.info(), qp, tuning, seed, greeting)
            .map_err(|e| ArmError::at("ring", e))?;
        Ok(Self {
            way,
            bring_up,
            inbox: Vec::new(),
        })
    }

    /// Mails what is to be said; whether the queue pair is up.
    fn say(&mut self, env: &mut dyn Env) -> Result<bool, ArmError> {
        let bytes = self.bring_up.output();
        if !bytes.is_empty() {
            env.mail(&[&[self.way], &bytes[..]].concat())?;
        }
        Ok(self.bring_up.is_connected())
    }

    fn hear(&mut self, qp: &mut dyn QueuePair, bytes: &[u8]) -> Result<(), ArmError> {
        self.inbox.extend_from_slice(bytes);
        let used = self
            .bring_up
            .input(qp, &self.inbox)
            .map_err(|e| ArmError::at("ring", e))?;
        self.inbox.drain(..used);
        Ok(())
    }

    fn greeting(&self) -> Result<Vec<u8>, ArmError> {
        let hello = self.bring_up.peer();
        hello
            .map(|hello| hello.payload.clone())
            .ok_or_else(|| ArmError("ring: the other end did not say who it is".into()))
    }
}

/// The rings of one part.
pub struct RingEnds {
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    _device: Arc<dyn Device>,
}

impl fmt::Debug for RingEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sent = self.sender.as_ref().map(Sender::stats);
        let received = self.receiver.as_ref().map(Receiver::stats);
        f.debug_struct("RingEnds")
            .field("sender", &sent)
            .field("receiver", &received)
            .finish()
    }
}

#[cold]
fn one_way() -> ArmError {
    ArmError("ring: this workload goes the other way".into())
}

/// Room or not.
#[inline]
fn room(sent: Result<(), SendError>) -> Result<bool, ArmError> {
    match sent {
        Ok(()) => Ok(true),
        Err(SendError::Full) => Ok(false),
        Err(why) => Err(ArmError::at("sending", why)),
    }
}

impl Ends for RingEnds {
    #[inline]
    fn put(&mut self, message: &[u8]) -> Result<bool, ArmError> {
        let sender = self.sender.as_mut().ok_or_else(one_way)?;
        room(sender.try_send(message))
    }

    #[inline]
    fn put_in_place<F: Fill>(&mut self, len: usize, fill: &mut F) -> Result<bool, ArmError> {
        let sender = self.sender.as_mut().ok_or_else(one_way)?;
        room(sender.try_reserve(len).and_then(|mut place| {
            fill.fill(&mut place);
            place.commit()
        }))
    }

    #[inline]
    fn get<S: Sink>(&mut self, _: usize, sink: &mut S) -> Result<bool, ArmError> {
        let receiver = self.receiver.as_mut().ok_or_else(one_way)?;
        match receiver.try_recv() {
            Ok(Some(message)) => {
                sink.take(&message);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(why) => Err(ArmError::at("receiving", why)),
        }
    }

    #[inline]
    fn publish(&mut self) -> Result<bool, ArmError> {
        match &mut self.sender {
            Some(sender) => sender.flush().map_err(|e| ArmError::at("sending", e)),
            None => Ok(true),
        }
    }

    fn look(&mut self) -> Result<(), ArmError> {
        if let Some(sender) = &mut self.sender {
            sender.step().map_err(|e| ArmError::at("sending", e))?;
        }
        if let Some(receiver) = &mut self.receiver {
            receiver.step().map_err(|e| ArmError::at("receiving", e))?;
            receiver
                .push_head()
                .map_err(|e| ArmError::at("receiving", e))?;
        }
        Ok(())
    }
}
