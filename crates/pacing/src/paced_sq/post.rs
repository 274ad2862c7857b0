//! Posting: requests that may go now are posted, the rest waits.

use super::*;

impl PacedSq {
    /// Posts a chain: what may be posted now in as few doorbells as possible, the rest later.
    #[inline]
    pub(crate) fn post(&mut self, slot: u32, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        match wrs {
            [wr] => match self.post_one(slot, wr) {
                Some(posted) => posted,
                None => self.post_any(slot, wrs),
            },
            _ => self.post_any(slot, wrs),
        }
    }

    /// Posts one request in the fast case: the RNIC is not busy and the queue pair is active already. Returns
    /// `None` and posts nothing in other cases.
    #[inline]
    fn post_one(&mut self, slot: u32, wr: &SendWr<'_>) -> Option<Result<(), PostError>> {
        let len = wr.payload.len();
        if !self.is_plain || len > self.cut.slice || self.in_flight.is_full() {
            return None;
        }
        let sending = self.pairs.get_mut(slot)?;
        let id = sending.id(slot);
        let queue = sending.queue.as_mut()?;
        // No queue pair has waiting requests, as `is_plain` says. A request that was cut takes several
        // entries of the device's queue and one of the program's, so either may be full first.
        let limit = sending.limit;
        let is_full = queue.outstanding() >= limit || queue.flying() >= limit as usize;
        if !sending.flags.contains(QpFlags::ACTIVE) || is_full {
            return None;
        }
        let mut now = LazyClock::default();
        if self.credit.feedback.measures_next() {
            now.get(&self.credit.feedback);
        }
        let cost = self.credit.cost(len);
        if !self.credit.pay_from_bucket(cost) {
            if !self.credit.pay_anew(cost, &mut now) {
                return None;
            }
            self.is_plain = !self.credit.is_limited();
        }
        let posted = sending
            .inner
            .post_send_with_wr_id(id.wr_id(), std::slice::from_ref(wr));
        if posted.is_err() {
            self.credit.unpay(len);
            return Some(posted);
        }
        let doorbell = now.known().map_or(0, Instant::nanos);
        queue.fly(flying_of(wr, len, sending.flags, doorbell));
        self.in_flight.add(1);
        self.counts.posted += 1;
        self.counts.doorbells += 1;
        self.credit.feedback.posted(1, now);
        Some(posted)
    }

    fn post_any(&mut self, slot: u32, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if self.is_forked() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let Some(mut sending) = self.pairs.take(slot) else {
            return Err(PostErrorKind::Device.at(0));
        };
        let mut now = LazyClock::default();
        let is_limited = self.is_limited();
        if self.credit.feedback.measures(wrs.len(), is_limited) {
            now.get(&self.credit.feedback);
        }
        let posted = self.post_on(slot, &mut sending, wrs, &mut now);
        self.pairs.put(slot, sending);
        if self.waits() {
            let now = now.get(&self.credit.feedback);
            self.go_on(now);
            if self.calls.sleeps {
                self.push_one();
            }
        }
        self.update_fast_path();
        posted
    }

    /// Posts what is due now. Completions are rarely polled here, since the program does that unless it only
    /// posts.
    fn go_on(&mut self, now: Instant) {
        let is_unpolled = self.calls.posted();
        if is_unpolled || self.in_flight.is_full() || !self.turns.broken.is_empty() {
            self.calls.polled();
            self.progress(now);
        } else if self.credit.is_due(now) {
            self.pump(now);
        }
    }

    /// Updates whether the fast paths apply: nothing waits, no completion is kept, and the rate is the line
    /// rate.
    pub(super) fn update_fast_path(&mut self) {
        self.is_plain = !self.credit.limits_flight() && self.kept.is_empty() && !self.is_limited();
    }

    /// Whether the fast paths apply. Then nothing waits.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    fn post_on(
        &mut self,
        slot: u32,
        sending: &mut QpSendState,
        wrs: &[SendWr<'_>],
        now: &mut LazyClock,
    ) -> Result<(), PostError> {
        if wrs.is_empty() {
            return Ok(());
        }
        let mut queue = match sending.queue.take() {
            Some(queue) => queue,
            None => self.buffers.queue(),
        };
        let mut at = 0;
        let mut posted = Ok(());
        while at < wrs.len() && posted.is_ok() {
            let first = at;
            posted = self.post_some(slot, sending, &mut queue, wrs, &mut at, now);
            if at == first {
                break;
            }
        }
        if posted.is_ok() && at < wrs.len() {
            posted = self.put_off(slot, sending, &mut queue, wrs, at);
        }
        if !queue.is_quiet() {
            self.set_active(slot, sending, true);
        }
        sending.queue = Some(queue);
        if sending.is(QpFlags::BROKEN) {
            let now = now.get(&self.credit.feedback);
            self.push_broken(slot, sending, now);
        }
        posted
    }

