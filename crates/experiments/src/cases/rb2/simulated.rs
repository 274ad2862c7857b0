//! What there is to say of figures where the machines are simulated: what they are of, and why they differ from
//! the paper's. The numbers behind it are in the documentation of the simulation.

use crate::bench::Bench;
use crate::outcome::Outcome;

/// Of all experiments.
const ALL: &str = "Simulated: processors are charged cpu.message for each message at either end (assumed), copies at \
    cpu.copy and cpu.copy_rate, clearing as half a copy, and what perftest does for each plain WRITE with \
    cpu.bench, beside what calls of verbs cost. There is one repeat: the same would come of another. The \
    paper's figures are printed beside, and nothing was fitted to them.";

pub(super) const FIG3: &str = "Simulated: pushing wins at 64 B because a sender that pulls waits for a READ's \
    round trip while its 128 slots are full. The tail of CQ is that receives are posted again 32 at a time \
    (cpu.post_recv each), at both ends on the same way there and back; its mean is lower, because a WRITE with \
    immediate comes with its doorbell, while two WRITEs are fetched by a DMA read (pcie.read).";

pub(super) const FIG5: &str = "Simulated: at 64 B FaRM and L5 are held back by the unit that sends, which takes \
    two WRITEs for each message (nic.tx_message); SocksDirect by its sender's processor, as fewer than ten \
    requests are ever under way and each message goes alone; RB² by the elastic threshold, which publishes once \
    a round trip. With more work for each message RB² comes closer to plain WRITEs. At 1 MiB the designs that \
    copy are held back by the processor: at cpu.copy_rate, which is of cached buffers, whereas the arrays of 128 \
    messages are in no cache, and the model has no memory to be slow. RB² and plain WRITEs wait for translations \
    of ordinary pages there (nic.mtt). Nothing in the model brings L5 down to 10 Gbit/s.";

pub(super) const FIG6: &str = "Simulated: two WRITEs that are posted together are fetched by a DMA read, at \
    either end, which is what RB² takes beyond plain WRITEs; one that is posted alone comes with its doorbell. \
    The device does not promise to place bytes in order, so rb2-latency works as the ring without batches. \
    Neither interrupts nor a scheduler disturb anything, so tails are short; SocksDirect's is that \
    receives are posted again 32 at a time (cpu.post_recv each), at both ends on the same way there and back.";

pub(super) const FIG7: &str = "Simulated: every pair has cores, queue pairs and sending units of its own up to \
    eight, so nothing is shared but bus and link: with eight pairs RB² fills the link, the others are as far \
    from it as one pair is.";

pub(super) const TABLE2: &str = "Simulated: without batching (M2) the unit that sends takes two WRITEs for each \
    message. The elastic threshold (M4) costs throughput here, since nothing on the way is congested and it \
    holds slots back for a round trip. Misaligned arrays (M7) cost nothing, because the model has no cache lines \
    and no memory. Ordinary pages (M8) cost at 1 MiB what is missing in nic.mtt, of which no size was published.";

pub(super) const CASES: &str = "Simulated: what the applications compute for a message was measured of this \
    code, in loops without a channel.";

/// Adds what there is to say, if the machines are simulated.
pub(super) fn note(bench: &Bench<'_>, outcome: &mut Outcome, of: &str) {
    if bench.place.is_simulated() {
        outcome.notes.extend([ALL.to_owned(), of.to_owned()]);
    }
}
