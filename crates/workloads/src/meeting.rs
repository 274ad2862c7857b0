//! The bring-up of all queue pairs of an actor by mail.

use headworks::ring::Unconnected;
use headworks::verbs::bringup::Tuning;
use headworks::verbs::{BringUp, DeviceInfo, QueuePair};
use headworks_stage::Cx;

use crate::chance::meeting_seed;
use crate::error::WorkloadError;
use crate::pair::PairCx;

/// The bring-up of an actor's queue pairs, all in one mail at a time. Both actors must list them in the same order.
pub struct Meeting(Vec<BringUp>);

/// What a bring-up of `end` begins with.
pub fn opening(end: &mut impl Unconnected) -> (&mut dyn QueuePair, Tuning, Vec<u8>) {
    let (tuning, greeting) = (end.tuning(), end.greeting());
    (end.queue_pair(), tuning, greeting)
}

fn failed(why: impl std::fmt::Display) -> WorkloadError {
    WorkloadError::at("connecting", why)
}

impl Meeting {
    /// Begins, on the device of `info`; each queue pair carries its greeting to the other end.
    pub fn start<'q>(
        info: &DeviceInfo,
        ends: impl IntoIterator<Item = (&'q mut dyn QueuePair, Tuning, Vec<u8>)>,
    ) -> Result<Self, WorkloadError> {
        let seed = meeting_seed(info);
        let ups = ends.into_iter().map(|(qp, tuning, greeting)| {
            BringUp::start(info, qp, tuning, seed, greeting).map_err(failed)
        });
        Ok(Self(ups.collect::<Result<_, _>>()?))
    }

    /// Goes on with the same queue pairs; once all are connected, the greetings of their peers. Never waits, and reads
    /// no mail beyond that.
    pub fn step(
        &mut self,
        qps: &mut [&mut dyn QueuePair],
        cx: &mut Cx<'_>,
    ) -> Result<Option<Vec<Vec<u8>>>, WorkloadError> {
        loop {
            let said: Vec<Vec<u8>> = self.0.iter_mut().map(BringUp::output).collect();
            if said.iter().any(|bytes| !bytes.is_empty()) {
                let framed = said.iter().flat_map(|bytes| {
                    let len = (bytes.len() as u32).to_le_bytes();
                    len.into_iter().chain(bytes.iter().copied())
                });
                cx.mail(&framed.collect::<Vec<u8>>())?;
            }
            if self.0.iter().all(BringUp::is_connected) {
                let peers = self.0.iter().map(BringUp::peer);
                let greetings = peers.map(|peer| {
                    let peer = peer.ok_or_else(|| failed("an end has no greeting"))?;
                    Ok(peer.payload.clone())
                });
                return greetings.collect::<Result<_, _>>().map(Some);
            }
            let Some(mail) = cx.mailed() else {
                return Ok(None);
            };
            self.hear(qps, &mail)?;
        }
    }

    fn hear(
        &mut self,
        qps: &mut [&mut dyn QueuePair],
        mut mail: &[u8],
    ) -> Result<(), WorkloadError> {
        for (up, qp) in self.0.iter_mut().zip(qps) {
            let short = || failed("a mail is too short");
            let (len, rest) = mail.split_first_chunk::<4>().ok_or_else(short)?;
            let len = u32::from_le_bytes(*len) as usize;
            let (bytes, rest) = rest.split_at_checked(len).ok_or_else(short)?;
            mail = rest;
            if up.input(&mut **qp, bytes).map_err(failed)? != bytes.len() {
                return Err(failed("a mail is too long"));
            }
        }
        Ok(())
    }
}
