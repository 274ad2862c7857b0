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
        if !self.is_plain || len > self.cut.slice || self.flying >= self.depth {
            return None;
        }
        let sending = self.pairs.get_mut(slot as usize)?.as_mut()?;
        let queue = sending.queue.as_mut()?;
        // No queue pair has waiting requests, as `is_plain` says. A request that was cut takes several
        // entries of the device's queue and one of the program's, so either may be full first.
        let limit = sending.limit;
        let is_full = queue.outstanding() >= limit || queue.flying() >= limit as usize;
        if sending.flags & ACTIVE == 0 || is_full {
            return None;
        }
        let mut now = LazyClock::default();
        if self.gauge.measures_next() {
            now.get(&self.gauge);
        }
        let cost = len + self.overhead;
        if !self.bucket.pay(cost) {
            let at = now.get(&self.gauge);
            if !self.bucket.pay_anew(cost, &self.member, &self.config, at) {
                return None;
            }
            self.is_plain = !self.bucket.is_limited(self.line_rate);
        }
        let number = u64::from(sending.generation) << 32 | u64::from(slot);
        let posted = sending
            .inner
            .post_send_with_wr_id(number, std::slice::from_ref(wr));
        if posted.is_err() {
            self.bucket.give_back(cost);
            return Some(posted);
        }
        let doorbell = now.known().map_or(0, Instant::nanos);
        queue.fly(flying_of(wr, len, sending.flags, doorbell));
        self.flying += 1;
        self.counts.posted += 1;
        self.counts.doorbells += 1;
        self.gauge.posted(1, now);
        Some(posted)
    }

    fn post_any(&mut self, slot: u32, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if self.is_forked() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let Some(mut sending) = self.pairs[slot as usize].take() else {
            return Err(PostErrorKind::Device.at(0));
        };
        let mut now = LazyClock::default();
        if self.gauge.measures(wrs.len(), self.is_limited()) {
            now.get(&self.gauge);
        }
        let posted = self.post_on(slot, &mut sending, wrs, &mut now);
        self.pairs[slot as usize] = Some(sending);
        if self.waits() {
            let now = now.get(&self.gauge);
            self.go_on(now);
            if self.sleeps {
                self.push_one();
            }
        }
        self.update_fast_path();
        posted
    }

    /// Posts what is due now. Completions are rarely polled here, since the program does that unless it only
    /// posts.
    fn go_on(&mut self, now: Instant) {
        self.posts_unpolled += 1;
        let is_full = self.flying >= self.depth;
        if is_full || !self.broken.is_empty() || self.posts_unpolled >= UNPOLLED_MAX {
            self.posts_unpolled = 0;
            self.progress(now);
        } else if self.limits_flight || now >= self.bucket.due() {
            self.pump(now);
        }
    }

    /// Updates whether the fast paths apply: nothing waits, no completion is kept, and the rate is the line
    /// rate.
    pub(super) fn update_fast_path(&mut self) {
        self.is_plain = !self.limits_flight && self.told.is_empty() && !self.is_limited();
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
            None => self.kept.pop().unwrap_or_default(),
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
        if sending.is(BROKEN) {
            let now = now.get(&self.gauge);
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
        if queue.is_waiting() || sending.is(BROKEN) || !self.row.is_empty() {
            return Ok(());
        }
        let limit = sending.limit as usize;
        let room =
            (limit - queue.flying().min(limit)).min(self.depth - self.flying.min(self.depth));
        let number = u64::from(sending.generation) << 32 | u64::from(slot);
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
        let posted = sending
            .inner
            .post_send_with_wr_id(number, &wrs_left[..count]);
        let taken = posted.as_ref().map_or_else(|error| error.index, |()| count);
        let doorbell = now.known().map_or(0, Instant::nanos);
        let all = self.is_limited() || self.gauge.measures_all();
        for (at, wr) in wrs[first..first + taken].iter().enumerate() {
            // Unless all are measured, the last of a chain is: it waits for the others.
            let doorbell = if all || at + 1 == taken { doorbell } else { 0 };
            queue.fly(flying_of(wr, wr.payload.len(), sending.flags, doorbell));
        }
        for wr in &wrs[first + taken..first + count] {
            self.unpay(wr.payload.len());
        }
        self.took_off(taken, *now);
        *at += taken;
        posted.map_err(|error| error.kind.at(first + error.index))
    }

    #[inline]
    pub(super) fn took_off(&mut self, count: usize, now: LazyClock) {
        self.flying += count;
        self.counts.posted += count as u64;
        self.counts.doorbells += 1;
        self.gauge.posted(count as u64, now);
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
            qp_type: match sending.is(DATAGRAM) {
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
            let is_signaled = sending.is(SIGNAL_ALL) || wr.flags.contains(SendFlags::SIGNALED);
            queue.wait(wr, is_signaled);
            self.counts.deferred += 1;
        }
        if state == QpState::Error && queue.is_waiting() {
            self.breaks(slot, sending);
        }
        if queue.is_waiting() && !sending.is(IN_ROW) {
            sending.set(IN_ROW, true);
            self.row.push_back(slot);
        }
        result
    }

    pub(super) fn cost(&self, len: u64) -> u64 {
        len + self.overhead
    }

    /// Returns what was paid for a request that was not posted.
    pub(super) fn unpay(&mut self, len: u64) {
        let cost = self.cost(len);
        match self.limits_flight {
            true => self.gauge.gone(cost),
            false => self.bucket.give_back(cost),
        }
    }

    /// Pays for a request that may be posted now, whole. Returns whether it may.
    #[inline]
    fn pays(&mut self, wr: &SendWr<'_>, now: &mut LazyClock) -> bool {
        let len = wr.payload.len();
        // A request that may be cut is deferred first, which checks it: an illegal request must not make
        // others wait.
        len <= self.cut.slice && self.pay(len, now)
    }

    /// Pays for a request of `len` bytes if it may be posted now. Returns whether it may.
    #[inline]
    pub(super) fn pay(&mut self, len: u64, now: &mut LazyClock) -> bool {
        let cost = self.cost(len);
        if self.limits_flight {
            return self.gauge.admits(cost, &self.member);
        }
        if self.bucket.pay(cost) {
            return true;
        }
        let now = now.get(&self.gauge);
        self.bucket.pay_anew(cost, &self.member, &self.config, now)
    }

    /// Whether requests wait, or would wait if there were more of them.
    fn is_limited(&self) -> bool {
        self.waits() || self.bucket.is_limited(self.line_rate)
    }
}

/// Record of a request that is posted whole.
#[inline(always)]
fn flying_of(wr: &SendWr<'_>, len: u64, flags: u8, doorbell: u64) -> InFlight {
    InFlight {
        wr_id: wr.wr_id,
        doorbell,
        bytes: len as u32,
        total: len as u32,
        opcode: opcode(&wr.op),
        // The kind matters only for a request that is measured.
        kind: match doorbell {
            0 => Kind::at(0),
            _ => QpSendState::kind(flags, &wr.op),
        },
        is_last: true,
        is_signaled: flags & SIGNAL_ALL != 0 || wr.flags.contains(SendFlags::SIGNALED),
    }
}
