use headworks_ring::view_of_buffer;
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::Provider;

use super::*;

/// A software RNIC with the folder of its registry.
struct Host {
    device: Arc<dyn Device>,
    pd: Arc<dyn ProtectionDomain>,
    _folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open_at(folder.path().join("fabric")).unwrap();
        let device = SoftProvider::on(registry).open(&"soft:h0".parse().unwrap());
        let device = device.unwrap();
        Self {
            pd: device.alloc_pd().unwrap(),
            device,
            _folder: folder,
        }
    }

    fn sender(&self, copy_below: u64, staging: u64) -> Sender {
        let config = SenderConfig {
            copy_below,
            staging,
        };
        Sender::new(&*self.device, self.pd.clone(), &config, view_of_buffer).unwrap()
    }

    fn buffer(&self, len: usize) -> Arc<dyn Buffer> {
        self.device.alloc(&AllocRequest::of(len)).unwrap()
    }
}

/// The staging memory at the place of a copied payload.
fn staged(sender: &Sender, sent: &Sent) -> Vec<u8> {
    assert!(sent.is_copied);
    assert_eq!(sent.from.rkey, sender.region.rkey());
    let mut bytes = vec![0; sent.len as usize];
    let offset = (sent.from.addr - sender.region.addr(0)) as usize;
    sender.staging.read(offset, &mut bytes).unwrap();
    bytes
}

fn memory(buffer: &Arc<dyn Buffer>, range: Range<usize>) -> SendPayload<'_> {
    SendPayload::Memory { buffer, range }
}

#[test]
fn wrong_values_are_named_with_what_is_allowed() {
    let wrong = |copy_below, staging| {
        let config = SenderConfig {
            copy_below,
            staging,
        };
        config.check().unwrap_err().to_string()
    };
    assert_eq!(
        wrong((1 << 30) + 1, 1 << 30),
        "copy_below is 1073741825: 0 to 1073741824"
    );
    assert_eq!(
        wrong(131_072, 126_976),
        "staging is 126976: 131072 to 1073741824, a multiple of 4096"
    );
    assert_eq!(
        wrong(0, 5000),
        "staging is 5000: 4096 to 1073741824, a multiple of 4096"
    );
    assert_eq!(SenderConfig::default().check(), Ok(()));
    let host = Host::new();
    let config = SenderConfig {
        copy_below: 0,
        staging: 0,
    };
    let refused = Sender::new(&*host.device, host.pd.clone(), &config, view_of_buffer);
    assert!(matches!(refused, Err(SenderError::Config(_))));
}

#[test]
fn an_idle_sender_can_copy_the_longest_payload() {
    let host = Host::new();
    for copy_below in [
        1, 2, 4096, 4097, 4098, 100_000, 131_072, 200_000, 262_145, 262_146, 300_000, 1_000_000,
    ] {
        let least = SenderConfig {
            copy_below,
            staging: 0,
        }
        .staging_min();
        let mut sender = host.sender(copy_below, least);
        if copy_below > 1 {
            let bytes = vec![7; copy_below as usize - 1];
            let sent = sender.send(SendPayload::Bytes(&bytes)).unwrap();
            assert!(staged(&sender, &sent) == bytes, "{copy_below}");
        }
        let bytes = vec![7; copy_below as usize];
        let refused = sender.send(SendPayload::Bytes(&bytes));
        assert!(
            matches!(refused, Err(SendError::NotCopied { .. })),
            "{refused:?}"
        );
        let buffer = host.buffer(bytes.len());
        let sent = sender.send(memory(&buffer, 0..bytes.len())).unwrap();
        assert!(!sent.is_copied);
    }
}

#[test]
fn short_payloads_are_copied_and_long_ones_are_held() {
    let host = Host::new();
    let mut sender = host.sender(100, 8192);
    let buffer = host.buffer(1000);
    let view = view_of_buffer(&buffer);
    let bytes: Vec<u8> = (0..=249).cycle().take(1000).collect();
    view.write(0, &bytes).unwrap();
    drop(view);
    let short = sender.send(memory(&buffer, 501..600)).unwrap();
    assert_eq!(staged(&sender, &short), bytes[501..600]);
    assert_eq!(Arc::strong_count(&buffer), 1, "nothing holds the buffer");
    let long = sender.send(memory(&buffer, 500..600)).unwrap();
    assert!(!long.is_copied);
    assert_eq!((long.len, sender.in_flight()), (100, 2));
    assert_eq!(long.from.addr, buffer.as_ptr() as u64 + 500);
    assert!(Arc::strong_count(&buffer) > 1, "the sender holds it");
    assert_ne!(long.from.rkey, short.from.rkey);
    let expected = SenderCounters {
        copied: 1,
        copied_bytes: 99,
        registered: 1,
        registered_bytes: 100,
        refused: 0,
    };
    assert_eq!(sender.counters(), expected);
    assert_eq!(sender.done(long.ticket), Ok(()));
    assert_eq!(Arc::strong_count(&buffer), 1, "the sender let it go");
    assert_eq!(sender.done(short.ticket), Ok(()));
    assert_eq!((sender.in_flight(), sender.staging_free()), (0, 8192));
}

