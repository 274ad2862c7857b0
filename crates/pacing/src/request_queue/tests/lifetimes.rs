//! Follows requests from the post to the completion and compares the queue with a plain model.

use proptest::sample::select;

use super::*;

/// An event in the life of a queue.
#[derive(Clone, Debug)]
enum Event {
    /// The program posts a request; it may be made to wait although it need not.
    Comes { request: Request, waits: bool },
    /// This many slices are posted.
    Pump(usize),
    /// The oldest request that the device has completes, successfully or with this status.
    Lands(Option<Status>),
    /// A waiting request is flushed after a failure.
    Flushes,
    /// The program takes a completion.
    Takes,
}

fn event() -> impl Strategy<Value = Event> {
    let failures = [
        Status::RemoteAccess,
        Status::LocalProtection,
        Status::RetryExceeded,
        Status::Fatal,
    ];
    let failure = select(failures.to_vec());
    prop_oneof![
        4 => (request(), any::<bool>()).prop_map(|(request, waits)| Event::Comes { request, waits }),
        4 => (1..6_usize).prop_map(Event::Pump),
        7 => Just(Event::Lands(None)),
        1 => failure.prop_map(|status| Event::Lands(Some(status))),
        2 => Just(Event::Flushes),
        3 => Just(Event::Takes),
    ]
}

/// A queue, the device below it, and the expected outcome of every request.
#[derive(Default)]
struct World {
    queue: RequestQueue,
    requests: Vec<Request>,
    /// Index of the first request whose last slice was not posted.
    next: usize,
    /// Slices that the device has: the index of the request, and whether it is its last slice.
    device: VecDeque<(usize, bool)>,
    has_failed: bool,
    /// Requests that are over, with their statuses.
    over: Vec<(usize, Status)>,
    told: VecDeque<ProgramCompletion>,
    told_all: Vec<Completion>,
    retired: u32,
}

const CUT: SliceRule = SliceRule {
    slice: 64,
    with_imm: true,
};

fn qpn() -> Qpn {
    Qpn::new(77).expect("24 bits")
}

impl World {
    fn happens(&mut self, event: Event) {
        match event {
            Event::Comes { request, waits } => {
                let is_cut =
                    request.payload.is_ok() && slices::is_cut(&request.op, request.len(), CUT);
                if self.queue.is_waiting() || is_cut || waits {
                    self.queue.wait(&request.wr(), request.is_signaled);
                } else {
                    self.queue.fly(request.flying());
                    self.device.push_back((self.requests.len(), true));
                    self.next += 1;
                }
                self.requests.push(request);
            }
            Event::Pump(count) if !self.has_failed => self.pump(count),
            Event::Lands(status) => self.lands(status),
            Event::Flushes if self.has_failed => self.flushes(),
            Event::Takes => {
                if let Some(told) = self.told.pop_front() {
                    self.queue.retire(told.retires);
                    self.retired += told.retires;
                }
            }
            Event::Pump(_) | Event::Flushes => {}
        }
        let outstanding = self.requests.len() as u32 - self.retired;
        assert_eq!(self.queue.counts().0, outstanding);
        assert_eq!(self.queue.flying(), self.device.len());
        let reads = |(at, _): &&(usize, bool)| matches!(self.requests[*at].op, SendOp::Read(_));
        let reads = self.device.iter().filter(reads).count();
        assert_eq!(self.queue.reads() as usize, reads);
    }

    fn pump(&mut self, count: usize) {
        let (mut ahead, mut scratch) = (PlanPosition::default(), (Vec::new(), Vec::new()));
        for _ in 0..count {
            let planned = self.queue.plan(&mut ahead, CUT, kind, &mut scratch);
            let Some(planned) = planned else {
                return;
            };
            let is_last = planned.flying.is_last;
            self.device.push_back((self.next, is_last));
            self.next += usize::from(is_last);
            self.queue.fly_first(planned.flying);
            // Planning starts anew after each doorbell.
            ahead = PlanPosition::default();
        }
    }

    fn lands(&mut self, status: Option<Status>) {
        let inner = |status| Completion {
            wr_id: 1,
            status,
            qpn: qpn(),
            byte_len: 5,
            ..Completion::default()
        };
        let Some((at, is_last)) = self.device.pop_front() else {
            assert_eq!(self.queue.land(&inner(Status::Success)).map(|_| ()), None);
            return;
        };
        let status = match (self.has_failed, status) {
            (true, _) => Status::Flushed,
            (false, Some(status)) => status,
            (false, None) => Status::Success,
        };
        self.has_failed |= status != Status::Success;
        let was_over = self.over.last().is_some_and(|(over, _)| *over == at);
        let request = &self.requests[at];
        let is_told = match status {
            _ if was_over => false,
            Status::Success => is_last && request.is_signaled,
            _ => true,
        };
        if !was_over && (is_last || status != Status::Success) {
            self.over.push((at, status));
        }
        // The usual completion takes the short path if it may.
        let is_plain = status == Status::Success && self.told.is_empty();
        if is_plain && let Some((flying, tells)) = self.queue.land_plainly() {
            assert_eq!((tells, flying.wr_id), (is_told, request.wr_id));
            assert_eq!(flying.bytes, flying.total, "a slice is none of the usual");
            if tells {
                self.retired += self.over_untold() + 1;
                self.told_all.push(Completion {
                    wr_id: flying.wr_id,
                    opcode: flying.opcode,
                    byte_len: flying.total,
                    ..inner(status)
                });
            }
            return;
        }
        let (flying, told) = self.queue.land(&inner(status)).expect("it is flying");
        assert_eq!(flying.wr_id, self.requests[at].wr_id);
        assert_eq!(told.is_some(), is_told, "{status:?} of {at}");
        self.tells(told);
    }

