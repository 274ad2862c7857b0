//! Payloads of a [`Sender`] are READ by a receiver: copied and registered ones, in any order, and too late.

use headworks_ring::view_of_buffer;
use headworks_rxpool::sender::{
    SendError, SendPayload, Sender, SenderConfig, SenderCounters, Sent, Ticket, UnknownTicket,
};
use headworks_verbs::Buffer;
use proptest::sample::Index;

use super::*;

const COPY_BELOW: usize = 20_000;
/// Bytes of staging memory.
const STAGING: u64 = 128 << 10;
/// Bytes of a buffer that payloads are sent from.
const BUFFER: usize = 100_000;

impl World {
    fn sender(&self) -> Sender {
        let config = SenderConfig {
            copy_below: COPY_BELOW as u64,
            staging: STAGING,
        };
        let host = &self.sender;
        Sender::new(&*host.device, host.pd.clone(), &config, view_of_buffer).unwrap()
    }

    fn buffer(&self, len: usize) -> Arc<dyn Buffer> {
        self.sender.device.alloc(&AllocRequest::of(len)).unwrap()
    }

    /// READs a payload, and returns its bytes or the status of the READ that failed.
    fn read(&mut self, link: LinkId, app: AppId, sent: &Sent) -> Result<Vec<u8>, Status> {
        let transfer = self.announce_from(link, app, sent.from, sent.len);
        let mut bytes = Vec::new();
        let mut outcome = None;
        while outcome.is_none() {
            let events = self.settle();
            assert!(!events.is_empty(), "the transfer stands still");
            for event in events {
                match event {
                    ReceiverEvent::Arrived { held, len, .. } => {
                        bytes.extend(self.bytes(held, len));
                        self.release(app, held);
                    }
                    ReceiverEvent::Done(one) if one == transfer => outcome = Some(Ok(())),
                    ReceiverEvent::Failed {
                        why: TransferError::Read(status),
                        ..
                    } => outcome = Some(Err(status)),
                    // This application releases what arrives after the pool has become short.
                    ReceiverEvent::Copy(_) | ReceiverEvent::Overdue(_) | ReceiverEvent::Signal => {}
                    event => panic!("{event:?}"),
                }
            }
        }
        outcome.unwrap().map(|()| bytes)
    }
}

/// A payload in flight, as the oracle knows it.
struct Known {
    ticket: Ticket,
    bytes: Vec<u8>,
    /// The buffer that was registered; `None` if the bytes were copied.
    registered: Option<usize>,
}

#[derive(Clone, Debug)]
enum Action {
    /// Sends a slice of this many bytes.
    Bytes(usize),
    /// Sends bytes of a buffer: which buffer, from where, how many.
    Memory(Index, usize, usize),
    /// Ends a transfer of those that the receiver has READ.
    Done(Index),
    /// Ends a transfer that was done before.
    DoneAgain(Index),
    /// Lets the receiver work until nothing happens any more.
    Read,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => prop_oneof![1..9000usize, 9000..COPY_BELOW + 100].prop_map(Action::Bytes),
        3 => (any::<Index>(), 0..BUFFER, 1..BUFFER)
            .prop_map(|(which, from, len)| Action::Memory(which, from, len)),
        1 => (any::<Index>(), 0..BUFFER, 1..9000usize)
            .prop_map(|(which, from, len)| Action::Memory(which, from, len)),
        4 => any::<Index>().prop_map(Action::Done),
        1 => any::<Index>().prop_map(Action::DoneAgain),
        2 => Just(Action::Read),
    ]
}

/// A sender and a receiver beside a plain list of what is in flight.
struct Checked {
    world: World,
    sender: Sender,
    link: LinkId,
    app: AppId,
    buffers: Vec<Arc<dyn Buffer>>,
    /// Payloads that were not READ completely, with the number of bytes that arrived.
    unread: BTreeMap<TransferId, (Known, usize)>,
    read: Vec<Known>,
    done: Vec<Ticket>,
    expected: SenderCounters,
    /// Bytes differ between payloads.
    fill: u8,
}

impl Checked {
    fn new() -> Self {
        let mut world = World::new(&config());
        Self {
            sender: world.sender(),
            link: world.link(),
            app: world.receiver.add_app(LIMITS),
            buffers: (0..3).map(|_| world.buffer(BUFFER)).collect(),
            world,
            unread: BTreeMap::new(),
            read: Vec::new(),
            done: Vec::new(),
            expected: SenderCounters::default(),
            fill: 0,
        }
    }

