//! The hostile device is hostile: each of its deeds is seen for some seed, and what is forbidden for
//! none. One thread posts, polls and looks, so what is seen between two steps is what the rules made
//! of the seed.

mod datagrams;
mod faults;
mod pair;
mod promises;
