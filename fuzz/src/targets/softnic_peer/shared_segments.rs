//! The shared memory of this process's devices, as another process sees it that attaches the segments.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_shm::{SharedSegment, View};
use rustix::fs::fstat;

use crate::input::Input;

const LINE: usize = 64;

/// All segments of this process by inode number, each with the offsets of its cache lines that are not zero.
pub(crate) struct SegmentSnapshot(BTreeMap<u64, (View, BTreeSet<usize>)>);

impl SegmentSnapshot {
    pub(crate) fn all() -> Self {
        let mut found = BTreeMap::new();
        let entries = std::fs::read_dir("/proc/self/fd").expect("our descriptors");
        for entry in entries.flatten() {
            let name = std::fs::read_link(entry.path()).unwrap_or_default();
            if !name.to_string_lossy().starts_with("/memfd:headworks") {
                continue;
            }
            let opened = File::options().read(true).write(true).open(entry.path());
            let Ok(fd) = opened.map(OwnedFd::from) else {
                continue;
            };
            let inode = fstat(&fd).expect("it is open").st_ino;
            if found.contains_key(&inode) {
                continue;
            }
            if let Ok(segment) = SharedSegment::attach(fd) {
                let view = View::from(Arc::new(segment));
                let lines = lines(&view);
                found.insert(inode, (view, lines));
            }
        }
        Self(found)
    }
}

/// Returns the offsets of the cache lines that are not zero.
fn lines(view: &View) -> BTreeSet<usize> {
    let mut bytes = vec![0; view.len()];
    view.read(0, &mut bytes).expect("all of it");
    let held = |(at, line): (usize, &[u8])| (line != [0; LINE]).then_some(at * LINE);
    bytes
        .chunks_exact(LINE)
        .enumerate()
        .filter_map(held)
        .collect()
}

/// The words that a hostile peer writes: its own memory and table, and the lines of the victim that were first
/// used for the connection to it.
pub(crate) struct ExposedWords {
    parts: Vec<SegmentLines>,
    /// The lines that were first used after a later snapshot, if half of the stores are to go there.
    latest: Vec<SegmentLines>,
    /// Those of the latest lines that hold a call of a bounce buffer.
    calls: Vec<SegmentLines>,
    /// Words that are valid in some call: addresses, keys, lengths.
    words: Vec<u64>,
    asked: Vec<[u64; 3]>,
}

type SegmentLines = (View, Vec<usize>);

