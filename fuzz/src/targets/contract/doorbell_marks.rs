//! The daemon reads the marks and event counts of a doorbell, which an application writes.

use std::collections::BTreeSet;

use headworks_client::Doorbell;

use super::{Memory, extent};
use crate::input::Input;

/// Numbers of handles that take one upper word, and several.
const HANDLES: [usize; 3] = [64, 300, 9000];

pub(in crate::targets) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let memory = Memory::new();
    let handles = input.pick(&HANDLES);
    let len = Doorbell::bytes(handles);
    let doorbell = Doorbell::at(&memory.slabs, extent(0, 0, len as u32), handles);
    let doorbell = doorbell.expect("fits");
    // Handles that the application marked with the library, and has not overwritten.
    let mut marked = BTreeSet::new();
    while !input.is_over() {
        match input.byte() % 8 {
            0 => {
                let handle = input.u16().into();
                let _ = doorbell.touch(handle);
                marked.insert(handle);
            }
            1 => {
                let handle = input.u16().into();
                let _ = doorbell.touch_for_memory(handle);
                marked.insert(handle);
            }
            2..5 => {
                marked.clear();
                let at = input.below(len / 8) * 8;
                memory.scribble(&mut input, at);
            }
            5 => {
                doorbell.event_count().arm(false);
                doorbell.memory_event_count().arm(false);
                let _ = doorbell.is_quiet();
            }
            6 => {
                doorbell.event_count().disarm();
                doorbell.memory_event_count().disarm();
            }
            _ => {
                let mut touched = Vec::new();
                doorbell.touched(|handle| touched.push(handle));
                // Handles beyond the last are of no connection, and few: those that share its word.
                let most = handles.next_multiple_of(64);
                let is_known = |handle: &u32| (*handle as usize) < most;
                assert!(touched.iter().all(is_known), "{touched:?}");
                let count = touched.len();
                touched.sort_unstable();
                touched.dedup();
                assert_eq!(touched.len(), count, "a handle came twice");
                let marked = std::mem::take(&mut marked);
                let mut marked = marked.into_iter().filter(|one| (*one as usize) < handles);
                assert!(marked.all(|one| touched.binary_search(&one).is_ok()));
                let mut again = 0;
                doorbell.touched(|_| again += 1);
                assert_eq!(again, 0, "a mark was not taken");
            }
        }
    }
}
