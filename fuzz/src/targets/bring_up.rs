//! A bring-up whose peer sends any bytes.

use std::sync::{Arc, OnceLock};

use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{BringUp, Device, Gid, Lid, QueuePair};

use super::fixtures::{StubQueuePair, open};
use crate::input::Input;

/// Returns the device whose limits the bring-up sends. It serves no other purpose in this target.
pub(super) fn device() -> &'static Arc<dyn Device> {
    static DEVICE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    DEVICE.get_or_init(|| open("soft:h1"))
}

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut qp = StubQueuePair::new();
    let first = input.byte();
    let mut info = device().info().clone();
    if first & 0x80 != 0 {
        // The attributes of a device on an InfiniBand network.
        info.gid = Gid::default();
        (info.gid.0[0], info.gid.0[1]) = (0xfe, 0x80);
        info.lid = Lid::new(5);
    }
    let mut ours = BringUp::start(
        &info,
        &mut qp,
        ConnectionParams::default(),
        7,
        vec![1, 2, 3],
    )
    .expect("a queue pair in RESET");
    let cut = usize::from(first & 0x7f) + 1;
    for piece in input.rest().chunks(cut) {
        let before = ours.is_connected();
        drop(ours.output());
        match ours.input(&mut qp, piece) {
            // Once connected, the bring-up must use no byte: the rest of the stream belongs to the messages after it.
            Ok(used) => assert!(used <= piece.len() && !(before && used > 0)),
            Err(error) => {
                assert!(
                    !error.to_string().contains('\n'),
                    "the error has more than one line: {error}"
                );
                return;
            }
        }
        if ours.is_connected() {
            assert_eq!(qp.state(), headworks_verbs::QpState::Rts);
            let peer = ours.peer().expect("a connected peer has sent its hello");
            assert_eq!(peer.lid.is_some(), info.lid.is_some());
        }
    }
}
