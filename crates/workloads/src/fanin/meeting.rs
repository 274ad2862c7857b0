//! The bring-up of any number of rings by mail, all in one.

use headworks::ring::Unconnected;
use headworks::verbs::{BringUp, DeviceInfo};

use crate::chance::meeting_seed;
use crate::error::WorkloadError;
use crate::pair::PairCx;
use headworks_stage::Cx;

/// All ends of a part, on their way up.
pub(super) struct Meeting<S> {
    ends: Vec<(S, BringUp)>,
}

impl<S: Unconnected> Meeting<S> {
    pub(super) fn start(
        info: &DeviceInfo,
        ends: impl IntoIterator<Item = Result<S, WorkloadError>>,
    ) -> Result<Self, WorkloadError> {
        let seed = meeting_seed(info);
        let ends = ends.into_iter().map(|end| {
            let mut end = end?;
            let (greeting, tuning) = (end.greeting(), end.tuning());
            let up = BringUp::start(info, end.queue_pair(), tuning, seed, greeting);
            Ok((end, up.map_err(|e| WorkloadError::at("connecting", e))?))
        });
        Ok(Self {
            ends: ends.collect::<Result<_, WorkloadError>>()?,
        })
    }

    /// Goes on; says whether all are connected. No mail beyond that is read.
    pub(super) fn step(&mut self, cx: &mut Cx<'_>) -> Result<bool, WorkloadError> {
        loop {
            let mut mail = Vec::new();
            let mut said = false;
            for (_, up) in &mut self.ends {
                let bytes = up.output();
                said |= !bytes.is_empty();
                mail.extend((bytes.len() as u32).to_le_bytes());
                mail.extend(bytes);
            }
            if said {
                cx.mail(&mail)?;
            }
            if self.ends.iter().all(|(_, up)| up.is_connected()) {
                return Ok(true);
            }
            let Some(mail) = cx.mailed() else {
                return Ok(false);
            };
            self.hear(&mail)?;
        }
    }

    fn hear(&mut self, mut mail: &[u8]) -> Result<(), WorkloadError> {
        let short = || WorkloadError("connecting: a mail is too short".into());
        for (end, up) in &mut self.ends {
            let (len, rest) = mail.split_first_chunk::<4>().ok_or_else(short)?;
            let (bytes, rest) = rest
                .split_at_checked(u32::from_le_bytes(*len) as usize)
                .ok_or_else(short)?;
            mail = rest;
            let used = up.input(end.queue_pair(), bytes);
            if used.map_err(|e| WorkloadError::at("connecting", e))? != bytes.len() {
                return Err(WorkloadError("connecting: a mail is too long".into()));
            }
        }
        Ok(())
    }

    /// Every end, and what the other end's greeting was.
    pub(super) fn finish(self) -> Result<Vec<(S, Vec<u8>)>, WorkloadError> {
        let ends = self.ends.into_iter().map(|(end, up)| {
            let peer = up.peer().map(|peer| peer.payload.clone());
            let silent = || WorkloadError("connecting: an end did not say who it is".into());
            Ok((end, peer.ok_or_else(silent)?))
        });
        ends.collect()
    }
}
