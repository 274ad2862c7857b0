//! Channels on verbs as arms: the ring, and the designs that it is compared with. The queue pairs are
//! brought up by mail. The channel back is made only for workloads that send something back: two
//! arrays of large slots are a lot of memory.

use std::fmt;
use std::sync::Arc;

use headworks::ring::{
    EndSetup, MessageReceiver, MessageSender, SendError, SetupError, Unconnected,
};
use headworks::verbs::{BringUp, Device, QueuePair};
use headworks_baselines::counting::{Counts, Tally, counted};

use super::connect::Connect;
use super::job::Job;
use super::rings::{Ends, Rings};
use super::{Fill, Sink};
use crate::chance::meeting_seed;
use crate::error::WorkloadError;
use crate::pair::{PairContext, PairCx, Role};
use headworks_stage::Cx;

/// The sending end that a kind's setup becomes.
pub type Sender<K> = <<K as Kind>::Sending as EndSetup>::End;
/// The receiving end.
pub type Receiver<K> = <<K as Kind>::Receiving as EndSetup>::End;

/// Mail of a bring-up begins with which ring it is about: there, from the sending part, or back.
const THERE: u8 = 0;
const BACK: u8 = 1;

/// A channel's two kinds of ends, and how they are made.
pub trait Kind: Send {
    /// A sending end that is not connected yet.
    type Sending: EndSetup<End: MessageSender + Send> + Send;
    /// A receiving end that is not connected yet.
    type Receiving: EndSetup<End: MessageReceiver + Send> + Send;

    /// Makes a sending end.
    fn sender(&self, device: &Arc<dyn Device>) -> Result<Self::Sending, SetupError>;

    /// Makes a receiving end.
    fn receiver(&self, device: &Arc<dyn Device>) -> Result<Self::Receiving, SetupError>;

    /// Whether what is received is copied out before it is read.
    fn copies_out(&self) -> bool {
        false
    }

    /// What is done with an end after each message, if anything.
    fn after(&self) -> Option<After<Sender<Self>, Receiver<Self>>>
    where
        Self: Sized,
    {
        None
    }
}

/// What is done with either end of a channel after each message.
pub struct After<S, R> {
    /// With the sending end.
    pub sent: fn(&S),
    /// With the receiving end.
    pub received: fn(&R),
}

/// Connects a part's ends of the channel there and of the channel back, whichever it is to have.
pub struct Meet<K: Kind> {
    device: Arc<dyn Device>,
    out: Option<(K::Sending, Meeting)>,
    inward: Option<(K::Receiving, Meeting)>,
}

impl<K: Kind> Meet<K> {
    /// Makes the ends of the part with `role` on its device; `back` is unset where nothing is sent back.
    pub fn start(
        device: Arc<dyn Device>,
        role: Role,
        there: &K,
        back: Option<&K>,
    ) -> Result<Self, WorkloadError> {
        let (there, back) = ((THERE, Some(there)), (BACK, back));
        let ((way_out, sends), (way_in, receives)) = match role {
            Role::Sender => (there, back),
            Role::Receiver => (back, there),
        };
        let failed = |e| WorkloadError::at("ring", e);
        let (mut out, mut inward) = (None, None);
        if let Some(kind) = sends {
            let mut setup = kind.sender(&device).map_err(failed)?;
            let meeting = Meeting::start(way_out, &*device, &mut setup)?;
            out = Some((setup, meeting));
        }
        if let Some(kind) = receives {
            let mut setup = kind.receiver(&device).map_err(failed)?;
            let meeting = Meeting::start(way_in, &*device, &mut setup)?;
            inward = Some((setup, meeting));
        }
        Ok(Self {
            device,
            out,
            inward,
        })
    }