    fn pattern(&mut self, len: usize) -> Vec<u8> {
        self.fill = self.fill.wrapping_add(1);
        (0..len).map(|at| (at % 251) as u8 ^ self.fill).collect()
    }

    fn in_flight(&self) -> impl Iterator<Item = &Known> {
        let unread = self.unread.values().map(|(known, _)| known);
        unread.chain(&self.read)
    }

    /// Bytes of staging memory in use.
    fn staged(&self) -> u64 {
        let copied = self.in_flight().filter(|known| known.registered.is_none());
        let units = copied.map(|known| units_of(known.bytes.len() as u64));
        units.sum::<u64>() * u64::from(UNIT)
    }

    /// Compares an outcome of `send` with the oracle's, and announces the payload.
    fn sent(
        &mut self,
        sent: Result<Sent, SendError>,
        bytes: Vec<u8>,
        buffer: Option<usize>,
    ) -> Result<(), TestCaseError> {
        let is_copied = bytes.len() < COPY_BELOW;
        let of = &mut self.expected;
        match sent {
            Ok(sent) => {
                prop_assert_eq!(sent.is_copied, is_copied);
                prop_assert_eq!(sent.len, bytes.len() as u64);
                if is_copied {
                    of.copied += 1;
                    of.copied_bytes += sent.len;
                } else {
                    of.registered += 1;
                    of.registered_bytes += sent.len;
                }
                let known = Known {
                    ticket: sent.ticket,
                    bytes,
                    registered: buffer.filter(|_| !is_copied),
                };
                let transfer = self
                    .world
                    .announce_from(self.link, self.app, sent.from, sent.len);
                self.unread.insert(transfer, (known, 0));
            }
            Err(SendError::NotCopied { .. }) => {
                prop_assert!(!is_copied && buffer.is_none());
            }
            Err(SendError::StagingFull { .. }) => {
                of.refused += 1;
                prop_assert!(is_copied);
                // At worst there is one unit in use in each piece of 8 units, the longest that a payload needs.
                prop_assert!(self.staged() >= STAGING / 8, "{} are used", self.staged());
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), TestCaseError> {
        match action {
            Action::Bytes(len) => {
                let mut bytes = self.pattern(len);
                let sent = self.sender.send(SendPayload::Bytes(&bytes));
                let expected = bytes.clone();
                // The caller uses its memory again at once.
                bytes.fill(0xee);
                self.sent(sent, expected, None)?;
            }
            Action::Memory(which, from, len) => {
                let at = which.index(self.buffers.len());
                let range = from..BUFFER.min(from + len);
                let view = view_of_buffer(&self.buffers[at]);
                let is_shared = self.in_flight().any(|known| known.registered == Some(at));
                if !is_shared {
                    let bytes = self.pattern(range.len());
                    view.write(range.start, &bytes).unwrap();
                }
                let mut bytes = vec![0; range.len()];
                view.read(range.start, &mut bytes).unwrap();
                let is_copied = bytes.len() < COPY_BELOW;
                let buffer = &self.buffers[at];
                let sent = self.sender.send(SendPayload::Memory {
                    buffer,
                    range: range.clone(),
                });
                if is_copied && !is_shared {
                    view.write(range.start, &vec![0xee; range.len()]).unwrap();
                }
                self.sent(sent, bytes, Some(at))?;
            }
            Action::Done(which) if !self.read.is_empty() => {
                let known = self.read.swap_remove(which.index(self.read.len()));
                prop_assert_eq!(self.sender.done(known.ticket), Ok(()));
                self.done.push(known.ticket);
            }
            Action::DoneAgain(which) if !self.done.is_empty() => {
                let ticket = self.done[which.index(self.done.len())];
                prop_assert_eq!(self.sender.done(ticket), Err(UnknownTicket));
            }
            Action::Read => self.receive()?,
            Action::Done(_) | Action::DoneAgain(_) => {}
        }
        let count = self.in_flight().count();
        prop_assert_eq!(self.sender.in_flight(), count);
        prop_assert_eq!(self.sender.staging_free(), STAGING - self.staged());
        prop_assert_eq!(self.sender.counters(), self.expected);
        for (at, buffer) in self.buffers.iter().enumerate() {
            let held = self.in_flight().any(|known| known.registered == Some(at));
            prop_assert_eq!(Arc::strong_count(buffer) > 1, held, "buffer {}", at);
        }
        Ok(())
    }

    /// READs everything that was announced, and compares the bytes.
    fn receive(&mut self) -> Result<(), TestCaseError> {
        let mut quiet = 0;
        while !self.unread.is_empty() {
            quiet = if self.world.is_busy() { 0 } else { quiet + 1 };
            prop_assert!(quiet < 1000, "{} transfers stand still", self.unread.len());
            while let Some(event) = self.world.receiver.event() {
                match event {
                    ReceiverEvent::Arrived {
                        transfer,
                        at,
                        held,
                        len,
                    } => {
                        let bytes = self.world.bytes(held, len);
                        self.world.release(self.app, held);
                        let (known, arrived) = self.unread.get_mut(&transfer).unwrap();
                        let range = at as usize..at as usize + len as usize;
                        prop_assert!(bytes == known.bytes[range], "wrong bytes");
                        *arrived += len as usize;
                    }
                    ReceiverEvent::Done(transfer) => {
                        let (known, arrived) = self.unread.remove(&transfer).unwrap();
                        prop_assert_eq!(arrived, known.bytes.len());
                        self.read.push(known);
                    }
                    ReceiverEvent::Failed { why, .. } => prop_assert!(false, "{}", why),
                    ReceiverEvent::Copy(_) | ReceiverEvent::Overdue(_) | ReceiverEvent::Signal => {}
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Each payload arrives as it was when it was sent, although its memory is used again. A sender whose transfers are
    /// done holds nothing.
    #[test]
    fn payloads_arrive_as_they_were_sent(actions in proptest::collection::vec(action(), 1..80)) {
        let mut checked = Checked::new();
        for action in actions {
            checked.act(action)?;
        }
        checked.receive()?;
        for known in std::mem::take(&mut checked.read) {
            prop_assert_eq!(checked.sender.done(known.ticket), Ok(()));
        }
        prop_assert_eq!(checked.sender.in_flight(), 0);
        prop_assert_eq!(checked.sender.staging_free(), STAGING);
        for buffer in &checked.buffers {
            prop_assert_eq!(Arc::strong_count(buffer), 1);
        }
        checked.world.assert_empty();
    }
}

#[test]
fn a_read_of_a_registered_payload_fails_after_done() {
    let mut world = World::new(&config());
    let mut sender = world.sender();
    let (link, app) = (world.link(), world.receiver.add_app(LIMITS));
    let buffer = world.buffer(BUFFER);
    view_of_buffer(&buffer).write(0, &[5; BUFFER]).unwrap();
    let payload = SendPayload::Memory {
        buffer: &buffer,
        range: 1..BUFFER,
    };
    let first = sender.send(payload.clone()).unwrap();
    let second = sender.send(payload).unwrap();
    let expected = vec![5; BUFFER - 1];
    assert_eq!(world.read(link, app, &first), Ok(expected.clone()));
    sender.done(first.ticket).unwrap();
    // The other registration of the buffer has a key of its own.
    assert_eq!(world.read(link, app, &second), Ok(expected));
    assert_eq!(
        world.read(link, app, &first),
        Err(Status::RemoteAccess),
        "its key is invalid"
    );
    // The memory may be freed, and a late READ is still refused.
    sender.done(second.ticket).unwrap();
    assert_eq!(Arc::strong_count(&buffer), 1);
    drop(buffer);
    let link = world.link();
    let late = world.read(link, app, &second);
    assert_eq!(late, Err(Status::RemoteAccess));
    world.assert_empty();
}

#[test]
fn staging_memory_is_used_again_and_is_closed_with_its_sender() {
    let mut world = World::new(&config());
    let mut sender = world.sender();
    let (link, app) = (world.link(), world.receiver.add_app(LIMITS));
    let first = sender.send(SendPayload::Bytes(&[1; 9000])).unwrap();
    assert_eq!(world.read(link, app, &first), Ok(vec![1; 9000]));
    sender.done(first.ticket).unwrap();
    let second = sender.send(SendPayload::Bytes(&[2; 9000])).unwrap();
    assert_eq!(second.from, first.from, "the same memory");
    // A late READ gets the next payload's bytes, as the documentation warns.
    for sent in [first, second] {
        assert_eq!(world.read(link, app, &sent), Ok(vec![2; 9000]));
    }
    drop(sender);
    assert_eq!(
        world.read(link, app, &second),
        Err(Status::RemoteAccess),
        "its key is invalid"
    );
    world.assert_empty();
}
