//! The cases.

use crate::{CaseContext, Verdict};

mod atomics;
mod completion_channel;
mod cq;
mod datagrams;
mod deaths;
mod limits;
mod long_transfers;
mod matrix;
mod memory;
mod memory_fault;
mod queue_capacity;
mod retries;
mod shared_receives;
mod stale_keys;
mod states;
mod teardown;
mod transfers;
mod unreliable_connections;

type Run = Box<dyn Fn(&mut CaseContext<'_>) -> Verdict + Send + Sync>;

/// Test of one requirement on a provider.
pub struct Case {
    /// Name: module and function.
    pub name: String,
    /// Requirements that the case covers.
    pub rows: Vec<Row>,
    /// The case takes long; it runs only if long cases are requested.
    pub long: bool,
    /// The case kills hosts; it runs only in worlds that can.
    pub kills: bool,
    /// Function of the case.
    pub run: Run,
}

/// Row of the coverage table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The verb.
    pub verb: &'static str,
    /// Operation, or kind of object.
    pub operation: String,
    /// Fault of the operation; `-` if there is none.
    pub wrong: String,
    /// Required outcome.
    pub outcome: String,
}

impl Case {
    /// Returns a case that covers nothing yet.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn(&mut CaseContext<'_>) -> Verdict + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            rows: Vec::new(),
            long: false,
            kills: false,
            run: Box::new(run),
        }
    }

    /// Adds a row to the coverage table.
    pub fn row(
        mut self,
        verb: &'static str,
        operation: impl Into<String>,
        wrong: impl Into<String>,
        outcome: impl Into<String>,
    ) -> Self {
        self.rows.push(Row {
            verb,
            operation: operation.into(),
            wrong: wrong.into(),
            outcome: outcome.into(),
        });
        self
    }

    /// Marks the case as long.
    pub fn long(self) -> Self {
        Self { long: true, ..self }
    }

    /// Marks the case as one that kills hosts.
    pub fn kills(self) -> Self {
        Self {
            kills: true,
            ..self
        }
    }
}

/// Returns all cases.
pub fn cases() -> impl Iterator<Item = Case> {
    [
        transfers::cases(),
        atomics::cases(),
        shared_receives::cases(),
        queue_capacity::cases(),
        retries::cases(),
        stale_keys::cases(),
        states::cases(),
        teardown::cases(),
        long_transfers::cases(),
        completion_channel::cases(),
        cq::cases(),
        unreliable_connections::cases(),
        datagrams::cases(),
        limits::cases(),
        memory::cases(),
        deaths::cases(),
        matrix::cases(),
    ]
    .into_iter()
    .flatten()
}
