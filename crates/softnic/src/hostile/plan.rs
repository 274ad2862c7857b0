//! Rules from faults as users write them (`headworks verbs --fault rnr=1%`).
//!
//! [`KINDS`] lists the faults. The syntax is that of [`FaultSpec`].

use headworks_faults::Rule;
use headworks_verbs::{Duration, Status};

pub use headworks_faults::{BadFault, FaultSpec};

use super::{FaultEvent, FaultPoint, PortFault, Rules, SoftFaults, Verdict, rules};

/// A kind of fault.
#[derive(Clone, Copy, Debug)]
pub struct FaultKind {
    /// Name, as in [`FaultSpec::kind`].
    pub name: &'static str,
    /// What happens.
    pub about: &'static str,
    effect: Effect,
}

/// What a fault does.
#[derive(Clone, Copy, Debug)]
enum Effect {
    /// The request ends with this status, and its queue pair goes to the error state.
    Fail(Status),
    /// A message finds no receive.
    NotReady,
    /// An unreliable message or datagram is lost.
    Lose,
    /// The request begins later.
    Delay,
    /// A poll finds nothing.
    Hide,
    /// A post finds no room.
    Full(FaultPoint),
    /// Bytes are placed in any order.
    Scatter,
    /// Something happens to the port.
    Port(PortFault),
    /// All faults of a hostile device.
    All,
}

const fn fails(name: &'static str, about: &'static str, status: Status) -> FaultKind {
    FaultKind {
        name,
        about,
        effect: Effect::Fail(status),
    }
}

const fn kind(name: &'static str, about: &'static str, effect: Effect) -> FaultKind {
    FaultKind {
        name,
        about,
        effect,
    }
}

/// All kinds of faults. Those that end a request are named after the status of its completion, `IBV_WC_*_ERR`.
pub const KINDS: &[FaultKind] = &[
    kind(
        "rnr",
        "a message finds no receive posted and is sent again after the receiver's RNR timer: at most 3 times, and never more often than rnr_retry allows",
        Effect::NotReady,
    ),
    kind(
        "loss",
        "a datagram, or a message of an unreliable connection, is lost",
        Effect::Lose,
    ),
    kind(
        "slow",
        "a request begins later: by us=N microseconds, 100 by default",
        Effect::Delay,
    ),
    kind(
        "late",
        "the next 1 to 6 polls of a completion queue find nothing; qp is the ordinal of the completion queue, and the other numbers count its polls",
        Effect::Hide,
    ),
    kind(
        "sq_full",
        "a send request finds the queue full (ENOMEM), while a signalled request is outstanding",
        Effect::Full(FaultPoint::Post),
    ),
    kind(
        "rq_full",
        "a receive finds the queue full (ENOMEM), while another receive is posted",
        Effect::Full(FaultPoint::PostReceive),
    ),
    kind(
        "scatter",
        "the bytes of a message are placed in any order, in several steps",
        Effect::Scatter,
    ),
    kind(
        "port_down",
        "the port goes down before request N + 1 with after=N, which the device reports (IBV_EVENT_PORT_ERR); from then on requests of connections end with IBV_WC_RETRY_EXC_ERR",
        Effect::Port(PortFault::Down),
    ),
    kind(
        "gid_change",
        "the port gets another GID before request N + 1 with after=N, which the device reports (IBV_EVENT_GID_CHANGE); queue pairs go on",
        Effect::Port(PortFault::NewGid),
    ),
    kind(
        "pkey_change",
        "the port gets another partition key before request N + 1 with after=N, which the device reports (IBV_EVENT_PKEY_CHANGE); queue pairs go on",
        Effect::Port(PortFault::NewPKey),
    ),
    kind(
        "hostile",
        "all faults above but loss and those of the port, as often as on a hostile soft device; no rate, no filters",
        Effect::All,
    ),
    fails(
        "loc_len",
        "a request ends with IBV_WC_LOC_LEN_ERR",
        Status::LocalLength,
    ),
    fails(
        "loc_qp_op",
        "a request ends with IBV_WC_LOC_QP_OP_ERR",
        Status::LocalQpOperation,
    ),
    fails(
        "loc_prot",
        "a request ends with IBV_WC_LOC_PROT_ERR",
        Status::LocalProtection,
    ),
    fails(
        "wr_flush",
        "a request ends with IBV_WC_WR_FLUSH_ERR",
        Status::Flushed,
    ),
    fails(
        "bad_resp",
        "a request ends with IBV_WC_BAD_RESP_ERR",
        Status::BadResponse,
    ),
    fails(
        "loc_access",
        "a request ends with IBV_WC_LOC_ACCESS_ERR",
        Status::LocalAccess,
    ),
    fails(
        "rem_inv_req",
        "a request ends with IBV_WC_REM_INV_REQ_ERR",
        Status::RemoteInvalidRequest,
    ),
    fails(
        "rem_access",
        "a request ends with IBV_WC_REM_ACCESS_ERR",
        Status::RemoteAccess,
    ),
    fails(
        "rem_op",
        "a request ends with IBV_WC_REM_OP_ERR",
        Status::RemoteOperation,
    ),
    fails(
        "retry_exc",
        "a request ends with IBV_WC_RETRY_EXC_ERR",
        Status::RetryExceeded,
    ),
    fails(
        "rnr_retry_exc",
        "a request ends with IBV_WC_RNR_RETRY_EXC_ERR",
        Status::RnrRetryExceeded,
    ),
    fails(
        "fatal",
        "a request ends with IBV_WC_FATAL_ERR",
        Status::Fatal,
    ),
];