#[test]
fn a_full_sender_refuses_and_goes_on_after_done() {
    let host = Host::new();
    let mut sender = host.sender(5000, 16_384);
    let [one, two] = [[1; 4999], [2; 4999]].map(|bytes| {
        let sent = sender.send(SendPayload::Bytes(&bytes)).unwrap();
        (sent, bytes)
    });
    let refused = sender.send(SendPayload::Bytes(&[3])).unwrap_err();
    assert!(refused.would_block());
    assert_eq!(
        refused.to_string(),
        "the staging memory has no 1 bytes in one piece (0 are free): send again after a transfer is done, or \
         raise staging"
    );
    assert_eq!(
        (sender.counters().refused, sender.counters().copied),
        (1, 2)
    );
    for (sent, bytes) in [&one, &two] {
        assert_eq!(staged(&sender, sent), bytes, "nothing is lost");
    }
    sender.done(one.0.ticket).unwrap();
    let again = sender.send(SendPayload::Bytes(&[3])).unwrap();
    assert_eq!(again.from, one.0.from, "its memory is used again");
    assert_eq!(staged(&sender, &two.0), two.1);
}

#[test]
fn registered_transfers_are_limited() {
    let host = Host::new();
    let mut sender = host.sender(0, 4096);
    let buffer = host.buffer(64);
    let mut sent = Vec::new();
    for _ in 0..REGISTERED_MAX {
        sent.push(sender.send(memory(&buffer, 0..64)).unwrap());
    }
    let refused = sender.send(memory(&buffer, 0..64)).unwrap_err();
    assert!(
        matches!(refused, SendError::RegisteredFull) && refused.would_block(),
        "{refused}"
    );
    assert_eq!(sender.done(sent[500].ticket), Ok(()));
    let again = sender.send(memory(&buffer, 0..64)).unwrap();
    assert!(sent.iter().all(|one| one.ticket != again.ticket));
    drop(sender);
    assert_eq!(Arc::strong_count(&buffer), 1, "dropping it ends all");
}

#[test]
fn tickets_of_others_and_of_the_past_have_no_effect() {
    let host = Host::new();
    let [mut sender, mut other] = [(); 2].map(|()| host.sender(100, 8192));
    let one = sender.send(SendPayload::Bytes(&[1; 9])).unwrap();
    let foreign = other.send(SendPayload::Bytes(&[2; 9])).unwrap();
    assert_eq!(sender.done(foreign.ticket), Err(UnknownTicket));
    assert_eq!(sender.done(one.ticket), Ok(()));
    assert_eq!(sender.done(one.ticket), Err(UnknownTicket), "repeated");
    // The next transfer takes the record of the one before.
    let next = sender.send(SendPayload::Bytes(&[3; 9])).unwrap();
    assert_eq!(next.ticket.at, one.ticket.at);
    assert_eq!(sender.done(one.ticket), Err(UnknownTicket), "stale");
    assert_eq!((sender.in_flight(), sender.staging_free()), (1, 4096));
    assert_eq!(staged(&sender, &next), [3; 9]);
    assert_eq!(other.in_flight(), 1);
}

#[test]
fn payloads_that_do_not_exist_are_refused() {
    let host = Host::new();
    let mut sender = host.sender(100, 8192);
    let buffer = host.buffer(1000);
    let backwards = Range { start: 9, end: 3 };
    for range in [
        0..1001,
        1001..1002,
        900..1001,
        usize::MAX..usize::MAX,
        backwards,
    ] {
        let refused = sender.send(memory(&buffer, range.clone()));
        assert!(
            matches!(refused, Err(SendError::Range { .. })),
            "{range:?}: {refused:?}"
        );
    }
    let empty = [SendPayload::Bytes(&[]), memory(&buffer, 7..7)];
    for payload in empty {
        let refused = sender.send(payload);
        assert!(matches!(refused, Err(SendError::Empty)), "{refused:?}");
    }
    assert_eq!((sender.in_flight(), sender.staging_free()), (0, 8192));
}

#[test]
fn a_view_of_other_memory_is_refused() {
    let host = Host::new();
    let part: BufferView = |buffer| view_of_buffer(buffer).part(0, 4096).unwrap();
    let config = SenderConfig {
        copy_below: 10,
        staging: 8192,
    };
    let refused = Sender::new(&*host.device, host.pd.clone(), &config, part);
    assert!(matches!(
        refused,
        Err(SenderError::View {
            got: 4096,
            wanted: 8192
        })
    ));
}
