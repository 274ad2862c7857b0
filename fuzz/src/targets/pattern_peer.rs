//! The hostile peer of a requester, a responder or a dispatcher. It speaks verbs only. It gives an area that may be
//! wrong, then writes into the memory that it has the key of, sends requests and responses that nobody asked for, or
//! breaks its queue pair.

use std::sync::{Arc, OnceLock};

use headworks_baselines::WordMemory;
use headworks_patterns::bring_up::PeerBringUps;
use headworks_patterns::ports::Ports;
use headworks_patterns::topology::OneResponder;
use headworks_patterns::verb::{
    DenseWrite, InMessage, OwnReceives, SecondWrite, Send, SharedReceives, Verb, Write,
};
use headworks_patterns::{
    Dispatcher, PatternConfig, PatternError, RequestLoad, Requester, Responder,
};
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{BringUp, Device, RemoteAddr};

use super::fixtures::{SHORT_TIMEOUT, open};
use super::ring_peer::Peer;
use crate::input::Input;

/// Bytes of an encoded area: two addresses, each with a key.
const AREA: usize = 24;
/// Messages that a bring-up takes at most.
const ROUNDS: usize = 8;

fn devices() -> &'static (Arc<dyn Device>, Arc<dyn Device>) {
    static DEVICES: OnceLock<(Arc<dyn Device>, Arc<dyn Device>)> = OnceLock::new();
    DEVICES.get_or_init(|| (open("soft:pattern"), open("soft:peer")))
}

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let config = PatternConfig {
        outstanding: 1 + u32::from(input.byte() % 4),
        items: 8,
        signal_every: 1 + u32::from(input.byte() % 4),
        send_depth: 8,
        ..PatternConfig::paper(64 + 8 * usize::from(input.byte() % 16))
    };
    match input.byte() % 5 {
        0 => fuzz::<Write<InMessage>, Write<InMessage>>(&mut input, config),
        1 => fuzz::<Send<SharedReceives>, Send<OwnReceives>>(&mut input, config),
        2 => fuzz::<DenseWrite, Write<SecondWrite>>(&mut input, config),
        3 => fuzz::<Write<SecondWrite>, Send<OwnReceives>>(&mut input, config),
        _ => fuzz::<Send<SharedReceives>, Write<InMessage>>(&mut input, config),
    }
}

fn fuzz<Request: Verb, Response: Verb>(input: &mut Input<'_>, config: PatternConfig) {
    let (device, peer) = devices();
    let mut broken = Peer::new(peer);
    let mut load = Outstanding::default();
    match input.byte() % 3 {
        0 => {
            let opened = Responder::<Request, Response>::open(device.clone(), config, 1);
            let mut responder = opened.expect("a responder");
            let area = responder.request_area(0);
            if bring_up(input, &mut broken, responder.ports(), area).is_none() {
                return;
            }
            attack(input, &mut broken, config.response, || {
                responder.step(4)?;
                responder.check()
            });
            assert!(responder.answered() <= responder.polled().found);
        }
        1 => {
            let opened = Requester::<Request, Response, OneResponder>::open(
                device.clone(),
                config,
                1,
                OneResponder,
            );
            let mut requester = opened.expect("a requester");
            let area = requester.response_area();
            if bring_up(input, &mut broken, requester.ports(), area).is_none() {
                return;
            }
            attack(input, &mut broken, config.response, || {
                requester.step(&mut load)?;
                assert_eq!(requester.outstanding() as u32, load.0.count_ones());
                requester.check()
            });
        }
        _ => {
            let opened = Dispatcher::<Request, Response>::open(device.clone(), config, 1);
            let mut dispatcher = opened.expect("a dispatcher");
            let mut workers: Vec<_> = (0..config.outstanding)
                .map(|slot| dispatcher.worker(slot, OneResponder))
                .collect();
            let area = dispatcher.response_area();
            if bring_up(input, &mut broken, dispatcher.ports(), area).is_none() {
                return;
            }
            attack(input, &mut broken, config.response, || {
                for worker in &mut workers {
                    worker.step(&mut load)?;
                }
                dispatcher.step()?;
                dispatcher.check()
            });
        }
    }
}

/// Alternates between attacks of the peer and steps of the end under test, until a step fails.
fn attack(
    input: &mut Input<'_>,
    broken: &mut Peer,
    slot: usize,
    mut step: impl FnMut() -> Result<(), PatternError>,
) {
    while !input.is_over() {
        match input.byte() % 4 {
            0 => {
                if step().is_err() {
                    return;
                }
            }
            1 => broken.send_message(input, slot),
            _ => broken.act(input, slot.next_multiple_of(64)),
        }
    }
}

/// Connects the only queue pair of `ports` to the hostile peer, which is given `area` and gives one of its own with a few
/// wrong bytes.
fn bring_up(
    input: &mut Input<'_>,
    broken: &mut Peer,
    ports: &mut Ports,
    area: headworks_patterns::bring_up::Area,
) -> Option<()> {
    let (_, device) = devices();
    let ours = broken.memory();
    let mut payload = [&ours.addr.to_le_bytes()[..], &ours.rkey.to_le_bytes()].concat();
    payload.extend_from_within(..);
    for _ in 0..input.byte() / 64 {
        payload[input.below(AREA)] = input.byte();
    }
    payload.truncate(AREA - usize::from(input.byte() / 250));
    let params = ConnectionParams {
        timeout: Some(SHORT_TIMEOUT),
        retry_count: 1,
        rnr_retry: 1,
        ..ConnectionParams::default()
    };
    let mut ups = PeerBringUps::start(ports, 1, |_| area).expect("a bring-up");
    let theirs = BringUp::start(device.info(), broken.queue_pair(), params, 2, payload);
    let mut theirs = theirs.expect("a bring-up");
    for _ in 0..ROUNDS {
        let mut bytes = theirs.output();
        if !bytes.is_empty() && input.byte() > 240 {
            let at = input.below(bytes.len());
            bytes[at] = input.byte();
        }
        ups.input(ports, 0, &bytes).ok()?;
        theirs
            .input(broken.queue_pair(), &ups.output(0))
            .expect("honest bytes");
    }
    if !ups.is_connected() {
        return None;
    }
    let given = theirs.peer().expect("connected").payload.clone();
    let (addr, key) = given.get(..12)?.split_at(8);
    broken.aim(RemoteAddr {
        addr: u64::from_le_bytes(addr.try_into().expect("8 bytes")),
        rkey: u32::from_le_bytes(key.try_into().expect("4 bytes")),
    });
    ups.finish(ports).ok()
}

/// A load that always begins another request. It has the slots of requests without a response, as bits.
#[derive(Default)]
struct Outstanding(u64);

impl RequestLoad for Outstanding {
    fn begin(&mut self) -> bool {
        true
    }

    fn sent(&mut self, slot: usize) {
        assert_eq!(self.0 >> slot & 1, 0, "two requests in slot {slot}");
        self.0 |= 1 << slot;
    }

    fn received(
        &mut self,
        slot: usize,
        _item: u64,
        memory: &WordMemory,
        at: usize,
    ) -> Result<(), PatternError> {
        assert_eq!(self.0 >> slot & 1, 1, "no request in slot {slot}");
        self.0 &= !(1 << slot);
        assert!(at < memory.region().len());
        Ok(())
    }
}
