//! Tests of the command as real processes.

mod application_misuse;
mod bad_input;
mod c_library;
mod daemon;
mod daemon_datagrams;
mod daemon_operation;
mod daemon_polling;
mod daemon_remote_memory;
mod daemon_tenants;
mod demo;
mod environment;
mod experiment;
mod experiment_reproducibility;
mod hostile_clients;
mod kills;
mod pace;
mod patterns;
mod pipe;
mod pipe_between_hosts;
mod pipe_kills;
mod pipe_over_rdma;
mod simulated_devices;
mod soak;
mod test_env;
mod top;
mod without_libibverbs;
