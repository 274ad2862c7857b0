//! A drop-in `libibverbs.so.1` whose devices are software RNICs, for programs that were built for the distribution's library.
//!
//! `headworks verbs -- PROGRAM` runs a program with this library. The dynamic linker then takes it wherever the program, or a library
//! that the program loads later, asks for `libibverbs.so.1`. Two processes of one user that use a device of one name reach each other.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | `symbols` | the table of all names of libibverbs: version, and the function behind each. `calls::files` has those of libc |
//! | `calls` | the functions that programs call, one module for each kind of object; unsafe: they trust the pointers they are given |
//! | `objects` | what is behind the C structs that programs hold; conversion of pointers; unsafe |
//! | `numbered` | objects by the number that the device gave them |
//! | `link` | the network that the ports seem to be on |
//! | `manners` | what devices of real drivers refuse, ignore, reorder and report, as a table |
//! | `faults` | faults that the devices inject: what the environment asks for |
//! | `devices` | names, addresses and attributes of the devices |
//! | `builder` | requests that a program builds one call at a time |
//! | `attributes` | conversion of queue pair attributes: pure |
//! | `completions` | conversion of completions: pure |
//! | `peers` | lines on peers that are not where a program expects them |
//! | `rates`, `text` | rates and descriptions of numbers, as tables |
//! | `system_files` | the files in which programs look for RDMA devices: pure |
//! | `errors` | the error number for each error; results of calls; catching of panics |
//! | `registration` | memory of a program, as a device registers it; unsafe |
//! | `shared_memory` | replaces a program's pages by shared ones, so that peers reach them without system calls; unsafe |
//! | `system` | calls of libc; unsafe |
//!
//! # How it works
//!
//! A C struct that a program holds (`ibv_qp`, …) is the front of a Rust object in an `Arc`. An object holds the objects it was made from, so
//! the count of an `Arc` tells whether an object is still in use: destruction then fails with `EBUSY`, as the kernel's does.
//! A program that closes its device first keeps valid pointers until it has destroyed the rest.
//!
//! A queue pair has one lock, because a program may post sends and receives from several threads. Nothing else on the path of a request is
//! locked here.
//!
//! A program may set `O_NONBLOCK` on the descriptors of a completion channel and of a context, and this decides whether a call waits. The
//! pipes of the software RNIC never block. So the program gets a second open file description of the same pipe.
#![deny(unsafe_code)]

mod attributes;
mod builder;
mod calls;
mod completions;
mod devices;
mod errors;
mod faults;
mod link;
mod manners;
mod numbered;
mod objects;
mod peers;
mod rates;
mod registration;
mod shared_memory;
mod symbols;
mod system;
mod system_files;
mod text;
