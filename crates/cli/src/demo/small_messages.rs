//! Small messages through rings.

use std::time::Instant;

use anyhow::{Context, anyhow};
use headworks::net::{ControlStream, Interrupt, WaitLimit, clock};
use headworks::ring::{Receiver, RingConfig, SendError, Sender};
use headworks::{connect, net, registry};

use super::{Demo, LONGEST_S, PATIENCE, TimeLimit, check_interrupt, print_line, unique};

/// Bytes of a message.
pub(super) const LEN: usize = 64;
/// Messages sent one way; fewer if the device is too slow.
pub(super) const MANY: u64 = 20_000_000;
/// Messages sent there and back; fewer if the device is too slow.
pub(super) const TRIPS: u64 = 200_000;
/// Message that ends a sequence. It differs from every numbered message.
pub(super) const END: [u8; LEN] = [0xff; LEN];
/// Name of this part in errors.
const STEP: &str = "small messages";

/// Result of this part.
pub(super) struct SmallMessageResult {
    pub(super) one_way_ns: f64,
    /// Round trips that were measured.
    pub(super) trips: u64,
}

/// Returns message number `number`.
pub(super) fn message(number: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = (number + at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Returns the configuration of a ring for throughput.
pub(super) fn one_way() -> RingConfig {
    RingConfig::fixed(128, LEN)
}

/// Returns the configuration of a ring for latency: each message is sent and published at once.
pub(super) fn latency() -> RingConfig {
    RingConfig {
        transmit_every: Some(1),
        publish_every: Some(1),
        elastic: Some(false),
        ..RingConfig::fixed(128, LEN)
    }
}

/// Spins while waiting. From time to time it checks for Ctrl-C, if this process catches it, and that the
/// other process is still alive.
pub(super) struct SpinWait<'a> {
    control: &'a ControlStream,
    interrupt: Option<&'a Interrupt>,
    spins: u64,
}

impl<'a> SpinWait<'a> {
    pub(super) const fn on(control: &'a ControlStream, interrupt: Option<&'a Interrupt>) -> Self {
        Self {
            control,
            interrupt,
            spins: 0,
        }
    }

    #[inline]
    pub(super) fn spin_once(&mut self) -> anyhow::Result<()> {
        self.spins += 1;
        if !self.spins.is_multiple_of(64) {
            std::hint::spin_loop();
            return Ok(());
        }
        check_interrupt(self.interrupt)?;
        if self.spins.is_multiple_of(1 << 16) && self.control.peer_gone() {
            return Err(anyhow!("the other process is gone"));
        }
        std::thread::yield_now();
        Ok(())
    }
}

/// Returns the limit for the bring-up of a ring.
pub(super) fn soon(interrupt: Option<&Interrupt>) -> WaitLimit<'_> {
    let until = WaitLimit::deadline(clock::now() + PATIENCE);
    match interrupt {
        Some(interrupt) => until.or_readable(interrupt),
        None => until,
    }
}

