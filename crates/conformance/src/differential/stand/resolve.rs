//! What slices mean: which bytes of which region, and what is wrong with them.

use headworks_verbs::Access;

use super::Stand;
use crate::call::{Piece, Remote, Twist};
use crate::differential::program::{HALF, LEN, Slice, Wrong};
use crate::differential::seen::Span;

/// For what memory is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// To be sent.
    Source,
    /// To be written to, by what a request brings or a receive takes.
    Sink,
    /// By the peer.
    Peer,
    /// By the peer, a word.
    Word,
}

/// Bytes that a slice means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    end: usize,
    memory: usize,
    offset: i64,
    pub(super) len: usize,
    twist: Twist,
    /// How many bytes of it come before what is wrong.
    pub(super) good: usize,
    /// A request that names them here fails.
    pub(super) is_bad: bool,
}

impl Target {
    /// The bytes of it that there are.
    pub(super) fn span(&self) -> Span {
        let inside = |at: i64| at.clamp(0, LEN as i64) as usize;
        Span {
            end: self.end,
            memory: self.memory,
            from: inside(self.offset),
            to: inside(self.offset + self.len as i64),
        }
    }
}

impl Stand<'_, '_> {
    pub(super) fn target(&self, end: usize, slice: &Slice, len: usize, use_: For) -> Target {
        let all = &self.regions[end];
        let of = |is_live: bool| {
            let chosen = move |number: &usize| all[*number].is_live == is_live;
            (0..all.len()).filter(chosen).collect::<Vec<_>>()
        };
        let mut choice = of(slice.wrong != Wrong::Gone);
        if choice.is_empty() {
            choice = (0..all.len()).collect();
        }
        let memory = choice[usize::from(slice.memory) % choice.len()];
        let region = &all[memory];
        let (low, high) = match use_ {
            For::Source => (0, HALF),
            For::Sink => (HALF, LEN),
            For::Peer | For::Word => (0, LEN),
        };
        let room = (high - low).saturating_sub(len) + 1;
        let mut at = (low + usize::from(slice.at) % room) as i64;
        if use_ == For::Word {
            at &= !7;
        }
        let offset = match slice.wrong {
            Wrong::End => (LEN - len.min(LEN) + 1) as i64,
            Wrong::Start => -1,
            Wrong::Aside if use_ == For::Word => at ^ 4,
            _ => at,
        };
        let host = self.hosts[end].id;
        let stray = self.bench.book().stray_bit(host, region.id);
        let twist = match slice.wrong {
            Wrong::Key => Twist::key(stray.unwrap_or(1 << 31)),
            Wrong::Far => Twist::absolute(0x10_0000),
            _ => Twist::default(),
        };
        let may = region.memory.access;
        let is_allowed = use_ != For::Sink || may.contains(Access::LOCAL_WRITE);
        let is_right = matches!(slice.wrong, Wrong::Not | Wrong::Aside | Wrong::Gone);
        let is_end = slice.wrong == Wrong::End && region.is_live;
        Target {
            end,
            memory,
            offset,
            len,
            twist,
            good: match is_end && is_allowed && !region.memory.foreign {
                true => len.saturating_sub(1),
                false => 0,
            },
            is_bad: !is_right || !region.is_live || region.memory.foreign || !is_allowed,
        }
    }

    /// Whether a peer may do that to it.
    pub(super) fn lets(&self, target: &Target, need: Access) -> bool {
        let allowed = self.regions[target.end][target.memory].memory.access;
        !target.is_bad && target.len <= LEN && allowed.contains(need)
    }

    pub(super) fn piece(&self, target: &Target) -> Piece {
        Piece {
            region: self.regions[target.end][target.memory].id,
            offset: target.offset,
            len: target.len as u32,
            twist: target.twist,
        }
    }

    pub(super) fn remote(&self, target: &Target) -> Remote {
        Remote::Of {
            host: self.hosts[target.end].id,
            region: self.regions[target.end][target.memory].id,
            offset: target.offset,
            twist: target.twist,
        }
    }
}
