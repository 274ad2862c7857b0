//! The side that has the files.

use headworks::ring::{MessageReceiver, MessageSender};

use super::{Reply, Site};
use crate::apps::looks::Looks;
use crate::apps::{AppError, Progress, room};

/// Requests answered in one step, at most.
const BATCH: usize = 8;

/// Answers whatever comes, until nobody asks any more.
#[derive(Clone, Debug)]
pub struct Server {
    site: Site,
    /// Decided, and not sent for lack of room.
    waiting: Option<Reply>,
    answered: u64,
    refused: u64,
    looks: Looks,
}

impl Server {
    /// Of these files.
    pub fn new(site: Site) -> Self {
        Self {
            site,
            waiting: None,
            answered: 0,
            refused: 0,
            looks: Looks::default(),
        }
    }

    /// Answers what is there, as far as there is room, and puts each response on its way at once.
    /// Never [`Progress::Done`]: only the client knows whether it will ask again.
    #[inline]
    pub fn step(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<Progress, AppError> {
        for answered in 0..BATCH {
            let so_far = match answered {
                0 => Progress::Idle,
                _ => Progress::Worked,
            };
            if self.waiting.is_none() {
                let site = &self.site;
                self.waiting = from.try_recv_with(|message| site.reply(message))?;
            }
            let Some(reply) = self.waiting else {
                self.looks.empty(out, from)?;
                return Ok(so_far);
            };
            let [head, body] = self.site.response(reply);
            let respond = |place: &mut [u8]| {
                let (first, second) = place.split_at_mut(head.len());
                first.copy_from_slice(head);
                second.copy_from_slice(body);
            };
            if !room(out.try_send_with(head.len() + body.len(), respond))? {
                self.looks.full(out, from)?;
                return Ok(so_far);
            }
            out.flush()?;
            self.looks.found();
            self.waiting = None;
            self.answered += 1;
            self.refused += u64::from(!matches!(reply, Reply::File(_)));
        }
        Ok(Progress::Worked)
    }

    /// Requests answered so far.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Those of them that got no file.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}
