//! A hostile peer daemon. It sends any messages on the control stream, sends any frames, and writes anything
//! into memory that the daemon under test has told it of.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use headworks_client::direct::DirectPlace;
use headworks_client::socket_message::Refusal;
use headworks_client::{Extent, Vqpn};
use headworks_daemon::PeerId;
use headworks_daemon::control::{
    DirectOffer, DomainPair, Message, PairEnds, PlaceId, TakenPlace, VERSION, VERSION_OLDEST,
};
use headworks_daemon::frame::{HEADER, Header, Kind, Remote};
use headworks_daemon::qp_group::{self, QpRole};
use headworks_daemon::snapshot::Snapshot;
use headworks_daemon::{DomainId, control::Offer};
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    Access, AllocRequest, BringUp, Completion, CompletionQueue, CqInit, Device, Payload, QpInit,
    QpType, QueuePair, RecvWr, Region, SendFlags, SendOp, SendWr,
};

use super::{Application, DaemonHarness, PORT, config};
use crate::input::Input;
use crate::targets::fixtures::open;

const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const USER: DomainId = DomainId(1);
const OTHER: DomainId = DomainId(9);
/// Size in bytes of the memory that the hostile daemon sends from.
const MEMORY: usize = 4096;
const RECEIVES: usize = 64;

fn devices() -> &'static (Arc<dyn Device>, Arc<dyn Device>) {
    static DEVICES: OnceLock<(Arc<dyn Device>, Arc<dyn Device>)> = OnceLock::new();
    DEVICES.get_or_init(|| (open("soft:served"), open("soft:rogue")))
}

/// The hostile daemon.
struct RogueDaemon {
    peer: PeerId,
    qps: Vec<Box<dyn QueuePair>>,
    bringing: Vec<BringUp>,
    cq: Arc<dyn CompletionQueue>,
    memory: Region,
    /// Numbers of connections that it was told of. `rings` are the rings that it was told of.
    numbers: Vec<Vqpn>,
    tokens: Vec<u32>,
    instance: u32,
}

pub(in crate::targets) fn run(bytes: &[u8]) {
    play(bytes);
}

/// Runs the target. Returns the state of the daemon before the end.
fn play(bytes: &[u8]) -> Snapshot {
    let mut input = Input::new(bytes);
    let (device, other) = devices();
    let mut harness = DaemonHarness::new(device.clone(), config(&mut input));
    let sessions = [1, 2].map(|user| harness.attach(user));
    harness.settle();
    for (number, session) in (0..).zip(&sessions) {
        let listens = |one: &mut Application| one.session.listen(PORT + number, 16);
        harness.applications.get_mut(session).map(listens);
    }
    harness.settle();
    let mut rogue = RogueDaemon::new(&mut harness, other);
    rogue.greet(&mut harness);
    while !input.is_over() {
        rogue.act(&mut input, &mut harness);
        if harness.hung_up.contains(&rogue.peer) {
            break;
        }
    }
    drop(rogue.qps);
    let snapshot = harness.daemon.snapshot();
    let peer = rogue.peer;
    harness.daemon.peer_gone(peer);
    harness.end();
    snapshot
}

impl RogueDaemon {
    fn new(harness: &mut DaemonHarness, device: &Arc<dyn Device>) -> Self {
        let pd = device.alloc_pd().expect("a domain");
        let depth = 1024;
        let init = CqInit {
            depth,
            ..CqInit::default()
        };
        let cq = device.create_cq(&init).expect("a queue");
        let buffer = device.alloc(&AllocRequest::of(MEMORY)).expect("memory");
        let memory = pd.register(&buffer, Access::ALL).expect("a region");
        let mut qps = Vec::new();
        let mut bringing = Vec::new();
        for index in 0..2u32 {
            let init = QpInit {
                qp_type: QpType::Rc,
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: None,
                caps: Default::default(),
                signal_all: true,
            };
            let mut qp = pd.create_qp(&init).expect("a queue pair");
            let words = [qp_group::VERSION, 64, 256].map(u32::to_le_bytes);
            let payload = match index {
                0 => words.concat(),
                _ => Vec::new(),
            };
            let tuning = ConnectionParams {
                access: Access::ALL,
                ..ConnectionParams::default()
            };
            let started = BringUp::start(device.info(), &mut *qp, tuning, index, payload);
            bringing.push(started.expect("starts"));
            let sge = [memory.sge(MEMORY / 2, 2048)];
            let receive = RecvWr {
                wr_id: 0,
                sges: &sge,
            };
            let _ = qp.post_recv(&vec![receive; RECEIVES]);
            qps.push(qp);
        }
        Self {
            peer: harness.daemon.peer_up(None),
            qps,
            bringing,
            cq,
            memory,
            numbers: Vec::new(),
            tokens: Vec::new(),
            instance: 1,
        }
    }

    fn say(&self, harness: &mut DaemonHarness, message: &Message) {
        harness.daemon.peer_message(self.peer, &message.encode());
    }

