//! Tests of the hostile device: each fault it can inject is seen for some seed, and no forbidden one for any
//! seed. One thread posts, polls and looks, so what it sees between two steps follows from the rules and
//! the seed.

mod datagrams;
mod faults;
mod pair;
mod promises;
mod unreliable;