    /// Goes on; the ends once both parts have met. Never waits, and reads no mail beyond that.
    pub fn step(&mut self, cx: &mut Cx<'_>) -> Result<Option<Met<K>>, WorkloadError> {
        loop {
            let mut met = true;
            if let Some((_, meeting)) = &mut self.out {
                met &= meeting.say(cx)?;
            }
            if let Some((_, meeting)) = &mut self.inward {
                met &= meeting.say(cx)?;
            }
            if met {
                break;
            }
            let Some(mail) = cx.mailed() else {
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
                _ => return Err(WorkloadError(format!("ring: mail about a ring {way}"))),
            }
        }
        let failed = |e| WorkloadError::at("ring", e);
        let sender = match self.out.take() {
            Some((setup, meeting)) => Some(setup.finish(&meeting.greeting()?).map_err(failed)?),
            None => None,
        };
        let receiver = match self.inward.take() {
            Some((setup, meeting)) => Some(setup.finish(&meeting.greeting()?).map_err(failed)?),
            None => None,
        };
        Ok(Some(Met {
            sender,
            receiver,
            device: self.device.clone(),
        }))
    }
}

/// A part's connected ends.
pub struct Met<K: Kind> {
    /// It sends on this one.
    pub sender: Option<Sender<K>>,
    /// It receives from this one.
    pub receiver: Option<Receiver<K>>,
    /// What keeps them.
    pub device: Arc<dyn Device>,
}

/// Connects a channel for a workload.
pub struct VerbsConnect<K: Kind> {
    job: Job,
    tally: Option<(Arc<Tally>, Counts)>,
    copies_out: bool,
    after: Option<After<Sender<K>, Receiver<K>>>,
    is_virtual: bool,
    meet: Meet<K>,
}

impl<K: Kind> fmt::Debug for VerbsConnect<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsConnect")
            .field("job", &self.job)
            .finish()
    }
}

impl<K: Kind> VerbsConnect<K> {
    /// Makes the ends on the part's device.
    pub fn new(job: Job, kind: &K, pair: &PairContext) -> Result<Self, WorkloadError> {
        let mut device = pair.open_device()?;
        let mut tally = None;
        if job.counted {
            let (counting, its) = counted(device);
            tally = Some((its, Counts::default()));
            device = counting;
        }
        let back = job.is_two_way().then_some(kind);
        Ok(Self {
            meet: Meet::start(device, pair.role, kind, back)?,
            is_virtual: pair.prices.is_some(),
            job,
            tally,
            copies_out: kind.copies_out(),
            after: kind.after(),
        })
    }
}

impl<K: Kind> Connect for VerbsConnect<K> {
    type Arm = Rings<VerbsEnds<Sender<K>, Receiver<K>>>;

    fn counts(&self) -> Option<Counts> {
        let (tally, before) = self.tally.as_ref()?;
        Some(tally.counts().since(*before))
    }

    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Option<Self::Arm>, WorkloadError> {
        let Some(met) = self.meet.step(cx)? else {
            return Ok(None);
        };
        if let Some((tally, before)) = &mut self.tally {
            *before = tally.counts();
        }
        let copy = self.copies_out && met.receiver.is_some();
        let ends = VerbsEnds {
            sender: met.sender,
            receiver: met.receiver,
            copy: vec![0; if copy { self.job.size } else { 0 }],
            after: self.after.take(),
            _device: met.device,
        };
        let rings = Rings::new(&self.job, ends);
        Ok(Some(match self.is_virtual {
            false => rings,
            true => rings.in_virtual_time(),
        }))
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
        setup: &mut impl Unconnected,
    ) -> Result<Self, WorkloadError> {
        let (tuning, greeting) = (setup.tuning(), setup.greeting());
        let info = device.info();
        let seed = meeting_seed(info);
        let bring_up = BringUp::start(info, setup.queue_pair(), tuning, seed, greeting)
            .map_err(|e| WorkloadError::at("ring", e))?;
        Ok(Self {
            way,
            bring_up,
            inbox: Vec::new(),
        })
    }

    /// Mails what is to be said; whether the queue pair is up.
    fn say(&mut self, cx: &mut Cx<'_>) -> Result<bool, WorkloadError> {
        let bytes = self.bring_up.output();
        if !bytes.is_empty() {
            cx.mail(&[&[self.way], &bytes[..]].concat())?;
        }
        Ok(self.bring_up.is_connected())
    }

