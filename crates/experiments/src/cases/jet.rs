//! Experiments about Jet ("From RDMA to RDCA: Toward High-Speed Last Mile of Data Center Networks Using Remote Direct
//! Cache Access").
//!
//! | module | content |
//! |---|---|
//! | [`residency`] | receive memory that stays in the processor's cache, and memory that does not |
//! | [`escape`] | one of several applications stalls, and the others go on |
//! | [`qos`] | applications that share a small pool: equal ones, classes, and one that keeps what it has |
//! | [`storage`] | a simulated storage server under memory pressure, all combinations of designs: figures 6, 7 and 12 |
//! | [`streams`] | 10 to 1,000 streams between two daemons: throughput and memory |
//! | [`production`] | a simulated storage server whose messages stay in memory for times that vary: figures 8 and 12 |
//! | [`receiving_host`] | the memory of a simulated host under an antagonist, and READs at a time: figures 2, 3 and 5 |
//! | [`mechanisms`] | figures 2 and 3 without one mechanism of the receiving host at a time |
//! | [`workloads`] | the storage server with messages of many sizes: figure 9 |
//! | [`over_time`] | the storage server over time, while an antagonist comes and goes, and without one: figures 1, 10 and 11 |
//! | [`memory_load`] | the load of the memory at which throughput begins to fall |
//! | [`collectives`] | collective operations of MPI on two simulated hosts: figure 13 |
//! | `hosts` | the processes of the experiments with daemons |

pub mod collectives;
pub mod escape;
mod hosts;
pub mod mechanisms;
pub mod memory_load;
pub mod over_time;
pub mod production;
pub mod qos;
pub mod receiving_host;
pub mod residency;
pub mod storage;
pub mod streams;
pub mod workloads;