/// How long a slow request waits by default, in microseconds.
const DELAY_US: u64 = 100;
/// Longest delay, in microseconds.
const DELAY_US_MAX: u64 = 10_000;
/// Largest number of polls that find nothing.
const POLLS: u32 = 6;
/// Number of steps in which bytes are placed.
const STEPS: u32 = 4;

/// Makes the rules of these faults, in order: of several that would occur at one point of a request, the first does.
///
/// # Errors
///
/// One line, if there is no such kind of fault, or if a filter does not apply to it.
pub fn rules_of(faults: &[FaultSpec], seed: u64) -> Result<Rules, BadFault> {
    let mut all = Rules::new(seed);
    for fault in faults {
        let kind = KINDS.iter().find(|kind| kind.name == fault.kind);
        let kind = kind.ok_or_else(|| {
            let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            let (name, known) = (&fault.kind, known.join(", "));
            BadFault(format!("there is no fault {name}: there are {known}"))
        })?;
        check(fault, kind.effect)?;
        all = match kind.effect {
            Effect::All => all.with_all(),
            effect => all.with(rule(fault.clone(), effect)),
        };
    }
    Ok(all)
}

/// Reads faults that are separated by semicolons, and makes their rules.
///
/// # Errors
///
/// As [`rules_of`], and if a text is no fault.
pub fn rules_of_text(faults: &str, seed: u64) -> Result<Rules, BadFault> {
    let faults: Result<Vec<_>, _> = faults.split(';').map(str::parse).collect();
    rules_of(&faults?, seed)
}

/// Refuses filters that have no meaning.
fn check(fault: &FaultSpec, effect: Effect) -> Result<(), BadFault> {
    let filters = &fault.filters;
    let bad = |why: &str| Err(BadFault(format!("{fault}: {why}")));
    if filters.us.is_some() && !matches!(effect, Effect::Delay) {
        return bad("us belongs to slow only");
    }
    if filters.us.is_some_and(|us| us > DELAY_US_MAX) {
        return bad("us is at most 10000");
    }
    if matches!(effect, Effect::Port(_)) {
        let is_once = fault.rate == headworks_faults::Rate::ALWAYS;
        if !is_once || filters.until.is_some() || filters.every.is_some() {
            return bad("it happens once: no rate, no until and no every");
        }
    }
    let of_requests = !matches!(effect, Effect::Hide | Effect::Full(FaultPoint::PostReceive));
    if !of_requests && (filters.op.is_some() || filters.bytes > 0) {
        return bad("op and bytes do not apply: it concerns no requests");
    }
    let plain = FaultSpec {
        kind: fault.kind.clone(),
        rate: headworks_faults::Rate::ALWAYS,
        filters: headworks_faults::Filters::default(),
    };
    if matches!(effect, Effect::All) && *fault != plain {
        return bad("it takes no rate and no filters");
    }
    Ok(())
}

fn rule(fault: FaultSpec, effect: Effect) -> impl Rule<SoftFaults> {
    rules::by(move |event, random| {
        let is_here = match effect {
            Effect::Fail(_) | Effect::Delay | Effect::Port(_) => event.point == FaultPoint::Begin,
            Effect::NotReady => event.point == FaultPoint::Receive,
            Effect::Lose => event.point == FaultPoint::Datagram,
            Effect::Hide => event.point == FaultPoint::Poll,
            Effect::Full(point) => event.point == point,
            Effect::Scatter => event.point == FaultPoint::Place && event.turn == 0,
            Effect::All => false,
        };
        if !is_here || !concerns(&fault, event) || !fault.rate.hits(random) {
            return None;
        }
        Some(match effect {
            Effect::Fail(status) => Verdict::Kill(status),
            Effect::NotReady | Effect::Lose | Effect::Full(_) => Verdict::Refuse,
            Effect::Delay => {
                let us = fault.filters.us.unwrap_or(DELAY_US);
                Verdict::WaitFor(Duration::from_micros(us))
            }
            Effect::Hide => Verdict::Wait(random.within_u32(1, POLLS)),
            Effect::Scatter => Verdict::Scatter(random.within_u32(1, STEPS)),
            Effect::Port(fault) => Verdict::Port(fault),
            Effect::All => Verdict::Pass,
        })
    })
}

fn concerns(fault: &FaultSpec, event: &FaultEvent) -> bool {
    let filters = &fault.filters;
    filters.match_request(event.ordinal, event.op, event.number, event.len)
}