    fn greet(&mut self, harness: &mut DaemonHarness) {
        let hello = Message::Hello {
            version: VERSION,
            oldest: VERSION_OLDEST,
            address: THERE,
            life: 5,
            nonce: [0; 16],
            proof: [0; 32],
        };
        self.say(harness, &hello);
        let connects = |one: &mut Application| one.session.connect(SocketAddr::new(THERE, 1));
        harness
            .applications
            .values_mut()
            .map(connects)
            .for_each(drop);
        self.say(harness, &connect(0, PORT));
        self.hear(harness);
    }

    /// Handles the messages that it received. Connects its queue pairs as an honest daemon would.
    fn hear(&mut self, harness: &mut DaemonHarness) {
        harness.settle();
        for (_, message) in std::mem::take(&mut harness.said) {
            let message = Message::decode(&message).expect("a daemon's message");
            match message {
                Message::BringUp {
                    instance,
                    qp_role,
                    bytes,
                    between,
                } => {
                    let at = qp_role as usize;
                    self.instance = instance;
                    if between.from == USER {
                        let _ = self.bringing[at].input(&mut *self.qps[at], &bytes);
                        self.bring_up(harness, qp_role);
                    }
                }
                Message::Accept { offer, .. } => {
                    self.numbers.push(offer.number);
                }
                Message::Confirm { offer, .. } => {
                    self.numbers.push(offer.number);
                }
                Message::Connect { token, .. } => self.tokens.push(token),
                _ => {}
            }
        }
        harness.settle();
    }

    fn bring_up(&mut self, harness: &mut DaemonHarness, qp_role: QpRole) {
        let bytes = self.bringing[qp_role as usize].output();
        if bytes.is_empty() {
            return;
        }
        let between = DomainPair {
            from: OTHER,
            to: USER,
        };
        let message = Message::BringUp {
            between,
            instance: self.instance,
            qp_role,
            bytes,
        };
        self.say(harness, &message);
    }

    fn number(&self, input: &mut Input<'_>) -> Vqpn {
        let index = usize::from(input.byte());
        match self.numbers.get(index % (self.numbers.len() + 1)) {
            Some(number) => *number,
            None => Vqpn::from_bits(input.u16().into()),
        }
    }

    fn act(&mut self, input: &mut Input<'_>, harness: &mut DaemonHarness) {
        match input.byte() % 12 {
            0 => {
                let len = usize::from(input.byte());
                let message = input.bytes(len).to_vec();
                harness.daemon.peer_message(self.peer, &message);
            }
            1 | 2 => {
                let message = self.message(input);
                self.say(harness, &message);
            }
            3..7 => self.frame(input),
            7 | 8 => harness.settle(),
            9 => self.hear(harness),
            _ => exchange(input, harness),
        }
        let mut completions = [Completion::default(); 64];
        while self.cq.poll(&mut completions).is_ok_and(|count| count > 0) {}
    }

    fn post(&mut self, qp_role: usize, op: SendOp, len: usize) {
        let sge = [self.memory.sge(0, len.min(MEMORY / 2) as u32)];
        let wr = SendWr {
            wr_id: 0,
            op,
            payload: Payload::Gather(&sge),
            flags: SendFlags::SIGNALED,
        };
        let _ = self.qps[qp_role].post_send(&[wr]);
    }

