//! A sample as one line of JSON. Rates are present from the second sample on.

use headworks::inspect::{ContextSnapshot, QueuePairSnapshot, RegistrySnapshot};
use serde_json::{Value, json};

use super::counter_rates::{Rate, Rates};

pub(super) fn line(snapshot: &RegistrySnapshot, rates: Option<&Rates>) -> Value {
    let contexts: Vec<_> = snapshot
        .contexts
        .iter()
        .map(|c| context(c, rates))
        .collect();
    let unreadable: Vec<_> = snapshot
        .unreadable
        .iter()
        .map(|one| json!({"host": one.host, "pid": one.pid, "why": one.why}))
        .collect();
    json!({"contexts": contexts, "unreadable": unreadable})
}

fn context(context: &ContextSnapshot, rates: Option<&Rates>) -> Value {
    let pairs = context.queue_pairs.iter();
    let pairs: Vec<_> = pairs
        .map(|qp| queue_pair(qp, rates.map(|rates| rates.of(context, qp))))
        .collect();
    let cqs = context.completion_queues.iter().map(|cq| {
        json!({
            "id": cq.id, "depth": cq.depth, "channel": cq.has_channel, "armed": cq.armed,
            "polled": cq.counters.polled, "unpolled": cq.counters.unpolled,
            "events": cq.counters.events, "overrun": cq.counters.overrun,
        })
    });
    let srqs = context.shared_receive_queues.iter().map(|srq| {
        json!({
            "id": srq.id, "posted": srq.posted, "waiting": srq.waiting, "limit": srq.limit,
        })
    });
    json!({
        "host": context.host, "index": context.index, "pid": context.pid,
        "command": context.command, "uptime_s": context.age.as_secs_f64(),
        "queue_pairs": pairs,
        "completion_queues": cqs.collect::<Vec<_>>(),
        "shared_receive_queues": srqs.collect::<Vec<_>>(),
        "regions": {"count": context.regions.count, "bytes": context.regions.bytes},
        "segments": {"count": context.segments.count, "bytes": context.segments.bytes},
    })
}

fn queue_pair(qp: &QueuePairSnapshot, rate: Option<Rate>) -> Value {
    let counters = &qp.counters;
    let peer = qp.peer.as_ref().map(|peer| {
        let (host, pid) = match &peer.at {
            Some((host, pid)) => (Some(host), Some(pid)),
            None => (None, None),
        };
        json!({"qpn": peer.qpn, "host": host, "pid": pid})
    });
    json!({
        "qpn": qp.qpn, "type": format!("{:?}", qp.qp_type).to_uppercase(),
        "state": format!("{:?}", qp.state).to_uppercase(), "peer": peer,
        "send_cq": qp.send_cq, "recv_cq": qp.recv_cq, "srq": qp.srq,
        "sends_posted": counters.sends_posted, "sends_retired": counters.sends_retired,
        "sent_bytes": counters.sent_bytes, "read_bytes": counters.read_bytes,
        "receives_posted": counters.receives_posted,
        "receives_retired": counters.receives_retired,
        "received": counters.received, "received_bytes": counters.received_bytes,
        "rnr": counters.rnr, "errors": counters.errors, "flushed": counters.flushed,
        "events": counters.events,
        "requests_per_s": rate.map(|rate| rate.requests),
        "bytes_per_s": rate.map(|rate| rate.bytes),
    })
}
