//! A digest of a run: a number that is equal in two runs of one seed.

use headworks_faults::Digest;
use headworks_verbs::Completion;
use slab::Slab;

use crate::hardware_units::Ps;
use crate::model::{Event, Piece, PieceId, PieceKind};

/// Tags of digest entries, one for each kind.
#[derive(Clone, Copy)]
enum DigestTag {
    Doorbell = 1,
    Idle,
    Arrive,
    Place,
    Acknowledge,
    Timeout,
    Resume,
    Fails,
    HostChanged,
    Channel,
    Stepped,
    Called,
    Completed,
    Respond,
    Overruns,
    Notification,
    Memory,
}

/// A digest of everything that happened so far, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunDigest {
    digest: Digest,
    pub(crate) len: u64,
}

impl RunDigest {
    /// Returns the digest so far.
    pub(crate) fn digest(&self) -> u64 {
        self.digest.value()
    }

    pub(crate) fn note(&mut self, words: &[u64]) {
        self.len += 1;
        self.digest.note(words);
    }

    /// Adds an actor's step.
    pub(crate) fn stepped(&mut self, actor: usize, begin: Ps, end: Ps) {
        self.note(&[begin, DigestTag::Stepped as u64, actor as u64, end]);
    }

    /// Adds a completion that becomes visible at that time.
    pub(crate) fn completed(&mut self, at: Ps, done: &Completion) {
        let what = (done.status as u64) << 32 | done.opcode as u64;
        let imm = done.imm.map_or(0, |imm| 1 << 32 | u64::from(imm));
        let of = u64::from(done.qpn.raw()) << 32 | u64::from(done.byte_len);
        self.note(&[at, DigestTag::Completed as u64, done.wr_id, of, what, imm]);
    }

    /// Adds placed bytes.
    pub(crate) fn placed(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.digest.note(&[u64::from_le_bytes(word)]);
        }
    }

    /// Adds an event of the model.
    pub(crate) fn happened(&mut self, at: Ps, event: &Event, pieces: &Slab<Piece>) {
        let of = |qp: &crate::model::QpRef| u64::from(qp.index) << 32 | u64::from(qp.life);
        match event {
            Event::Doorbell { qp, upto } => {
                self.note(&[at, DigestTag::Doorbell as u64, of(qp), *upto])
            }
            Event::Called { qp } => self.note(&[at, DigestTag::Called as u64, of(qp)]),
            Event::Idle { host, unit } => {
                self.note(&[at, DigestTag::Idle as u64, (*host).into(), *unit as u64])
            }
            Event::Arrive(id) => self.note(&words(at, DigestTag::Arrive as u64, *id, pieces)),
            Event::Place(id) => self.note(&words(at, DigestTag::Place as u64, *id, pieces)),
            Event::Acknowledge { qp, psn, answer } => {
                let said = match answer {
                    crate::model::Acknowledge::Ack => 0,
                    crate::model::Acknowledge::RnrNak(pause) => 1 << 63 | u64::from(*pause),
                    crate::model::Acknowledge::SequenceNak => 1,
                    crate::model::Acknowledge::Nak(status) => 2 + *status as u64,
                };
                self.note(&[at, DigestTag::Acknowledge as u64, of(qp), *psn, said]);
            }
            Event::Respond { qp } => self.note(&[at, DigestTag::Respond as u64, of(qp)]),
            Event::Timeout { qp } => self.note(&[at, DigestTag::Timeout as u64, of(qp)]),
            Event::Resume { qp } => self.note(&[at, DigestTag::Resume as u64, of(qp)]),
            Event::Fails { qp } => self.note(&[at, DigestTag::Fails as u64, of(qp)]),
            Event::Overruns { qp } => self.note(&[at, DigestTag::Overruns as u64, of(qp)]),
            Event::Notification { qp } => self.note(&[at, DigestTag::Notification as u64, of(qp)]),
            Event::Memory { host } => self.note(&[at, DigestTag::Memory as u64, (*host).into()]),
            Event::HostChanged { host } => {
                self.note(&[at, DigestTag::HostChanged as u64, (*host).into()])
            }
            Event::Channel { cq, life } => {
                self.note(&[at, DigestTag::Channel as u64, (*cq).into(), (*life).into()])
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
        PieceKind::ReadRequest => 1,
        PieceKind::Response(_) => 2,
        PieceKind::Datagram(_) => 3,
        PieceKind::Unreliable(_) => 4,
    };
    let sum = piece.payload_bytes().iter().fold(0, |sum: u64, byte| {
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
            let mut run_digest = RunDigest::default();
            let done = Completion {
                status,
                ..Completion::default()
            };
            run_digest.completed(1, &done);
            run_digest.placed(&[0, 0, 0, 0, 0, 0, 0, 0, byte]);
            run_digest.digest()
        };
        let usual = of(Status::Success, 1);
        assert_eq!(usual, of(Status::Success, 1));
        assert_ne!(usual, of(Status::Flushed, 1));
        assert_ne!(usual, of(Status::Success, 2));
    }
}