    /// Posts in one doorbell as many of `wrs` from `at` on as may be posted now, and advances `at`.
    #[inline]
    fn post_some(
        &mut self,
        slot: u32,
        sending: &mut QpSendState,
        queue: &mut RequestQueue,
        wrs: &[SendWr<'_>],
        at: &mut usize,
        now: &mut LazyClock,
    ) -> Result<(), PostError> {
        let first = *at;
        // New requests stay behind waiting ones. Otherwise they could take all credit, and a long request
        // would never go.
        if queue.is_waiting() || sending.is(QpFlags::BROKEN) || !self.turns.waiting.is_empty() {
            return Ok(());
        }
        let limit = sending.limit as usize;
        let room = (limit - queue.flying().min(limit)).min(self.in_flight.room());
        let wrs_left = &wrs[first..];
        let allowed = room.min(limit.saturating_sub(queue.outstanding() as usize));
        let most = wrs_left.len().min(CHAIN).min(allowed);
        let paid = |side: &mut Self, now: &mut LazyClock| {
            let mut posts = wrs_left[..most].iter();
            posts.position(|wr| !side.pays(wr, now)).unwrap_or(most)
        };
        let count = paid(self, now);
        if count == 0 {
            return Ok(());
        }
        let wr_id = sending.id(slot).wr_id();
        let posted = sending
            .inner
            .post_send_with_wr_id(wr_id, &wrs_left[..count]);
        let taken = posted.as_ref().map_or_else(|error| error.index, |()| count);
        let doorbell = now.known().map_or(0, Instant::nanos);
        let all = self.is_limited() || self.credit.feedback.measures_all();
        for (at, wr) in wrs[first..first + taken].iter().enumerate() {
            // Unless all are measured, the last of a chain is: it waits for the others.
            let doorbell = if all || at + 1 == taken { doorbell } else { 0 };
            queue.fly(flying_of(wr, wr.payload.len(), sending.flags, doorbell));
        }
        for wr in &wrs[first + taken..first + count] {
            self.credit.unpay(wr.payload.len());
        }
        self.took_off(taken, *now);
        *at += taken;
        posted.map_err(|error| error.kind.at(first + error.index))
    }

    #[inline]
    pub(super) fn took_off(&mut self, count: usize, now: LazyClock) {
        self.in_flight.add(count);
        self.counts.posted += count as u64;
        self.counts.doorbells += 1;
        self.credit.feedback.posted(count as u64, now);
    }

    /// Defers the rest of a chain, up to the first illegal request.
    fn put_off(
        &mut self,
        slot: u32,
        sending: &mut QpSendState,
        queue: &mut RequestQueue,
        wrs: &[SendWr<'_>],
        from: usize,
    ) -> Result<(), PostError> {
        let state = sending.inner.state();
        let limit = sending.limit;
        let allowed = QpLimits {
            qp_type: match sending.is(QpFlags::DATAGRAM) {
                true => headworks_verbs::QpType::Ud,
                false => headworks_verbs::QpType::Rc,
            },
            caps: sending.inner.caps(),
            state,
            max_rd_atomic: sending.max_rd_atomic,
            max_message: self.max_message,
        };
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate().skip(from) {
            let legal = match queue.outstanding() >= limit {
                true => Err(PostErrorKind::QueueFull),
                false => allowed.check(wr),
            };
            if let Err(kind) = legal {
                result = Err(kind.at(index));
                break;
            }
            let is_signaled =
                sending.is(QpFlags::SIGNAL_ALL) || wr.flags.contains(SendFlags::SIGNALED);
            queue.wait(wr, is_signaled);
            self.counts.deferred += 1;
        }
        if state == QpState::Error && queue.is_waiting() {
            self.turns.mark_broken(slot, sending);
        }
        if queue.is_waiting() {
            self.turns.enqueue(slot, sending);
        }
        result
    }

    /// Pays for a request that may be posted now, whole. Returns whether it may.
    #[inline]
    fn pays(&mut self, wr: &SendWr<'_>, now: &mut LazyClock) -> bool {
        let len = wr.payload.len();
        // A request that may be cut is deferred first, which checks it: an illegal request must not make
        // others wait.
        len <= self.cut.slice && self.credit.pay(len, now)
    }

    /// Whether requests wait, or would wait if there were more of them.
    fn is_limited(&self) -> bool {
        self.waits() || self.credit.is_limited()
    }
}

/// Record of a request that is posted whole.
#[inline(always)]
fn flying_of(wr: &SendWr<'_>, len: u64, flags: QpFlags, doorbell: u64) -> InFlight {
    InFlight {
        wr_id: wr.wr_id,
        doorbell,
        bytes: len as u32,
        total: len as u32,
        opcode: opcode(&wr.op),
        // The kind matters only for a request that is measured.
        kind: match doorbell {
            0 => Kind::at(0),
            _ => qp_slots::kind(flags, &wr.op),
        },
        is_last: true,
        is_signaled: flags.contains(QpFlags::SIGNAL_ALL) || wr.flags.contains(SendFlags::SIGNALED),
    }
}