    fn hear(&mut self, qp: &mut dyn QueuePair, bytes: &[u8]) -> Result<(), WorkloadError> {
        self.inbox.extend_from_slice(bytes);
        let used = self
            .bring_up
            .input(qp, &self.inbox)
            .map_err(|e| WorkloadError::at("ring", e))?;
        self.inbox.drain(..used);
        Ok(())
    }

    fn greeting(&self) -> Result<Vec<u8>, WorkloadError> {
        let hello = self.bring_up.peer();
        hello
            .map(|hello| hello.payload.clone())
            .ok_or_else(|| WorkloadError("ring: the other end did not say who it is".into()))
    }
}

/// The channels of one part.
pub struct VerbsEnds<S, R> {
    sender: Option<S>,
    receiver: Option<R>,
    /// The application's memory, where messages are copied out.
    copy: Vec<u8>,
    after: Option<After<S, R>>,
    _device: Arc<dyn Device>,
}

impl<S, R> VerbsEnds<S, R> {
    #[inline]
    fn sent(&self) {
        if let (Some(after), Some(sender)) = (&self.after, &self.sender) {
            (after.sent)(sender);
        }
    }
}

#[cold]
fn one_way() -> WorkloadError {
    WorkloadError("ring: this workload goes the other way".into())
}

/// Room or not.
#[inline]
fn room(sent: Result<(), SendError>) -> Result<bool, WorkloadError> {
    match sent {
        Ok(()) => Ok(true),
        Err(SendError::Full) => Ok(false),
        Err(why) => Err(WorkloadError::at("sending", why)),
    }
}

impl<S: MessageSender, R: MessageReceiver> Ends for VerbsEnds<S, R> {
    #[inline]
    fn put(&mut self, message: &[u8]) -> Result<bool, WorkloadError> {
        let sender = self.sender.as_mut().ok_or_else(one_way)?;
        let sent = room(sender.try_send(message))?;
        self.sent();
        Ok(sent)
    }

    #[inline]
    fn put_in_place<F: Fill>(&mut self, len: usize, fill: &mut F) -> Result<bool, WorkloadError> {
        let sender = self.sender.as_mut().ok_or_else(one_way)?;
        let mut is_written = false;
        let sent = room(sender.try_send_with(len, |place| {
            fill.fill(place);
            is_written = true;
        }))?;
        // There was room in the channel, and then none in the device's queue.
        if is_written && !sent {
            fill.again();
        }
        self.sent();
        Ok(sent)
    }

    #[inline]
    fn get<T: Sink>(&mut self, _: usize, sink: &mut T) -> Result<bool, WorkloadError> {
        let receiver = self.receiver.as_mut().ok_or_else(one_way)?;
        let copy = &mut self.copy;
        let got = receiver.try_recv_with(|message| match copy.get_mut(..message.len()) {
            Some(copy) if !copy.is_empty() => {
                copy.copy_from_slice(message);
                sink.take(copy);
            }
            _ => sink.take(message),
        });
        if let Some(after) = &self.after {
            (after.received)(receiver);
        }
        match got {
            Ok(got) => Ok(got.is_some()),
            Err(why) => Err(WorkloadError::at("receiving", why)),
        }
    }

    #[inline]
    fn publish(&mut self) -> Result<bool, WorkloadError> {
        match &mut self.sender {
            Some(sender) => sender.flush().map_err(|e| WorkloadError::at("sending", e)),
            None => Ok(true),
        }
    }

    fn look(&mut self) -> Result<(), WorkloadError> {
        if let Some(sender) = &mut self.sender {
            sender.step().map_err(|e| WorkloadError::at("sending", e))?;
        }
        if let Some(receiver) = &mut self.receiver {
            receiver
                .step()
                .map_err(|e| WorkloadError::at("receiving", e))?;
            receiver
                .push_head()
                .map_err(|e| WorkloadError::at("receiving", e))?;
        }
        Ok(())
    }
}
