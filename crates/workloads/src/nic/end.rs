//! Opening one end of the measured queue pairs, and meeting the other end by mail.

use headworks::verbs::bringup::Tuning;
use headworks::verbs::{BringUp, RemoteAddr};
pub use headworks_baselines::{End, Shape};

use crate::chance::meeting_seed;
use crate::error::WorkloadError;
use crate::pair::PairContext;
use crate::pair::{PairCx, wait};
use headworks_stage::{Actor, ActorError, Cx, Step};

/// Everything but the queue pairs, on the part's device, which its name may have paced.
pub fn open(pair: &PairContext, shape: &Shape) -> Result<End, WorkloadError> {
    Ok(End::open(pair.clone().paced().open_device()?, shape)?)
}

/// The bring-up of all queue pairs of an end, in as few mails as it takes.
pub struct Meeting {
    bring_ups: Vec<BringUp>,
}

impl Meeting {
    /// Begins; the first queue pair carries `payload` to the other end.
    pub fn start(end: &mut End, payload: &[u8]) -> Result<Self, WorkloadError> {
        let info = end.device.info();
        let mut payload = payload.to_vec();
        let seed = meeting_seed(info);
        let bring_ups = end.queue_pairs.iter_mut().map(|qp| {
            let payload = std::mem::take(&mut payload);
            BringUp::start(info, &mut **qp, Tuning::default(), seed, payload)
        });
        let bring_ups = bring_ups.collect::<Result<_, _>>();
        Ok(Self {
            bring_ups: bring_ups.map_err(|e| WorkloadError::at("connecting", e))?,
        })
    }

    /// Goes on; once all are connected, the other end's payload. No mail beyond that is read.
    pub fn step(
        &mut self,
        end: &mut End,
        cx: &mut Cx<'_>,
    ) -> Result<Option<Vec<u8>>, WorkloadError> {
        loop {
            let mut mail = Vec::new();
            let mut said = false;
            for bring_up in &mut self.bring_ups {
                let bytes = bring_up.output();
                said |= !bytes.is_empty();
                mail.extend((bytes.len() as u32).to_le_bytes());
                mail.extend(bytes);
            }
            if said {
                cx.mail(&mail)?;
            }
            if self.bring_ups.iter().all(BringUp::is_connected) {
                let peer = self.bring_ups.first().and_then(BringUp::peer);
                return Ok(Some(peer.map_or_else(Vec::new, |p| p.payload.clone())));
            }
            let Some(mail) = cx.mailed() else {
                return Ok(None);
            };
            self.hear(end, &mail)?;
        }
    }

    fn hear(&mut self, end: &mut End, mail: &[u8]) -> Result<(), WorkloadError> {
        let mut rest = mail;
        for (bring_up, qp) in self.bring_ups.iter_mut().zip(&mut end.queue_pairs) {
            let short = || WorkloadError("connecting: a mail is too short".into());
            let (len, after) = rest.split_first_chunk::<4>().ok_or_else(short)?;
            let (bytes, after) = after
                .split_at_checked(u32::from_le_bytes(*len) as usize)
                .ok_or_else(short)?;
            rest = after;
            let used = bring_up.input(&mut **qp, bytes);
            if used.map_err(|e| WorkloadError::at("connecting", e))? != bytes.len() {
                return Err(WorkloadError("connecting: a mail is too long".into()));
            }
        }
        Ok(())
    }
}

/// Addresses of memory, as a payload.
pub fn emit(addresses: &[RemoteAddr]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for at in addresses {
        bytes.extend(at.addr.to_le_bytes());
        bytes.extend(at.rkey.to_le_bytes());
    }
    bytes
}

/// The addresses in a payload, `N` of them.
pub fn parse<const N: usize>(payload: &[u8]) -> Result<[RemoteAddr; N], WorkloadError> {
    let (entries, []) = payload.as_chunks::<12>() else {
        return Err(WorkloadError(
            "connecting: no addresses in the greeting".into(),
        ));
    };
    let address = |entry: &[u8; 12]| {
        let [a, b, c, d, e, f, g, h, key @ ..] = *entry;
        RemoteAddr {
            addr: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_le_bytes(key),
        }
    };
    let all: Vec<RemoteAddr> = entries.iter().map(address).collect();
    let found = all.len();
    let wrong = |_| WorkloadError(format!("connecting: {found} addresses, expected {N}"));
    all.try_into().map_err(wrong)
}

/// A part that connects its end first and then does what `play` makes of that.
pub fn connected<P, F>(
    mut end: End,
    payload: &[u8],
    play: F,
) -> Result<Box<dyn Actor>, WorkloadError>
where
    P: Actor + 'static,
    F: FnOnce(End, &[u8]) -> Result<P, WorkloadError> + Send + 'static,
{
    let meeting = Meeting::start(&mut end, payload)?;
    let mut before = Some((meeting, end, play));
    Ok(started(move |cx| {
        let Some((mut meeting, mut end, play)) = before.take() else {
            return Err(WorkloadError("connecting failed before".into()));
        };
        let Some(payload) = meeting.step(&mut end, cx)? else {
            before = Some((meeting, end, play));
            return Ok(None);
        };
        drop(meeting);
        Ok(Some(Box::new(play(end, &payload)?)))
    }))
}

/// A part that is the one which `start` answers, once it does.
pub fn started<F>(start: F) -> Box<dyn Actor>
where
    F: FnMut(&mut Cx<'_>) -> Result<Option<Box<dyn Actor>>, WorkloadError> + Send + 'static,
{
    let playing = None;
    Box::new(Started { start, playing })
}

struct Started<F> {
    start: F,
    playing: Option<Box<dyn Actor>>,
}

impl<F> Actor for Started<F>
where
    F: FnMut(&mut Cx<'_>) -> Result<Option<Box<dyn Actor>>, WorkloadError> + Send,
{
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if let Some(playing) = &mut self.playing {
            return playing.step(cx);
        }
        self.playing = (self.start)(cx)?;
        match self.playing {
            Some(_) => Ok(Step::Again),
            None => Ok(wait()),
        }
    }
}
