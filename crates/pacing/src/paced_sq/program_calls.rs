//! What is known of the calls that the program makes.

/// In one poll out of this many, receives are polled before the completions of requests.
const RECEIVES_EVERY: u32 = 16;
/// While something waits, completions are polled once in this many posts without a poll by the program.
const UNPOLLED_MAX: u32 = 16;

/// Counters of the program's calls on one completion queue.
#[derive(Debug, Default)]
pub(super) struct ProgramCalls {
    /// Polls so far; wraps around.
    polls: u32,
    /// Calls that posted since the program last polled, while something waited. Less than [`UNPOLLED_MAX`] between
    /// calls.
    posts_unpolled: u32,
    /// Whether the program may be asleep with no timer to wake it: it armed the completion queue, and no poll has
    /// found anything since. While this is set and requests wait, one request is in flight.
    pub(super) sleeps: bool,
}

impl ProgramCalls {
    /// Counts a poll. Returns whether it is to look for receives first.
    pub(super) fn receives_next(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(RECEIVES_EVERY)
    }

    /// Notes that the program polls the completions of requests.
    pub(super) fn polled(&mut self) {
        self.posts_unpolled = 0;
    }

    /// Counts a call that posts while something waits. Returns whether completions are to be polled for a program
    /// that does not poll.
    pub(super) fn posted(&mut self) -> bool {
        self.posts_unpolled += 1;
        self.posts_unpolled >= UNPOLLED_MAX
    }
}
