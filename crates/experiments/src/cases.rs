//! The experiments: one file each, or a file and a folder of its parts. A new one is a type that
//! implements [`Experiment`] and a line in `ALL`.

pub mod raas;
pub mod raw_verbs;
pub mod rb2;
pub mod ring_fanin;
pub mod ring_vs_peers;
pub mod sim_speed;
pub mod softnic;
pub mod weir;

use crate::experiment::Experiment;

/// Every experiment, in the order in which they are listed and run.
pub(crate) const ALL: &[&dyn Experiment] = &[
    &ring_vs_peers::RingVsPeers,
    &ring_fanin::RingFanIn,
    &softnic::SoftNic,
    &raw_verbs::RawVerbs,
    &rb2::fig3::Fig3,
    &rb2::fig5::Fig5,
    &rb2::fig6::Fig6,
    &rb2::fig7::Fig7,
    &rb2::table2::Table2,
    &rb2::rxe_ring::RxeRing,
    &rb2::cases::Case1,
    &rb2::cases::Case2,
    &rb2::cases::Case3,
    &weir::fig2::Fig2,
    &weir::fig4::Fig4,
    &weir::scale::Scale::FIG7,
    &weir::scale::Scale::FIG8,
    &weir::scale::Scale::FIG9,
    &weir::fig10a::Fig10a,
    &weir::fig10b::Fig10b,
    &weir::fig11a::Fig11a,
    &weir::overhead::Overhead,
    &raas::vs_tcp::VsTcp,
    &raas::fairness::Fairness,
    &raas::connections::Connections,
    &raas::fig2::Fig2,
    &raas::fig6::Fig6,
    &raas::fig2::Fig7,
    &raas::applications::Fig8,
    &raas::applications::Fig9,
    &raas::fig10::Fig10,
    &raas::fig11::Fig11,
    &raas::fig12::Fig12,
    &sim_speed::SimSpeed,
];