impl ExposedWords {
    /// Returns the lines that are not zero now and were zero in `before`.
    pub(crate) fn since(before: &SegmentSnapshot) -> Self {
        let parts = new_since(before);
        assert!(parts.len() > 1, "there is nothing to write to");
        Self {
            parts,
            latest: Vec::new(),
            calls: Vec::new(),
            words: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// Makes some stores forge bounce calls from `asked`, the key, address and length words of valid calls. A line
    /// holds a call if its second word is the first word of one of `asked`.
    pub(crate) fn with_calls(mut self, asked: Vec<[u64; 3]>) -> Self {
        let is_call = |view: &View, line: usize| {
            let word = view.atomic_u64(line + 8).expect("a word of a line");
            let word = word.load(Ordering::Relaxed);
            asked.iter().any(|[first, ..]| *first == word)
        };
        let calls = |(view, lines): &SegmentLines| {
            let lines = lines.iter().copied().filter(|line| is_call(view, *line));
            (view.clone(), lines.collect::<Vec<_>>())
        };
        self.calls = self.latest.iter().map(calls).collect();
        self.calls.retain(|(_, lines)| !lines.is_empty());
        self.words = asked.concat();
        self.asked = asked;
        self
    }

    /// Makes half of the stores go to lines that were zero at `moment`.
    pub(crate) fn mostly_since(mut self, moment: &SegmentSnapshot) -> Self {
        self.latest = new_since(moment);
        self
    }

    fn place(&self, input: &mut Input<'_>) -> WordPlace {
        let parts = match self.latest.is_empty() || input.byte() < 128 {
            true => &self.parts,
            false => &self.latest,
        };
        let (view, lines) = &parts[input.below(parts.len())];
        let offset = lines[input.below(lines.len())] + input.below(LINE / 8) * 8;
        let view = view.clone();
        WordPlace { view, offset }
    }

    /// Returns a store to some word.
    pub(crate) fn scribble(&self, input: &mut Input<'_>) -> WordStore {
        let place = self.place(input);
        let old = place.word().load(Ordering::Relaxed);
        let new = self.word(input, old);
        WordStore { place, old, new }
    }

    /// Stores to the first five words of one of the latest lines. The first word is stored last, because a writer
    /// publishes a new call in that order.
    pub(crate) fn rewrite(&self, input: &mut Input<'_>) -> Vec<WordStore> {
        let parts = match self.calls.is_empty() || input.byte() < 64 {
            true => &self.latest,
            false => &self.calls,
        };
        let Some((view, lines)) = parts.get(input.below(parts.len())) else {
            return Vec::new();
        };
        let line = lines[input.below(lines.len())];
        // In some inputs all the call's words are valid.
        let whole = match input.byte() {
            0..96 if !self.asked.is_empty() => Some(input.pick(&self.asked)),
            _ => None,
        };
        let store = |at: usize| {
            let view = view.clone();
            let offset = line + at * 8;
            let place = WordPlace { view, offset };
            let old = place.word().load(Ordering::Relaxed);
            let new = match (at, whole) {
                (0, _) => old.wrapping_add(1),
                (1..4, Some(words)) => words[at - 1],
                _ => self.word(input, old),
            };
            WordStore { place, old, new }.store()
        };
        [1, 2, 3, 4, 0].into_iter().map(store).collect()
    }

    fn word(&self, input: &mut Input<'_>, old: u64) -> u64 {
        match input.byte() {
            // A word from another place is valid there and mostly invalid here.
            0..64 => self.place(input).word().load(Ordering::Relaxed),
            64..160 if !self.words.is_empty() => input.pick(&self.words),
            160..208 if !self.words.is_empty() => old,
            _ => input.word(old),
        }
    }
}

/// Returns the lines that are not zero now and were zero in `before`, and the lines after them.
fn new_since(before: &SegmentSnapshot) -> Vec<SegmentLines> {
    let nothing = BTreeSet::new();
    let parts = SegmentSnapshot::all()
        .0
        .into_iter()
        .map(|(inode, (view, lines))| {
            let known = before.0.get(&inode).map_or(&nothing, |(_, lines)| lines);
            // The line after a used one is often a part of the same object that was not used yet.
            let near = lines.difference(known).flat_map(|at| [*at, at + LINE]);
            let near: BTreeSet<_> = near
                .filter(|at| !known.contains(at) && at + LINE <= view.len())
                .collect();
            (view, near.into_iter().collect::<Vec<_>>())
        });
    parts.filter(|(_, lines)| !lines.is_empty()).collect()
}

#[derive(Clone)]
struct WordPlace {
    view: View,
    offset: usize,
}

impl WordPlace {
    fn word(&self) -> &AtomicU64 {
        self.view.atomic_u64(self.offset).expect("a word of a line")
    }
}

/// A store to a word: the place, the value before, and the new value.
pub(crate) struct WordStore {
    place: WordPlace,
    old: u64,
    new: u64,
}

impl WordStore {
    pub(crate) fn store(&self) -> Self {
        let old = self.place.word().swap(self.new, Ordering::AcqRel);
        let (place, new) = (self.place.clone(), self.new);
        Self { place, old, new }
    }

    /// Restores the value before the store, unless another thread has stored to the word since.
    pub(crate) fn undo(&self) {
        let (new, old) = (self.new, self.old);
        let word = self.place.word();
        let _ = word.compare_exchange(new, old, Ordering::AcqRel, Ordering::Relaxed);
    }
}
