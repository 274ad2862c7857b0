//! `headworks pace calibrate`.

use std::fmt::Write;

use anyhow::Context;
use headworks::net::Interrupt;
use headworks::pace::calibrate::{
    BYTES, CalibrateError, Calibration, IDLE_SPREAD, ROUNDS, calibrate, default_peer, name,
};
use headworks::sim::{is_simulated, provider};
use headworks::verbs::DeviceName;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::args::device;
use crate::exit_status::{bad_input, print, write_line};

/// Options of `headworks pace calibrate`.
#[derive(clap::Args)]
pub(crate) struct Calibrate {
    /// Device to measure, which must be idle: KIND[:NAME][,key=value…]
    #[arg(long, default_value = headworks::DEFAULT_DEVICE, value_parser = device)]
    device: DeviceName,
    /// Device that the requests go to; this process opens it, too. Default: another host if --device is a
    /// soft or a simulated one, else --device itself.
    #[arg(long, value_parser = device)]
    peer_device: Option<DeviceName>,
    /// Print JSON for programs: an object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Calibrate) -> anyhow::Result<()> {
    let interrupt = Interrupt::install().context("catching signals")?;
    let device = &command.device;
    let peer = command.peer_device.clone();
    let peer = peer.unwrap_or_else(|| default_peer(device));
    check(device, &peer)?;
    let bar = ProgressBar::new(0);
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template("{pos} of {len} requests, {eta} left") {
        bar.set_style(style);
    }
    let found = calibrate(device, &peer, ROUNDS, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
        !interrupt.is_raised()
    });
    bar.finish_and_clear();
    let found = found.map_err(|error| match error {
        CalibrateError::Open(error) => error.into(),
        CalibrateError::Interrupted => crate::exit_status::interrupted(),
        other => anyhow::Error::new(other).context(format!("measuring {device}")),
    })?;
    match command.json {
        true => print(&format!("{:#}\n", in_json(device, &peer, &found)))?,
        false => print(&in_text(device, &peer, &found))?,
    }
    if !found.is_idle() {
        write_line(format_args!(
            "warning: {device} seems not to be idle, or this machine busy: some delays spread by more than {IDLE_SPREAD} \
             times; measure again while nothing uses them"
        ));
    }
    Ok(())
}

/// Refuses two devices of which it is known without opening them that they cannot reach each other.
fn check(device: &DeviceName, peer: &DeviceName) -> anyhow::Result<()> {
    if device.kind() != peer.kind() {
        return Err(bad_input(format_args!(
            "--peer-device {peer} is of another kind than {device}: requests need two devices of one kind"
        )));
    }
    let machine = |name: &DeviceName| {
        let plain = headworks::pace::split(name)?.0;
        provider::machine(&plain).map(|(preset, seed)| (preset.name, seed))
    };
    if is_simulated(device) && machine(device)? != machine(peer)? {
        return Err(bad_input(format_args!(
            "--peer-device {peer} is on another simulated network than {device}: both must have the same preset and seed"
        )));
    }
    Ok(())
}

fn in_text(device: &DeviceName, peer: &DeviceName, found: &Calibration) -> String {
    let simulated = if found.is_simulated {
        "simulated: "
    } else {
        ""
    };
    let by = match found.is_stamped {
        true => "the device's timestamp",
        false => "the poll that finds it",
    };
    let mut text = format!(
        "{simulated}{device} to {peer}: {BYTES} bytes, one request at a time, from its doorbell to {by}\n\n\
         {:12} {:>9} {:>9} {:>9} {:>9}\n",
        "", "requests", "p10 [ns]", "median", "p90",
    );
    // Writing to a string does not fail.
    for each in &found.measured {
        let _ = writeln!(
            text,
            "{:12} {:>9} {:>9} {:>9} {:>9}",
            name(each.class),
            each.samples,
            each.p10.nanos(),
            each.median.nanos(),
            each.p90.nanos(),
        );
    }
    let _ = writeln!(text, "\nto add to the device's name:\n{}", found.options());
    text
}

fn in_json(device: &DeviceName, peer: &DeviceName, found: &Calibration) -> Value {
    let measured = found.measured.iter().map(|each| {
        let (constant, _) = each.constant();
        json!({
            "constant": constant,
            "requests": each.samples,
            "p10_ns": each.p10.nanos(),
            "median_ns": each.median.nanos(),
            "p90_ns": each.p90.nanos(),
        })
    });
    json!({
        "device": device.to_string(),
        "peer_device": peer.to_string(),
        "simulated": found.is_simulated,
        "timestamps": found.is_stamped,
        "idle": found.is_idle(),
        "measured": measured.collect::<Vec<_>>(),
        "options": found.options(),
    })
}
