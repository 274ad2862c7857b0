//! The huge pages and NUMA nodes that points need, and the reasons why some points cannot be measured.

use super::SLOTS;
use super::sweep::is_rate;
use crate::bench::Bench;
use crate::cpu_affinity::numa_nodes;
use crate::huge_pages::huge_bytes;
use crate::table::Point;
use crate::transports::WorkloadError;
use crate::transports::job::{Channel, RingMode, Variant};

/// Returns why a point is not measured, if the machine lacks the pages or the nodes that the point needs.
pub(super) fn refusal(bench: &Bench<'_>, point: &Point<Channel>) -> Option<String> {
    let Channel::Ring(RingMode::Paper(variant)) = point.arm else {
        return None;
    };
    if bench.testbed.is_simulated() {
        return refused(variant, Some("the simulated machines have"), |_| None);
    }
    if matches!(variant, Variant::WrongNode(_) | Variant::WrongThreads(_)) {
        let device = headworks::open(&bench.options.device).ok()?;
        if let Some(why) = far(device.info().numa_node, numa_nodes()[0]) {
            return Some(why);
        }
    }
    let one_node = numa_nodes()[1].is_none().then_some("this machine has");
    refused(variant, one_node, |node| match lacks(bench, point, node) {
        Ok(lacks) => lacks,
        Err(why) => Some(format!(
            "cannot determine whether there are huge pages: {why}"
        )),
    })
}

/// Returns why M9 is not measured if the threads of M1 already run on another node than the device's: M9
/// would then move the threads, or the memory, closer to the device.
fn far(device: Option<u32>, threads: Option<u32>) -> Option<String> {
    let (device, threads) = (device?, threads?);
    (device != threads).then(|| {
        format!(
            "the device is on NUMA node {device}, the first processors allowed on node {threads}: run it with \
             taskset on node {device}"
        )
    })
}

/// Returns why a variant is not measured. `one_node`, if set, is the start of a sentence that something has
/// only one NUMA node. `lacks` says why memory on a node, or on the device's own node for `None`, gets no
/// huge pages.
fn refused(
    variant: Variant,
    one_node: Option<&str>,
    lacks: impl Fn(Option<u32>) -> Option<String>,
) -> Option<String> {
    match (variant, one_node) {
        (Variant::Huge, _) => lacks(None),
        (Variant::OrdinaryPages, _) => lacks(None).map(|why| format!("{why}: M8 is M1 then")),
        (Variant::WrongNode(_) | Variant::WrongThreads(_), Some(has)) => {
            Some(format!("{has} one NUMA node"))
        }
        (Variant::WrongNode(node) | Variant::WrongThreads(node), None) => {
            let [m9, m1] = [Some(node), None].map(&lacks);
            let differs = m9.is_some() != m1.is_some();
            let why = m9.or(m1).filter(|_| differs)?;
            Some(format!("M9 and M1 differ in their pages: {why}"))
        }
        _ => None,
    }
}

/// Returns why some arrays of a point get no huge pages on a node; `None` if all get them.
fn lacks(
    bench: &Bench<'_>,
    point: &Point<Channel>,
    numa_node: Option<u32>,
) -> Result<Option<String>, WorkloadError> {
    let arrays = 2 * if is_rate(point) { point.n } else { 2 * point.n };
    let (size, asked) = (point.x, arrays * SLOTS * point.x);
    let got = huge_bytes(&bench.options.device, (arrays, SLOTS * size), numa_node)?;
    let [kib, got_kib] = [asked >> 10, got >> 10];
    Ok((got < asked).then(|| {
        format!("messages of {size} B need {kib} KiB of huge pages; {got_kib} KiB are free (raise vm.nr_hugepages)")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_far_from_the_device_are_no_base_for_m9() {
        for (device, threads, why) in [
            (None, Some(0), ""),
            (Some(1), None, ""),
            (Some(1), Some(1), ""),
            (Some(1), Some(0), "the device is on NUMA node 1"),
        ] {
            let refusal = far(device, threads).unwrap_or_default();
            assert_eq!(refusal.is_empty(), why.is_empty(), "{refusal}");
            assert!(refusal.contains(why), "{refusal}");
        }
    }

    #[test]
    fn a_point_that_lacks_its_pages_or_its_node_is_refused_with_the_reason() {
        let (m8, m9) = (Variant::OrdinaryPages, Variant::WrongThreads(1));
        let one = Some("this machine has");
        // `is_huge` says whether there are huge pages on the device's own node, and on node 1.
        for (variant, one_node, is_huge, why) in [
            (Variant::Full, one, [false, false], ""),
            (Variant::Huge, one, [false, false], "none"),
            (Variant::Huge, one, [true, false], ""),
            (m8, one, [false, false], "none: M8 is M1 then"),
            (m8, one, [true, false], ""),
            (m9, one, [true, true], "this machine has one NUMA node"),
            (m9, None, [true, true], ""),
            (m9, None, [false, false], ""),
            (m9, None, [true, false], "differ in their pages: none"),
            (m9, None, [false, true], "differ in their pages: none"),
        ] {
            let lacks = |node: Option<u32>| {
                (!is_huge[usize::from(node.is_some())]).then(|| "none".to_owned())
            };
            let refusal = refused(variant, one_node, lacks).unwrap_or_default();
            assert_eq!(refusal.is_empty(), why.is_empty(), "{variant:?}: {refusal}");
            assert!(refusal.contains(why), "{variant:?}: {refusal}");
        }
    }
}