#[cfg(test)]
mod tests {
    use headworks_verbs::{Opcode, Qpn};

    use super::*;

    fn of(texts: &[&str]) -> Result<Rules, String> {
        let faults: Result<Vec<FaultSpec>, _> = texts.iter().map(|text| text.parse()).collect();
        let rules = faults.and_then(|faults| rules_of(&faults, 7));
        rules.map_err(|error| error.to_string())
    }

    fn event(point: FaultPoint, ordinal: u64, number: u64) -> FaultEvent {
        FaultEvent {
            point,
            stream: ordinal,
            ordinal,
            qpn: Qpn::default(),
            op: Opcode::Send,
            wr_id: 0,
            len: 64,
            number,
            turn: 0,
        }
    }

    #[test]
    fn a_queue_pair_fails_after_so_many_requests() {
        let rules = of(&["wr_flush@qp=3,after=1000"]).unwrap();
        let judge = |qp, number| rules.judge(&event(FaultPoint::Begin, qp, number));
        assert_eq!(judge(3, 1000), Verdict::Pass);
        assert_eq!(judge(3, 1001), Verdict::Kill(Status::Flushed));
        assert_eq!(judge(2, 1001), Verdict::Pass);
        assert_eq!(rules.verdicts(), 1);
    }

    #[test]
    fn each_kind_has_its_effect_at_its_point_only() {
        for kind in KINDS {
            let rules = of(&[kind.name]).unwrap();
            let points = [
                FaultPoint::Post,
                FaultPoint::PostReceive,
                FaultPoint::Begin,
                FaultPoint::Receive,
                FaultPoint::Place,
                FaultPoint::Poll,
                FaultPoint::Datagram,
            ];
            let effects = points.map(|point| rules.judge(&event(point, 1, 1)) != Verdict::Pass);
            let count = effects.iter().filter(|has| **has).count();
            match kind.effect {
                Effect::All => assert!(rules.verdicts() > 0),
                // The rules are asked for it apart.
                Effect::Port(fault) => {
                    let mut occurred = Vec::new();
                    rules.port(&event(FaultPoint::Begin, 1, 1), |fault| {
                        occurred.push(fault);
                        true
                    });
                    assert_eq!((occurred, count, rules.verdicts()), (vec![fault], 0, 1));
                }
                _ => assert_eq!(count, 1, "{}", kind.name),
            }
            assert!(!kind.about.is_empty());
        }
    }

    #[test]
    fn the_first_of_several_faults_occurs() {
        let rules = of(&["fatal@after=5", "slow=50%", "rnr=10%"]).unwrap();
        let count = |point, what: fn(&Verdict) -> bool| {
            let all = (1..=2000).map(|number| rules.judge(&event(point, 1, number)));
            all.filter(what).count()
        };
        let failed = |verdict: &Verdict| *verdict == Verdict::Kill(Status::Fatal);
        assert_eq!(count(FaultPoint::Begin, failed), 1995);
        let slow = Verdict::WaitFor(Duration::from_micros(100));
        let first = (1..=5).map(|number| rules.judge(&event(FaultPoint::Begin, 1, number)));
        assert!(first.into_iter().any(|verdict| verdict == slow));
        let refused = |verdict: &Verdict| *verdict == Verdict::Refuse;
        assert!((120..300).contains(&count(FaultPoint::Receive, refused)));
    }

    #[test]
    fn a_fault_of_the_port_leaves_the_others() {
        let rules = of(&["gid_change@after=5", "wr_flush@after=5"]).unwrap();
        let killed = Verdict::Kill(Status::Flushed);
        assert_eq!(rules.judge(&event(FaultPoint::Begin, 1, 6)), killed);
    }

    #[test]
    fn the_digest_depends_on_the_seed_and_on_no_order() {
        let digest = |seed, numbers: &[u64]| {
            let rules = rules_of(&["slow=20%".parse().unwrap()], seed).unwrap();
            for number in numbers {
                rules.judge(&event(FaultPoint::Begin, 1, *number));
                rules.judge(&event(FaultPoint::Poll, 1, *number));
            }
            rules.digest()
        };
        let forward: Vec<u64> = (1..100).collect();
        let backward: Vec<u64> = (1..100).rev().collect();
        assert_eq!(digest(7, &forward), digest(7, &backward));
        assert_ne!(digest(7, &forward), digest(8, &forward));
        assert_ne!(digest(7, &forward), digest(7, &forward[..50]));
    }

    #[test]
    fn a_fault_that_there_is_not_is_refused_with_those_that_there_are() {
        for (text, says) in [
            ("what=1%", "there are rnr, loss"),
            ("rnr@us=5", "us belongs to slow"),
            ("slow@us=10001", "at most 10000"),
            ("late@op=send", "op and bytes"),
            ("rq_full@bytes=1", "op and bytes"),
            ("port_down=1%@after=3", "no rate"),
            ("gid_change@every=5", "no every"),
            ("hostile=1%", "no rate"),
            ("hostile@qp=1", "no filters"),
        ] {
            let error = of(&[text]).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
