//! Counts packets and bytes of every flow, in another process than the one that captures the packets.
//!
//! ```text
//! flow_meter [COUNT]                  run both sides, with COUNT generated packets (default 1,000,000)
//! flow_meter listen NAME              count the packets sent under NAME, print the heaviest flows
//! flow_meter send NAME [TRACE.pcap]   send the packets of a file that `tcpdump -w` wrote
//! ```
//!
//! Every packet becomes a record of 40 bytes, and every record a message of a ring. The sender writes records
//! in place, and the receiver reads them in place.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Instant;

use headworks::connect;
use headworks::net::{Interrupt, Listener, dial_wait};
use headworks::ring::{RingConfig, SendError, Sender};
use headworks_examples::pcap::{self, Flow, Packet};
use headworks_examples::program::{self, Failure, IdleWait, Outcome, no_deadline, short_deadline};

/// Bytes of a record: the packet's flow, 3 bytes of padding, time in ns, sequence number, size.
const RECORD: usize = 40;

/// 128 slots, one record each.
fn ring() -> RingConfig {
    RingConfig::fixed(128, RECORD)
}

fn main() -> ExitCode {
    program::run("flow_meter", |args, interrupt| match *args {
        [] => program::run_both("flow_meter", |name| {
            send(name, made_up(1_000_000), interrupt)
        }),
        ["listen", name] => listen(name, interrupt),
        ["send", name] => send(name, made_up(1_000_000), interrupt),
        ["send", name, trace] => send(name, pcap::read(trace)?.into_iter(), interrupt),
        [number] if program::is_number(number) => {
            let packets = made_up(program::count(number)?);
            program::run_both("flow_meter", |name| send(name, packets, interrupt))
        }
        _ => Err(Failure::BadInput(
            "usage: flow_meter [COUNT] | listen NAME | send NAME [TRACE.pcap]".to_owned(),
        )),
    })
}

/// The sending side.
fn send(name: &str, packets: impl Iterator<Item = Packet>, interrupt: &Interrupt) -> Outcome {
    let device = headworks::open("soft:tap")?;
    let fabric = headworks::registry()?;
    let mut line = dial_wait(&fabric, name, short_deadline(interrupt))?;
    let mut sender = connect::sender(&device, &ring(), &mut line, short_deadline(interrupt))?;
    let mut watch = IdleWait::new(interrupt);
    let (mut sequence, mut digest) = (0u64, 0u64);
    for packet in packets {
        watch.check()?;
        while !try_send(&mut sender, &packet, sequence)? {
            // The ring is full: the other side has not read enough yet.
            sender.step()?;
            watch.idle(&mut line)?;
        }
        sequence += 1;
        digest = digest.wrapping_add(hash(&packet.flow).wrapping_mul(packet.size_bytes));
    }
    // Send the records that batching still holds back.
    while !sender.flush()? {
        watch.idle(&mut line)?;
    }
    // The control stream carries the end, with the count and the digest of what went through the ring.
    line.send_control(&[sequence.to_le_bytes(), digest.to_le_bytes()].concat())?;
    match &*line.recv_control_wait(no_deadline(interrupt))? {
        b"right" => Ok(()),
        _ => Err(Failure::Failed(
            "the other side counted different packets".to_owned(),
        )),
    }
}

/// Sends one record, if there is room.
fn try_send(sender: &mut Sender, packet: &Packet, sequence: u64) -> Outcome<bool> {
    let mut record = match sender.try_reserve(RECORD) {
        Ok(place) => place,
        Err(SendError::Full) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    record[..13].copy_from_slice(&packet.flow);
    record[13..16].fill(0);
    record[16..24].copy_from_slice(&packet.time_ns.to_le_bytes());
    record[24..32].copy_from_slice(&sequence.to_le_bytes());
    record[32..40].copy_from_slice(&packet.size_bytes.to_le_bytes());
    record.commit()?;
    Ok(true)
}

/// The counting side.
fn listen(name: &str, interrupt: &Interrupt) -> Outcome {
    let listener = Listener::bind(&headworks::registry()?, name)?;
    let device = headworks::open("soft:meter")?;
    let mut line = listener.accept(no_deadline(interrupt))?;
    let mut receiver = connect::receiver(&device, &ring(), &mut line, short_deadline(interrupt))?;
    // There is only one sender, so the name can be freed.
    drop(listener);
    let began = Instant::now();
    let mut watch = IdleWait::new(interrupt);
    let mut flows: HashMap<Flow, [u64; 2]> = HashMap::new();
    let (mut packets, mut told) = (0, None::<[u64; 2]>);
    while told.is_none_or(|[total, _]| packets < total) {
        watch.check()?;
        if let Some(record) = receiver.try_recv()? {
            if word(&record, 24) != packets {
                return Err(Failure::Failed(format!("packet {packets} is missing")));
            }
            let mut flow = [0; 13];
            flow.copy_from_slice(&record[..13]);
            let [count, bytes] = flows.entry(flow).or_default();
            (*count, *bytes) = (*count + 1, *bytes + word(&record, 32));
            packets += 1;
            continue; // The record is dropped: its slot is free.
        }
        receiver.step()?;
        if let Some(said) = watch.idle(&mut line)? {
            told = Some([word(&said, 0), word(&said, 8)]);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    // The sender adds up its digest by packet, this side by flow. The sums are equal.
    let sum = |sum: u64, (flow, [_, bytes]): (&Flow, &[u64; 2])| {
        sum.wrapping_add(hash(flow).wrapping_mul(*bytes))
    };
    if told != Some([packets, flows.iter().fold(0, sum)]) {
        line.send_control(b"wrong")?;
        return Err(Failure::Failed(
            "the counted flows differ from those that were sent".to_owned(),
        ));
    }
    line.send_control(b"right")?;
    let rate = packets as f64 / seconds / 1e6;
    let count = flows.len();
    let mut text = format!("{packets} packets of {count} flows in {seconds:.2} s: {rate:.2} M/s\n");
    let mut heaviest: Vec<_> = flows.into_iter().collect();
    heaviest.sort_unstable_by_key(|(flow, [_, bytes])| (Reverse(*bytes), *flow));
    for (flow, [packets, bytes]) in heaviest.iter().take(5) {
        let flow = show(flow);
        text += &format!("{flow:<50} {packets:>9} packets {bytes:>12} bytes\n");
    }
    program::say(text.as_bytes())
}

fn show(flow: &Flow) -> String {
    let [a, b, c, d, e, f, g, h, p, q, r, s, protocol] = *flow;
    let ports = [u16::from_be_bytes([p, q]), u16::from_be_bytes([r, s])];
    let [from, to] = ports;
    format!("{a}.{b}.{c}.{d}:{from} > {e}.{f}.{g}.{h}:{to} protocol {protocol}")
}

/// The number at `at`; 0 if the message is too short.
fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// FNV-1a hash of a flow.
fn hash(flow: &Flow) -> u64 {
    flow.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Generated packets of 10,000 flows, a few of which have most of the packets.
fn made_up(count: u64) -> impl Iterator<Item = Packet> {
    let mut state = 1u64;
    (0..count).map(move |number| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let uniform = (state >> 33) as f64 / (1u64 << 31) as f64;
        let client = ((uniform.powi(4) * 10_000.0) as u32).to_be_bytes();
        let mut flow = [10, 0, 0, 0, 192, 0, 2, 1, 156, 64, 1, 187, 6];
        flow[2..4].copy_from_slice(&client[2..]);
        Packet {
            flow,
            time_ns: number * 2000,
            size_bytes: if state >> 20 & 1 == 0 { 52 } else { 1500 },
        }
    })
}
