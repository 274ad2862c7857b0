//! The experiments.

pub mod incast;
pub mod jet;
pub mod patterns;
mod prelude;
pub mod raas;
pub mod raw_verbs;
pub mod rb2;
pub mod ring_fanin;
pub mod ring_vs_peers;
pub mod share_pace_pool;
pub mod sim_speed;
pub mod softnic;
pub mod verbs_perftest;
pub mod weir;

use crate::experiment::Experiment;

/// Returns every experiment, in the order in which they are listed and run.
pub fn registry() -> &'static [&'static dyn Experiment] {
    ALL
}

/// Returns the experiment called `name`.
pub fn find(name: &str) -> Option<&'static dyn Experiment> {
    registry().iter().copied().find(|e| e.about().name == name)
}

/// Every experiment, in the order in which they are listed and run.
const ALL: &[&dyn Experiment] = &[
    &ring_vs_peers::RING_VS_PEERS,
    &ring_fanin::RING_FANIN,
    &verbs_perftest::VERBS_PERFTEST,
    &softnic::SOFTNIC,
    &raw_verbs::RAW_VERBS,
    &rb2::figures::FIG3,
    &rb2::figures::FIG5,
    &rb2::figures::FIG6,
    &rb2::figures::FIG7,
    &rb2::table2::TABLE2,
    &rb2::figures::RXE_RING,
    &rb2::case_studies::CASE1,
    &rb2::case_studies::CASE2,
    &rb2::case_studies::CASE3,
    &weir::scale::FIG2,
    &weir::delay::FIG4,
    &weir::scale::FIG7,
    &weir::scale::FIG8,
    &weir::scale::FIG9,
    &weir::delay::FIG10A,
    &weir::delay::FIG10B,
    &weir::cost::FIG11A,
    &weir::cost::OVERHEAD,
    &raas::request_response::VS_TCP,
    &raas::request_response::FAIRNESS,
    &raas::connections::CONNECTIONS_CASE,
    &jet::streams::STREAMS_CASE,
    &raas::scaling::SCALING,
    &raas::verb_sizes::FIG1,
    &raas::lock_contention::FIG2,
    &raas::reads::FIG6,
    &raas::reads::FIG6_4K,
    &raas::lock_contention::FIG7,
    &raas::applications::FIG8,
    &raas::applications::FIG9,
    &raas::reads::FIG10,
    &raas::latency::FIG11,
    &raas::atomics::FIG12,
    &patterns::one_to_one::FIG3,
    &patterns::one_to_one::FIG4,
    &patterns::n_to_one::FIG5,
    &patterns::n_to_one::FIG6,
    &patterns::n_to_one::FIG7,
    &patterns::n_to_one::TABLE1,
    &patterns::n_to_m::FIG8,
    &patterns::n_to_m::FIG9A,
    &patterns::n_to_m::FIG9B,
    &patterns::n_to_m::FIG10,
    &patterns::n_to_m::TABLE2,
    &patterns::optimisations::OPTIMISATIONS,
    &patterns::mailbox_control::MAILBOX_CONTROL,
    &jet::residency::RESIDENCY,
    &jet::escape::ESCAPE,
    &jet::qos::QOS,
    &jet::over_time::FIG1,
    &jet::receiving_host::FIG2,
    &jet::receiving_host::FIG5,
    &jet::mechanisms::MECHANISMS_CASE,
    &jet::storage::FIG6,
    &jet::production::FIG8,
    &jet::workloads::FIG9,
    &jet::over_time::FIG10,
    &jet::over_time::FIG11,
    &jet::collectives::FIG13,
    &jet::memory_load::LOAD,
    &incast::INCAST_LOOPS,
    &share_pace_pool::SHARE_PACE_POOL,
    &patterns::mailbox_control_host::MAILBOX_CONTROL_HOST,
    &sim_speed::SIM_SPEED,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_metrics_are_declared_once() {
        let names: BTreeSet<_> = registry().iter().map(|e| e.about().name).collect();
        assert_eq!(names.len(), registry().len());
        for experiment in registry() {
            let (about, metrics) = (experiment.about(), experiment.metrics());
            let keys: BTreeSet<_> = metrics.iter().map(|(key, _)| key).collect();
            assert_eq!(keys.len(), metrics.len(), "{}", about.name);
            let states = metrics.iter().any(|(_, stated)| !stated.is_empty());
            assert!(about.paper.is_some() || !states, "{}", about.name);
            assert!(find(about.name).is_some());
        }
    }
}
