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
        let live = self.regions[end].iter_mut().filter(|region| region.is_live);
        let mut live: Vec<_> = live.collect();
        if live.is_empty() {
            return Ok(CallOutcome::Nothing);
        }
        let which = which % live.len();
        let region = &mut *live[which];
        region.is_live = false;
        let (host, object) = (self.hosts[end], region.id);
        self.call_ok(end, Call::Destroy { object })?;
        self.objects.retain(|known| *known != (host, object));
        Ok(CallOutcome::Done)
    }
}