/// Sends one message, however long that takes.
#[inline]
pub(super) fn send(
    sender: &mut Sender,
    bytes: &[u8],
    spin: &mut SpinWait<'_>,
) -> anyhow::Result<()> {
    loop {
        match sender.try_send(bytes) {
            Ok(()) => return Ok(()),
            Err(SendError::Full) => {
                sender.step()?;
                spin.spin_once()?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives one message, however long that takes.
#[inline]
pub(super) fn recv(
    receiver: &mut Receiver,
    spin: &mut SpinWait<'_>,
    take: impl FnOnce(&[u8]),
) -> anyhow::Result<()> {
    loop {
        if let Some(message) = receiver.try_recv()? {
            take(&message);
            return Ok(());
        }
        receiver.step()?;
        spin.spin_once()?;
    }
}

impl Demo {
    /// Runs the second part: many messages one way, each checked; then single messages there and back.
    pub(super) fn rings(&self) -> anyhow::Result<SmallMessageResult> {
        print_line(&format!(
            "2. {} million messages of {LEN} bytes through a ring, each checked where it arrives",
            MANY / 1_000_000
        ));
        let name = unique("rings");
        let fabric = registry().context("meeting the other process")?;
        // Opened before the other process is started, and so closed after it is gone. While stopped, the
        // other process may hold the registry's lock, which closing needs.
        let device = headworks::open(&self.device)?;
        let other = self.spawn(&["rings", &name])?;
        let interrupt = Some(&self.interrupt);
        let dial = || net::dial_wait(&fabric, &name, soon(interrupt));
        let mut control = dial()?;
        let mut sender_one = connect::sender(&device, &one_way(), &mut control, soon(interrupt))?;
        let began = Instant::now();
        let mut sent = 0;
        self.with_stall_limit(&other, STEP, |steps| {
            let mut spin = SpinWait::on(&control, interrupt);
            let limit = TimeLimit::new();
            while sent < MANY {
                if sent.is_multiple_of(1 << 10) {
                    self.check_interrupt()?;
                    if limit.is_over() {
                        break;
                    }
                }
                send(&mut sender_one, &message(sent), &mut spin)?;
                sent += 1;
                steps.count();
            }
            send(&mut sender_one, &END, &mut spin)?;
            while !sender_one.is_drained() {
                sender_one.step()?;
                spin.spin_once()?;
            }
            Ok(())
        })?;
        let took = began.elapsed().as_secs_f64();
        let answer = control.recv_control_wait(soon(interrupt))?;
        if answer != b"all right" {
            return Err(anyhow!("the other process found wrong messages"));
        }
        self.progress("single messages there and back");
        let (mut out_line, mut back_line) = (dial()?, dial()?);
        let mut out = connect::sender(&device, &latency(), &mut out_line, soon(interrupt))?;
        let mut back = connect::receiver(&device, &latency(), &mut back_line, soon(interrupt))?;
        let mut spin = SpinWait::on(&back_line, interrupt);
        let mut same = true;
        let (mut began_trips, limit) = (Instant::now(), TimeLimit::new());
        let (mut trips, mut one_way_ns) = (0, 0.0);
        self.with_stall_limit(&other, STEP, |steps| {
            for number in 0..TRIPS + TRIPS / 10 {
                self.check_interrupt()?;
                // The first round trips are not measured: a tenth of them, or fewer if they take long.
                if number <= TRIPS / 10 && !limit.is_half_over() {
                    (began_trips, trips) = (Instant::now(), 0);
                } else if number.is_multiple_of(64) && trips > 0 && limit.is_over() {
                    break;
                }
                let ours = message(number);
                send(&mut out, &ours, &mut spin)?;
                while !out.flush()? {
                    spin.spin_once()?;
                }
                recv(&mut back, &mut spin, |theirs| same &= theirs == ours)?;
                trips += 1;
                steps.count();
            }
            one_way_ns = began_trips.elapsed().as_nanos() as f64 / trips as f64 / 2.0;
            send(&mut out, &END, &mut spin)?;
            while !out.is_drained() {
                out.step()?;
                spin.spin_once()?;
            }
            Ok(())
        })?;
        if !same {
            return Err(anyhow!("a message came back changed"));
        }
        // The other process stays until its last answer was received. Dropping the control stream tells it so.
        drop((out, back, out_line, back_line));
        self.finish(other, STEP)?;
        if sent < MANY {
            print_line(&format!(
                "   As many as passed in {LONGEST_S} s: {sent} messages, and then {trips} there and back."
            ));
        }
        print_line(&format!(
            "   all right: {:.*} million messages a second, {:.0} ns for one, and {one_way_ns:.0} ns from one process to the other.\n",
            // With one digit, a slow device would show 0.0.
            if sent == MANY { 1 } else { 3 },
            sent as f64 / took / 1e6,
            took * 1e9 / sent as f64,
        ));
        Ok(SmallMessageResult { one_way_ns, trips })
    }
}
