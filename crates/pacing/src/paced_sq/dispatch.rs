//! Polls completions and posts waiting requests that are due.

use headworks_verbs::Duration;

use super::*;

/// Shortest time for which a timer is set.
const NAP: Duration = Duration::from_micros(20);

impl PacedSq {
    /// Fills `out` with completions for the program, oldest first. Returns how many there are.
    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        if self.is_forked() {
            return Err(PollError::Forked);
        }
        if self.is_plain {
            return match !self.in_flight.is_zero() && !out.is_empty() {
                true => self.harvest_plainly(out),
                false => Ok(0),
            };
        }
        let polled = self.poll_any(out);
        self.update_fast_path();
        polled
    }

    fn poll_any(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        self.calls.polled();
        let mut count = 0;
        while count < out.len()
            && let Some((told, id)) = self.kept.pop_front()
        {
            self.retire(id, told.retires);
            out[count] = told.completion;
            count += 1;
        }
        if !self.in_flight.is_zero() && count < out.len() {
            match self.take_completions(&mut out[count..]) {
                Ok(more) => count += more,
                // The next poll reports the error; this one has completions to return.
                Err(_) if count > 0 => {}
                Err(error) => return Err(error),
            }
        }
        if !self.turns.waiting.is_empty() {
            let now = self.credit.now();
            if self.credit.is_due(now) {
                self.pump(now);
            }
        }
        if self.calls.sleeps && count == 0 {
            self.push_one();
        }
        while !self.turns.broken.is_empty()
            && count < out.len()
            && let Some((told, id)) = self.flush()
        {
            self.retire(id, told.retires);
            out[count] = told.completion;
            count += 1;
        }
        self.calls.sleeps &= count == 0;
        Ok(count)
    }

    /// Does the work of a poll without the program's polling. Completions are kept for the program.
    pub(crate) fn progress(&mut self, now: Instant) {
        if !self.in_flight.is_zero() {
            // The program's next poll gets an error here too.
            let _ = self.keep_completions();
        }
        self.pump(now);
        while let Some(flushed) = self.flush() {
            self.kept.push_back(flushed);
        }
        self.update_fast_path();
    }

    /// Takes what the device's completion queue holds, so that completions of queue pairs that are gone do
    /// not fill it.
    pub(super) fn drain(&mut self) {
        for _ in 0..self.in_flight.limit() / BATCH + 1 {
            if !matches!(self.keep_completions(), Ok(BATCH)) {
                return;
            }
        }
    }

    /// Takes one batch of completions and keeps them for the program's next poll. Returns how many the device
    /// had.
    fn keep_completions(&mut self) -> Result<usize, PollError> {
        let mut found = std::mem::take(&mut self.buffers.completions);
        let taken = self.completions.poll(&mut found);
        if let Ok(count) = taken {
            let mut now = LazyClock::default();
            for done in &found[..count] {
                if let Some(told) = self.land(done, &mut now) {
                    self.kept.push_back(told);
                }
            }
            self.learn(count, count < found.len(), now);
        }
        self.buffers.completions = found;
        taken
    }

    /// Takes completions for the current poll until `out` is full or the device has no more: a program that
    /// polls in vain may go to sleep. The device never has more than was in flight.
    fn take_completions(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        self.harvest_plainly(out)
    }

    /// Polls the device once, which mostly suffices, and goes on if it does not.
    #[inline(always)]
    fn harvest_plainly(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        let most = out.len().min(BATCH);
        let here = self.completions.poll(&mut out[..most])?;
        let mut now = LazyClock::default();
        let count = self.sort(out, 0, here, &mut now);
        if here > 0 && count < out.len() && (here == most || count == 0) {
            return self.harvest_on(out, count, now);
        }
        if here == 0 || self.credit.feedback.has_samples() {
            self.learn(here, here < most, now);
        }
        Ok(count)
    }

    /// Goes on after a poll that returned a full batch, or nothing for the program. A device may show fewer
    /// completions than it has; its queue is certainly empty only if it shows none.
    #[cold]
    fn harvest_on(
        &mut self,
        out: &mut [Completion],
        mut count: usize,
        mut now: LazyClock,
    ) -> Result<usize, PollError> {
        let mut drained = false;
        while count < out.len() && !drained {
            let most = (out.len() - count).min(BATCH);
            let here = match self.completions.poll(&mut out[count..count + most]) {
                Ok(here) => here,
                Err(error) if count == 0 => return Err(error),
                // The next poll reports the error; this one has completions to return.
                Err(_) => break,
            };
            count = self.sort(out, count, here, &mut now);
            drained = here == 0 || (here < most && count > 0);
        }
        self.learn(BATCH, drained, now);
        Ok(count)
    }

    /// Turns the `here` completions that the device put into `out` from `count` on into those for the
    /// program. Returns up to where `out` is filled then.
    #[inline(always)]
    fn sort(
        &mut self,
        out: &mut [Completion],
        count: usize,
        here: usize,
        now: &mut LazyClock,
    ) -> usize {
        let mut told_to = count;
        for at in count..count + here {
            if let Some((flying, is_told)) = self.land_plainly(&out[at]) {
                if flying.doorbell != 0 {
                    let cost = self.credit.cost(flying.bytes.into());
                    let stamp = out[at].timestamp;
                    self.credit.feedback.landed(&flying, cost, stamp, now);
                }
                if !is_told {
                    continue;
                }
                if at != told_to {
                    out[told_to] = out[at];
                }
                let told = &mut out[told_to];
                told.wr_id = flying.wr_id;
                if !self.stamps {
                    told.timestamp = Instant::ZERO;
                }
                told_to += 1;
                continue;
            }
            let done = out[at];
            if let Some((told, id)) = self.land(&done, now) {
                self.retire(id, told.retires);
                out[told_to] = told.completion;
                told_to += 1;
            }
        }
        told_to
    }

    fn learn(&mut self, found: usize, drained: bool, mut now: LazyClock) {
        if found == 0 {
            self.credit.feedback.saw_empty();
            return;
        }
        let Credit {
            feedback, member, ..
        } = &mut self.credit;
        let (samples, unsampled) = feedback.learn(member, drained, &mut now);
        self.counts.samples += samples;
        self.counts.unsampled += unsampled;
        if samples + unsampled == 0 {
            return;
        }
        let now = now.get(feedback);
        if feedback.is_count_due(now) {
            self.update_active_count();
            let Credit {
                feedback, member, ..
            } = &mut self.credit;
            feedback.recount(member, now);
        }
    }

    /// Handles the usual completion: a success, of a whole request. In other cases it returns `None` and does
    /// nothing.
    #[inline]
    fn land_plainly(&mut self, done: &Completion) -> Option<(InFlight, bool)> {
        if done.status != Status::Success || self.credit.limits_flight() {
            return None;
        }
        let sending = self.pairs.identified(QpId::of(done.wr_id))?;
        let landed = sending.queue.as_mut()?.land_plainly()?;
        self.in_flight.remove_one();
        Some(landed)
    }

    /// Handles any completion of the device. Returns the completion for the program, if there is one.
    fn land(&mut self, done: &Completion, now: &mut LazyClock) -> Option<QpCompletion> {
        let id = QpId::of(done.wr_id);
        let sending = self.pairs.identified(id)?;
        let (flying, told) = sending.queue.as_mut()?.land(done)?;
        self.in_flight.remove(1);
        let cost = self.credit.cost(flying.bytes.into());
        let feedback = &mut self.credit.feedback;
        if done.status == Status::Success {
            feedback.landed(&flying, cost, done.timestamp, now);
        } else {
            feedback.gone(cost);
            // The device flushes what is posted from now on.
            if sending.is_waiting() {
                self.turns.mark_broken(id.slot, sending);
            }
        }
        let mut told = told?;
        if !self.stamps {
            told.completion.timestamp = Instant::ZERO;
        }
        Some((told, id))
    }

    /// Retires `count` requests of a queue pair.
    #[inline]
    fn retire(&mut self, id: QpId, count: u32) {
        let sending = self.pairs.identified(id);
        if let Some(queue) = sending.and_then(|sending| sending.queue.as_mut()) {
            queue.retire(count);
        }
    }

    /// Flushes the next waiting request of some broken queue pair.
    fn flush(&mut self) -> Option<QpCompletion> {
        for _ in 0..self.turns.broken.len() {
            let slot = self.turns.broken.pop_front()?;
            let told = self.flush_one(slot);
            let Some(sending) = self.pairs.get_mut(slot) else {
                continue;
            };
            if sending.is_waiting() || sending.flying() > 0 {
                self.turns.broken.push_back(slot);
            } else {
                // The device flushes what is posted from now on.
                sending.set(QpFlags::BROKEN, false);
            }
            if told.is_some() {
                return told;
            }
        }
        None
    }

    /// Flushes the next waiting request of one queue pair.
    pub(super) fn flush_one(&mut self, slot: u32) -> Option<QpCompletion> {
        let sending = self.pairs.get_mut(slot)?;
        let told = sending.queue.as_mut()?.flush(sending.inner.qpn())?;
        Some((told, sending.id(slot)))
    }

    /// Posts waiting requests that are due: one chain and one doorbell for each queue pair in turn.
    ///
    /// Queue pairs with nothing in flight go first. A part of the RNIC may fall behind, for example one of
    /// its processing units. Without this rule the queue pairs that it serves would come to hold all requests
    /// that may be in flight, while the delays of the others would say that the RNIC is idle.
    pub(crate) fn pump(&mut self, now: Instant) {
        if !self.turns(now, true) {
            self.turns(now, false);
        }
    }

    /// Gives each queue pair a turn, up to a fixed number of turns. `quiet`: only queue pairs with nothing in
    /// flight get one. Returns whether something was posted, nothing more is due, or no more may be in
    /// flight.
    fn turns(&mut self, now: Instant, quiet: bool) -> bool {
        let mut any = false;
        for _ in 0..self.turns.waiting.len().min(BATCH) {
            if self.in_flight.is_full() {
                return true;
            }
            let Some(slot) = self.turns.waiting.pop_front() else {
                return any;
            };
            let Some(mut sending) = self.pairs.take(slot) else {
                continue;
            };
            if quiet && sending.flying() > 0 && !sending.is(QpFlags::BROKEN) {
                self.pairs.put(slot, sending);
                self.turns.waiting.push_back(slot);
                continue;
            }
            let (posted, is_stopped) = self.pump_one(slot, &mut sending, now);
            any |= posted > 0;
            let goes_on = sending.is_waiting() && !sending.is(QpFlags::BROKEN);
            sending.set(QpFlags::IN_ROW, goes_on);
            self.pairs.put(slot, sending);
            if goes_on {
                // A turn is one chain, however short. Otherwise a program that posts again as requests
                // complete would never end its turn.
                match is_stopped && posted == 0 {
                    true => self.turns.waiting.push_front(slot),
                    false => self.turns.waiting.push_back(slot),
                }
            }
            if is_stopped {
                return true;
            }
        }
        any
    }

    /// Posts a chain of one queue pair. Returns the number of requests, and whether nothing more is due.
    fn pump_one(&mut self, slot: u32, sending: &mut QpSendState, now: Instant) -> (usize, bool) {
        let Some(mut queue) = sending.queue.take() else {
            return (0, false);
        };
        if sending.is(QpFlags::BROKEN) {
            sending.queue = Some(queue);
            return (0, false);
        }
        let limit = sending.limit as usize;
        let room = limit
            .saturating_sub(queue.flying())
            .min(self.in_flight.room());
        let mut scratch = std::mem::take(&mut self.buffers.payloads);
        scratch.0.clear();
        scratch.1.clear();
        let mut plans = [None; CHAIN];
        let (mut count, mut is_stopped, mut reads) = (0, false, queue.reads());
        let mut ahead = PlanPosition::default();
        let flags = sending.flags;
        let mut lazy = LazyClock::at(now);
        while count < CHAIN.min(room) {
            let mut after = ahead;
            let mark = (scratch.0.len(), scratch.1.len());
            let planned = queue.plan(
                &mut after,
                self.cut,
                |op| qp_slots::kind(flags, op),
                &mut scratch,
            );
            let Some(planned) = planned else {
                break;
            };
            let is_read = planned.flying.opcode == Opcode::Read;
            // A READ has no more slices in flight than the queue pair may have READs outstanding.
            let waits = is_read && reads >= u32::from(sending.max_rd_atomic).max(1);
            if waits || !self.credit.pay(planned.flying.bytes.into(), &mut lazy) {
                is_stopped = !waits;
                scratch.0.truncate(mark.0);
                scratch.1.truncate(mark.1);
                break;
            }
            reads += u32::from(is_read);
            plans[count] = Some(planned);
            (count, ahead) = (count + 1, after);
        }
        let taken = match count {
            0 => 0,
            _ => self.post_planned(slot, sending, &mut queue, &plans[..count], &scratch, now),
        };
        self.buffers.payloads = scratch;
        sending.queue = Some(queue);
        self.push_broken(slot, sending, now);
        (taken, is_stopped)
    }

    /// Keeps one request of a broken queue pair in flight. The device flushes it, and that completion wakes a
    /// sleeping program. The other waiting requests are flushed as the program polls. No credit is paid, as
    /// nothing is sent.
    pub(super) fn push_broken(&mut self, slot: u32, sending: &mut QpSendState, now: Instant) {
        if !sending.is(QpFlags::BROKEN) {
            return;
        }
        let Some(mut queue) = sending.queue.take() else {
            return;
        };
        if queue.flying() == 0 {
            let mut scratch = std::mem::take(&mut self.buffers.payloads);
            scratch.0.clear();
            scratch.1.clear();
            let kind = |_: &SendOp| Kind::at(0);
            let first = queue.plan(&mut PlanPosition::default(), self.cut, kind, &mut scratch);
            if let Some(planned) = first {
                let cost = self.credit.cost(planned.flying.bytes.into());
                self.credit.feedback.admit(cost);
                self.post_planned(slot, sending, &mut queue, &[first], &scratch, now);
            }
            self.buffers.payloads = scratch;
        }
        sending.queue = Some(queue);
    }

    /// Posts planned requests and returns how many the device took. If the device has no room now, the others
    /// go on waiting. After any other error the queue pair fails.
    fn post_planned(
        &mut self,
        slot: u32,
        sending: &mut QpSendState,
        queue: &mut RequestQueue,
        plans: &[Option<PlannedSlice>],
        scratch: &(Vec<Sge>, Vec<u8>),
        now: Instant,
    ) -> usize {
        let wr_id = sending.id(slot).wr_id();
        let request = |planned: &PlannedSlice| SendWr {
            wr_id,
            op: planned.op,
            payload: match planned.bytes {
                Some((from, to)) => Payload::Inline(&scratch.1[from..to]),
                None => Payload::Gather(&scratch.0[planned.sges.0..planned.sges.1]),
            },
            flags: planned.flags,
        };
        let none = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            payload: Payload::Inline(&[]),
            flags: SendFlags::NONE,
        };
        let mut chain = [none; CHAIN];
        for (to, planned) in chain.iter_mut().zip(plans.iter().flatten()) {
            *to = request(planned);
        }
        let posted = sending.inner.post_send(&chain[..plans.len()]);
        let taken = posted
            .as_ref()
            .map_or_else(|error| error.index, |()| plans.len());
        for planned in plans[..taken].iter().flatten() {
            queue.fly_first(InFlight {
                doorbell: now.nanos(),
                ..planned.flying
            });
        }
        self.took_off(taken, LazyClock::at(now));
        let Err(error) = posted else {
            return taken;
        };
        for planned in plans[taken..].iter().flatten() {
            let len = planned.flying.bytes.into();
            match sending.is(QpFlags::BROKEN) {
                true => self.credit.feedback.gone(self.credit.cost(len)),
                false => self.credit.unpay(len),
            }
        }
        if error.kind != PostErrorKind::QueueFull && !sending.is(QpFlags::BROKEN) {
            // The request was legal when it was deferred: the queue pair has changed, or the device has
            // failed.
            let error = headworks_verbs::QpAttr::to_state(QpState::Error);
            let _ = sending.inner.modify(&error);
            self.turns.mark_broken(slot, sending);
        }
        taken
    }

    /// Prepares for the program's sleep. With a timer, returns after how long the timer must wake the
    /// program, if it must. Without one, makes sure that a request whose completion wakes the program is in
    /// flight until a poll finds something.
    pub(crate) fn before_sleep(&mut self, has_timer: bool) -> Option<Duration> {
        let now = self.credit.now();
        for _ in 0..=self.turns.waiting.len() / BATCH {
            self.pump(now);
        }
        if !has_timer {
            self.calls.sleeps = true;
            self.push_one();
            return None;
        }
        // A request that is due and was not posted waits for completions, which wake the program.
        let due = self
            .due()
            .filter(|due| *due > now || self.in_flight.is_zero())?;
        Some(due.since(now).max(NAP))
    }

    /// If nothing is in flight, posts one request before it is due, on credit that is then owed.
    pub(super) fn push_one(&mut self) {
        if !self.in_flight.is_zero() {
            return;
        }
        let first = self.turns.waiting.front();
        let first = first.and_then(|slot| self.pairs.get(*slot)?.queue.as_ref());
        if let Some(len) = first.and_then(|queue| queue.next_len(self.cut)) {
            let now = self.credit.now();
            self.credit.borrow(len);
            self.pump(now);
        }
    }
}
