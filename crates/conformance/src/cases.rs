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

type Run = Box<dyn Fn(&mut CaseContext<'_>) -> Verdict + Send + Sync>;

/// One thing that a provider must do.
pub struct Case {
    /// Its name: module and function.
    pub name: String,
    /// What it covers.
    pub rows: Vec<Row>,
    /// Takes long: run only when asked for.
    pub long: bool,
    /// Kills hosts: runs only where that is possible.
    pub kills: bool,
    /// Runs it.
    pub run: Run,
}

/// A line of the table of what is covered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The verb.
    pub verb: &'static str,
    /// The operation, or the kind of object.
    pub operation: String,
    /// What is wrong with it; `-` for nothing.
    pub wrong: String,
    /// What must come of it.
    pub outcome: String,
}

impl Case {
    /// A case.
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

    /// What it covers.
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

    /// It takes long.
    pub fn long(self) -> Self {
        Self { long: true, ..self }
    }

    /// It kills hosts.
    pub fn kills(self) -> Self {
        Self {
            kills: true,
            ..self
        }
    }
}

/// Every case.
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
        datagrams::cases(),
        limits::cases(),
        memory::cases(),
        deaths::cases(),
        matrix::cases(),
    ]
    .into_iter()
    .flatten()
}
