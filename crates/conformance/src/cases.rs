//! The table of cases.

use crate::{Bench, Verdict};

mod accounting;
mod atomics;
mod channel;
mod cq;
mod limits;
mod partings;
mod pending;
mod refusals;
mod retries;
mod shared_receives;
mod states;
mod transfers;

/// One thing that a provider must do.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name: module and function.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(&Bench) -> Verdict,
    /// Takes long: run only when asked for.
    pub long: bool,
}

macro_rules! table {
    ($($module:ident: $($case:ident)*;)*) => {
        &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            run: $module::$case,
            long: false,
        },)*)*]
    };
}

const CASES: &[Case] = table! {
    transfers: first_write_is_done_in_the_call sends write_and_read write_with_immediate
        many_pieces inline_payloads fence_and_order;
    atomics: compare_swap fetch_add misaligned;
    shared_receives: two_queue_pairs limit_event;
    accounting: unsignalled_requests_occupy_the_queue partial_posts receive_queue_full
        signal_all;
    retries: no_receive_and_no_retry no_receive_and_endless_retry immediate_without_receive
        peer_not_ready;
    refusals: remote_access unsignalled_refused local_protection local_write_needed short_receive
        dropped_region keys_are_not_reused late_requests_miss;
    states: posting_needs_a_state illegal_transitions error_flushes_in_order reset_and_reconnect
        reset_disconnects half_sent_receive_is_flushed destroyed_under_a_pending_send;
    partings: peer_in_error peer_in_reset peer_destroyed completions_from_before_reset;
    pending: large_by_polling large_by_itself large_asleep pending_before_small
        work_beside_pending;
    channel: armed_event solicited_only timestamps_rise;
    cq: overrun several_pollers;
    limits: errors_name_the_limit foreign_objects;
};

const LONG: &[Case] = &[Case {
    name: "pending::gigabyte",
    run: pending::gigabyte,
    long: true,
}];

/// Every case, the long ones last.
pub fn cases() -> impl Iterator<Item = Case> {
    CASES.iter().chain(LONG).copied()
}
