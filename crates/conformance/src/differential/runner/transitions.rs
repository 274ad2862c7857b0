//! Steps that change states and destroy objects.

use headworks_verbs::{Psn, QpAttr, QpState};

use super::{ProgramRunner, QKEY};
use crate::Verdict;
use crate::call::Call;
use crate::differential::observation::CallOutcome;

impl ProgramRunner<'_, '_> {
    /// Moves both ends of a line from RESET to RTS.
    pub(super) fn bring_up(&mut self, line: usize) -> Verdict {
        let [a, b] = &self.lines[line];
        let (a, of_a, b, of_b) = (a.side, a.options.clone(), b.side, b.options.clone());
        if of_a.qp_type.is_connected() {
            self.cx.connect(a, &of_a, b, &of_b)?;
        } else {
            let init = QpAttr {
                qkey: Some(QKEY),
                ..QpAttr::to_state(QpState::Init)
            };
            let rts = QpAttr {
                sq_psn: Some(Psn::truncated(0)),
                ..QpAttr::to_state(QpState::Rts)
            };
            for side in [a, b] {
                for attr in [init, QpAttr::to_state(QpState::Rtr), rts] {
                    let moved = self.cx.modify(side, attr, None);
                    moved.map_err(crate::case_context::error_line)?;
                }
            }
        }
        for tail in &mut self.lines[line] {
            tail.state = QpState::Rts;
        }
        Ok(())
    }

    pub(super) fn modify(&mut self, (line, end): (usize, usize), to: QpState) -> CallOutcome {
        let tail = &mut self.lines[line][end];
        if tail.is_gone {
            return CallOutcome::Nothing;
        }
        let moved = self.cx.modify(tail.side, QpAttr::to_state(to), None);
        if moved.is_ok() {
            match to {
                QpState::Reset => tail.outstanding.forget(),
                QpState::Rts => tail.outstanding.revive(),
                QpState::Error if tail.state != QpState::Error => {
                    tail.state = QpState::Error;
                    tail.errors += 1;
                }
                _ => {}
            }
        }
        moved.map_or_else(CallOutcome::from, |()| CallOutcome::Done)
    }

    pub(super) fn reconnect(&mut self, line: usize) -> Result<CallOutcome, String> {
        if self.lines[line].iter().any(|tail| tail.is_gone) {
            return Ok(CallOutcome::Nothing);
        }
        for tail in &mut self.lines[line] {
            self.cx.to_reset(tail.side)?;
            tail.outstanding.forget();
        }
        self.bring_up(line)?;
        Ok(CallOutcome::Done)
    }

    pub(super) fn destroy(&mut self, (line, end): (usize, usize)) -> Result<CallOutcome, String> {
        let tail = &mut self.lines[line][end];
        if tail.is_gone {
            return Ok(CallOutcome::Nothing);
        }
        tail.is_gone = true;
        tail.outstanding.forget();
        let (host, qp) = (tail.side.host, tail.side.qp);
        self.cx.destroy(host, qp)?;
        self.objects.retain(|object| *object != (host, qp));
        Ok(CallOutcome::Done)
    }

    pub(super) fn deregister(&mut self, end: usize, which: usize) -> Result<CallOutcome, String> {
        let all = self.regions[end].iter_mut().enumerate();
        let mut live: Vec<_> = all.filter(|(_, region)| region.is_live).collect();
        if live.is_empty() {
            return Ok(CallOutcome::Nothing);
        }
        let which = which % live.len();
        let (memory, region) = &mut live[which];
        region.is_live = false;
        let (memory, host, object) = (*memory, self.hosts[end], region.id);
        self.call_ok(end, Call::Destroy { object })?;
        self.objects.retain(|known| *known != (host, object));
        self.mark_receives(end, memory);
        Ok(CallOutcome::Done)
    }

    /// Marks the outstanding receives of `end` that lie in `memory`, whose region is gone: they are faulty now.
    fn mark_receives(&mut self, end: usize, memory: usize) {
        let tails = self.lines.iter().map(|pair| &pair[end]);
        let posted = tails.flat_map(|tail| tail.outstanding.receives.iter().chain(&tail.shared));
        for wr_id in posted {
            let Some(spans) = self.scattered.get(wr_id) else {
                continue;
            };
            let mut before = 0;
            for span in spans {
                let len = span.to - span.from;
                if span.memory == memory {
                    let fault = self.faulty_receives.entry(*wr_id).or_insert(before);
                    if len > 0 {
                        *fault = before.min(*fault);
                        let reach = self.reach.entry(*wr_id).or_insert(before);
                        *reach = before.min(*reach);
                    }
                }
                before += len;
            }
        }
    }
}
