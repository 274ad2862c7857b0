//! What happened, as one number: two runs of one seed have the same.

use headworks_verbs::Completion;
use slab::Slab;

use crate::model::{Event, Piece, PieceId, PieceKind};
use crate::units::Ps;

/// What is noted: no two are alike.
#[derive(Clone, Copy)]
enum What {
    Doorbell = 1,
    Idle,
    Arrive,
    Place,
    Answer,
    Overdue,
    Resume,
    Fails,
    Seen,
    Channel,
    Stepped,
    Called,
    Completed,
    Respond,
}

/// A digest of everything that happened so far, and of when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History {
    digest: u64,
    pub(crate) len: u64,
}

impl Default for History {
    fn default() -> Self {
        // FNV-1a, a word at a time.
        Self {
            digest: 0xcbf2_9ce4_8422_2325,
            len: 0,
        }
    }
}

impl History {
    /// So far.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn note(&mut self, words: &[u64]) {
        self.len += 1;
        for word in words {
            self.mix(*word);
        }
    }

    fn mix(&mut self, word: u64) {
        let mixed = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        // High bits come down, or they would never count for low ones.
        self.digest = mixed ^ (mixed >> 32);
    }

    /// Notes that an actor was stepped.
    pub(crate) fn stepped(&mut self, actor: usize, begin: Ps, end: Ps) {
        self.note(&[begin, What::Stepped as u64, actor as u64, end]);
    }

    /// Notes a completion, which can be seen at that time.
    pub(crate) fn completed(&mut self, at: Ps, done: &Completion) {
        let what = (done.status as u64) << 32 | done.opcode as u64;
        let imm = done.imm.map_or(0, |imm| 1 << 32 | u64::from(imm));
        let of = u64::from(done.qpn.raw()) << 32 | u64::from(done.byte_len);
        self.note(&[at, What::Completed as u64, done.wr_id, of, what, imm]);
    }

    /// Notes bytes that are placed.
    pub(crate) fn placed(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    /// Notes an event of the model.
    pub(crate) fn happened(&mut self, at: Ps, event: &Event, pieces: &Slab<Piece>) {
        let of = |qp: &crate::model::QpRef| u64::from(qp.index) << 32 | u64::from(qp.life);
        match event {
            Event::Doorbell { qp, upto } => self.note(&[at, What::Doorbell as u64, of(qp), *upto]),
            Event::Called { qp } => self.note(&[at, What::Called as u64, of(qp)]),
            Event::Idle { host, unit } => {
                self.note(&[at, What::Idle as u64, (*host).into(), *unit as u64])
            }
            Event::Arrive(id) => self.note(&words(at, What::Arrive as u64, *id, pieces)),
            Event::Place(id) => self.note(&words(at, What::Place as u64, *id, pieces)),
            Event::Answer { qp, psn, answer } => {
                let said = match answer {
                    crate::model::Answer::Ack => 0,
                    crate::model::Answer::NotReady(pause) => 1 << 63 | u64::from(*pause),
                    crate::model::Answer::Gap => 1,
                    crate::model::Answer::Refused(status) => 2 + *status as u64,
                };
                self.note(&[at, What::Answer as u64, of(qp), *psn, said]);
            }
            Event::Respond { qp } => self.note(&[at, What::Respond as u64, of(qp)]),
            Event::Overdue { qp } => self.note(&[at, What::Overdue as u64, of(qp)]),
            Event::Resume { qp } => self.note(&[at, What::Resume as u64, of(qp)]),
            Event::Fails { qp } => self.note(&[at, What::Fails as u64, of(qp)]),
            Event::Seen { host } => self.note(&[at, What::Seen as u64, (*host).into()]),
            Event::Channel { cq, life } => {
                self.note(&[at, What::Channel as u64, (*cq).into(), (*life).into()])
            }
        }
    }
}

fn words(at: Ps, what: u64, id: PieceId, pieces: &Slab<Piece>) -> [u64; 6] {
    let Some(piece) = pieces.get(id.place()) else {
        return [at, what, 0, 0, 0, 0];
    };
    let kind = match piece.kind {
        PieceKind::Bytes => 0,
        PieceKind::Question => 1,
        PieceKind::Response(_) => 2,
        PieceKind::Datagram(_) => 3,
    };
    let sum = piece.cargo().iter().fold(0, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add((*byte).into())
    });
    let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    [
        at,
        what << 8 | kind,
        pair(piece.from.life, piece.to.life),
        piece.psn,
        pair(piece.offset, piece.len),
        sum,
    ]
}

#[cfg(test)]
mod tests {
    use headworks_verbs::Status;

    use super::*;

    #[test]
    fn completions_and_bytes_count() {
        let of = |status, byte| {
            let mut history = History::default();
            let done = Completion {
                status,
                ..Completion::default()
            };
            history.completed(1, &done);
            history.placed(&[0, 0, 0, 0, 0, 0, 0, 0, byte]);
            history.digest()
        };
        let usual = of(Status::Success, 1);
        assert_eq!(usual, of(Status::Success, 1));
        assert_ne!(usual, of(Status::Flushed, 1));
        assert_ne!(usual, of(Status::Success, 2));
    }
}