    /// Number of requests over without a completion since the last that had one, not counting the last that
    /// is over.
    fn over_untold(&self) -> u32 {
        let is_told = |(at, status): &(usize, Status)| {
            *status != Status::Success || self.requests[*at].is_signaled
        };
        let before = &self.over[..self.over.len() - 1];
        before.iter().rev().take_while(|one| !is_told(one)).count() as u32
    }

    fn tells(&mut self, told: Option<ProgramCompletion>) {
        if let Some(told) = told {
            assert_eq!(told.retires, self.over_untold() + 1);
            self.told_all.push(told.completion);
            self.told.push_back(told);
        }
    }

    fn flushes(&mut self) {
        let was_waiting = self.queue.is_waiting() && self.device.is_empty();
        // The rest of a request that failed yields no completion.
        if self.over.last().is_some_and(|(at, _)| *at == self.next) && was_waiting {
            self.next += 1;
        }
        let told = self.queue.flush(qpn());
        let left = was_waiting && self.next < self.requests.len();
        assert_eq!(told.is_some(), left);
        if told.is_some() {
            self.over.push((self.next, Status::Flushed));
            self.next += 1;
        }
        self.tells(told);
    }

    /// Runs until everything has completed.
    fn ends(mut self) {
        let mut rounds = 0;
        while self.queue.counts() != (0, 0, 0) {
            for event in [
                Event::Pump(4),
                Event::Lands(None),
                Event::Flushes,
                Event::Takes,
            ] {
                self.happens(event);
            }
            rounds += 1;
            if rounds == 10_000 {
                // As in verbs, unsignaled requests stay outstanding until a later completion.
                break;
            }
            if self.queue.is_quiet() && self.told.is_empty() {
                break;
            }
        }
        assert!(rounds < 10_000, "it does not finish");
        let over: Vec<_> = self.over.iter().map(|(at, _)| *at).collect();
        assert!(
            over.into_iter().eq(0..self.requests.len()),
            "each once, in order"
        );
        let unasked = self.over.iter().rev();
        let unasked = unasked.take_while(|(at, status)| {
            *status == Status::Success && !self.requests[*at].is_signaled
        });
        assert_eq!(self.queue.outstanding() as usize, unasked.count());
        let told = self
            .over
            .iter()
            .filter(|(at, status)| *status != Status::Success || self.requests[*at].is_signaled);
        let expected: Vec<_> = told.collect();
        assert_eq!(self.told_all.len(), expected.len());
        for (found, (at, status)) in self.told_all.iter().zip(expected) {
            let request = &self.requests[*at];
            assert_eq!((found.wr_id, found.status), (request.wr_id, *status));
            assert_eq!(found.opcode, opcode(&request.op));
            assert_eq!(found.qpn, qpn());
            if *status == Status::Success && found.opcode == Opcode::Read {
                assert_eq!(u64::from(found.byte_len), request.len());
            }
        }
        if self.has_failed {
            let bad = |(_, status): &&(usize, Status)| *status != Status::Success;
            let mut bad = self.over.iter().filter(bad).map(|(_, status)| *status);
            assert_ne!(bad.next(), Some(Status::Flushed), "the first error wins");
            assert!(bad.all(|status| status == Status::Flushed));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_request_is_over_once_and_in_order(events in vec(event(), 1..80)) {
        let mut world = World::default();
        for event in events {
            world.happens(event);
        }
        world.ends();
    }
}

#[test]
fn a_queue_is_used_again_as_if_it_were_new() {
    let write = SendOp::Write(RemoteAddr::default());
    let request = |len| Request {
        wr_id: 9,
        op: write,
        payload: Ok(vec![Sge {
            addr: 0,
            len,
            lkey: 1,
        }]),
        flags: SendFlags::NONE,
        is_signaled: false,
    };
    let mut queue = RequestQueue::default();
    queue.wait(&request(200).wr(), false);
    let mut scratch = (Vec::new(), Vec::new());
    let planned = queue.plan(&mut PlanPosition::default(), CUT, kind, &mut scratch);
    queue.fly_first(planned.expect("it waits").flying);
    let failed = Completion {
        status: Status::Fatal,
        ..Completion::default()
    };
    assert!(queue.land(&failed).expect("it flies").1.is_some());
    queue.clear();
    assert!(queue.is_quiet() && queue.counts() == (0, 0, 0));
    // Neither the cut nor the failure of the earlier request remains.
    queue.wait(&request(65).wr(), true);
    let planned = queue.plan(&mut PlanPosition::default(), CUT, kind, &mut scratch);
    assert_eq!(planned.expect("it waits").flying.bytes, 64);
    assert_eq!(queue.flush(qpn()).map(|told| told.retires), Some(1));
}
