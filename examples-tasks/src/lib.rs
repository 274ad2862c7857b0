//! Programs with tasks of the tokio runtime on streams of the service: servers and clients of HTTP and gRPC.
//!
//! | program (`examples-tasks/examples/`) | what it shows |
//! |---|---|
//! | `http_tasks` | hyper serves HTTP/1.1 and HTTP/2 over streams of the service |
//! | `grpc_echo` | tonic serves gRPC over streams of the service and over TCP, and the rates of both |
//!
//! Each program is two processes. Started without arguments, it starts itself again as the server and as two daemons. The
//! two hosts are one machine, so the connections are direct.
//!
//! [`connection`] makes connections for hyper and tonic. [`interruptible`] ends a program at Ctrl-C. The module `generated`
//! has the code of `proto/echo.proto`, as tonic-prost-build makes it; no build needs protoc.

pub mod connection;
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod generated;
pub mod interruptible;