    /// Sends a frame with a header of any kind. The header's numbers are mostly plausible.
    fn frame(&mut self, input: &mut Input<'_>) {
        let to = self.number(input);
        let kinds = [
            Kind::Tell,
            Kind::Data,
            Kind::Announce,
            Kind::Slow,
            Kind::Fetched,
            Kind::Window,
            Kind::End,
            Kind::Reset,
            Kind::Closed,
            Kind::Export,
            Kind::Revoke,
            Kind::Revoked,
            Kind::Atomic,
            Kind::Answer,
        ];
        let kind = input.pick(&kinds);
        let word = |input: &mut Input<'_>| match input.byte() % 4 {
            0 => input.u64(),
            1 => u64::from(input.u16()),
            _ => u64::from(input.byte()),
        };
        let header = Header {
            code: input.byte(),
            is_short: input.byte() % 2 == 1,
            len: u32::from(input.byte()),
            promised: 64 + u64::from(input.byte()),
            at: word(input),
            window: word(input),
            ..Header::of(kind)
        };
        let behind = match input.byte() % 4 {
            0 => usize::from(input.byte()),
            _ => match kind {
                Kind::Data => header.len as usize,
                Kind::Announce | Kind::Export => 16,
                Kind::Atomic if header.len == 32 => 32,
                _ => 0,
            },
        };
        let view = headworks_ring::view_of(&self.memory, 0);
        let _ = view.write(0, &header.emit());
        if matches!(kind, Kind::Announce | Kind::Export) {
            // Announces memory that exists, and some behind it.
            let own = Remote {
                addr: self.memory.addr(0),
                rkey: self.memory.rkey(),
                len: 0,
            };
            let _ = view.write(HEADER, &own.emit_memory());
        }
        let qp_role = usize::from(input.byte().is_multiple_of(8));
        self.post(qp_role, SendOp::SendImm(to.bits()), HEADER + behind);
    }

    fn message(&self, input: &mut Input<'_>) -> Message {
        let domain = input.pick(&[USER, DomainId(2), OTHER]);
        let between = DomainPair {
            from: OTHER,
            to: domain,
        };
        let number = self.number(input);
        let token = match self
            .tokens
            .get(usize::from(input.byte()) % (self.tokens.len() + 1))
        {
            Some(token) => *token,
            None => input.byte().into(),
        };
        let instance = self.instance.wrapping_add(u32::from(input.byte() % 4)) - 1;
        let offer = Offer {
            number: Vqpn::from_bits(input.byte().into()),
            window: 1 << (input.byte() % 32),
        };
        match input.byte() % 12 {
            0 => Message::QpGroupWanted {
                between,
                known: instance,
            },
            1 => Message::BringUp {
                between,
                instance,
                qp_role: input.pick(&[QpRole::Frames, QpRole::Bulk]),
                bytes: input.bytes(60).to_vec(),
            },
            2 => Message::QpGroupDown { between, instance },
            3..6 => connect(token, PORT + u16::from(input.byte() % 3)),
            6 | 7 => Message::Accept {
                token,
                domain: OTHER,
                offer,
                direct: None,
            },
            8 => Message::Refuse {
                token,
                why: Refusal::Limit,
            },
            9 | 10 => Message::Confirm {
                domain,
                number,
                offer,
                direct: None,
            },
            _ => self.about_pairs(input, token, (domain, number, offer)),
        }
    }

    /// Messages about direct connections, of which there are none: this daemon passes no files.
    fn about_pairs(
        &self,
        input: &mut Input<'_>,
        token: u32,
        (domain, number, offer): (DomainId, Vqpn, Offer),
    ) -> Message {
        let ends = PairEnds {
            from: number.bits().into(),
            to: token.into(),
        };
        let extent = Extent {
            slab: 0,
            len: 1024,
            offset: 1024,
        };
        let direct = Some(DirectOffer {
            session: token.into(),
            taken: TakenPlace {
                place: DirectPlace {
                    number: number.bits(),
                    block: extent,
                    ring: extent,
                },
                generation: 1,
            },
        });
        match input.byte() % 8 {
            1 => Message::DirectOver {
                ends,
                place: PlaceId {
                    number: number.bits(),
                    generation: 1,
                },
            },
            2 => Message::PairOver { ends },
            3 => Message::PairMemory { ends },
            4 => Message::Accept {
                token,
                domain: OTHER,
                offer,
                direct,
            },
            5 => Message::Confirm {
                domain,
                number,
                offer,
                direct,
            },
            _ => Message::Cancel { domain, number },
        }
    }
}

/// An application sends bytes on one of its connections, and receives some. The daemon announces long pieces to the hostile
/// daemon.
fn exchange(input: &mut Input<'_>, harness: &mut DaemonHarness) {
    let index = usize::from(input.byte());
    let len = usize::from(input.byte()) * 8;
    let all = harness.applications.values_mut();
    let all = all.filter(|one| !one.is_over && !one.is_broken);
    let mut connections = all.flat_map(|one| {
        let slabs = one.session.slabs().clone();
        let connections = one.connections.values_mut();
        connections.map(move |connection| (slabs.clone(), connection))
    });
    if let Some((slabs, connection)) = connections.nth(index % 2) {
        connection.refresh(&slabs);
        let _ = connection.sending.send(&vec![7; len]);
        let _ = connection.receiving.recv(&mut [0; 700]);
        let _ = connection.nudge();
    }
}

fn connect(token: u32, port: u16) -> Message {
    Message::Connect {
        token,
        domain: OTHER,
        from: SocketAddr::new(THERE, 99),
        port,
        direct: None,
    }
}

#[cfg(test)]
mod tests {
    use headworks_daemon::snapshot::Traffic;

    use super::*;

    /// If the greeting were refused, or the queue pairs not connected, nothing of the daemon would be tested.
    #[test]
    fn the_corpus_reaches_the_frames_of_the_receive_pool() {
        let target = crate::target("daemon_peer").expect("a target");
        let corpus = target.corpus().expect("a corpus");
        let (mut frames, mut reads, mut signals, mut announced) = (0, 0, 0, 0);
        let mut traffic = Traffic::default();
        for (_, input) in corpus {
            let snapshot = play(&input);
            for domain in snapshot.domains {
                for group in domain.groups {
                    frames += group.came;
                    reads += group.reads;
                    signals += group.signals.1;
                    announced += group.announced;
                }
                let all = domain.applications.iter();
                all.for_each(|one| traffic += one.traffic);
            }
        }
        assert!(frames > 0, "no frame arrived");
        assert!(reads > 0 && traffic.pooled > 0, "nothing was READ");
        assert!(signals > 1, "no signal has an effect");
        assert!(announced > 0, "nothing was announced that can be READ");
        assert!(traffic.received > traffic.pooled, "no bytes in line");
    }
}
