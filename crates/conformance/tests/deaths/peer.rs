//! The other process, and how a side of this one meets it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::direct::{DEADLINE, line};
use crate::direct::{Options, Side};
use headworks_shm::FabricDir;
use headworks_softnic::SoftProvider;
use headworks_stage::{
    Actor, ActorError, Change, Cx, Event, Part, PartSpec, Play, Processes, Running, Step, World,
    clock,
};
use headworks_verbs::{
    BringUp, Completion, Device, Provider, RemoteAddr, SendFlags, SendOp, Status,
};

pub(crate) fn open(fabric: &Path, name: &str) -> Arc<dyn Device> {
    let provider = SoftProvider::on(FabricDir::at(fabric).expect("fabric"));
    provider.open(&name.parse().expect("name")).expect("opens")
}

/// What a peer does once it is connected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// WRITEs and SENDs for ever.
    Works = 0,
    /// Nothing.
    Idles = 1,
    /// SENDs once, [`LONG`] bytes, and says so while that is under way.
    SendsOnce = 2,
}

/// More than a device places before whoever sends it is killed, mostly.
pub(crate) const LONG: usize = 64 << 20;

/// Connects by mail to the director, then behaves as it was told.
pub(crate) struct Peer {
    side: Side,
    up: Option<BringUp>,
    greeted: bool,
    manner: Manner,
    there: Option<RemoteAddr>,
    count: u64,
}

impl Peer {
    pub(crate) fn new(part: &Part) -> Result<Self, ActorError> {
        let manner = match part.args[0] {
            0 => Manner::Works,
            1 => Manner::Idles,
            _ => Manner::SendsOnce,
        };
        let path = PathBuf::from(String::from_utf8_lossy(&part.args[1..]).into_owned());
        let device = open(&path, "soft:h2");
        let options = Options {
            len: match manner {
                Manner::SendsOnce => LONG,
                _ => 1 << 20,
            },
            ..Options::default()
        };
        let mut side = Side::new(&device, &options)?;
        let to_us = target(&side);
        let up = Some(side.start(to_us)?);
        Ok(Self {
            side,
            up,
            greeted: false,
            manner,
            there: None,
            count: 0,
        })
    }

    fn work(&mut self, there: RemoteAddr) -> Result<(), ActorError> {
        let mut out = [Completion::default(); 16];
        for _ in 0..20 {
            self.count += 1;
            let len = [8, 600, 70_000, 1 << 20][(self.count % 4) as usize];
            let from = self.side.region.sge(0, len);
            let op = match self.count % 3 {
                0 => SendOp::Write(there),
                1 => SendOp::Send,
                _ => SendOp::WriteImm(there, self.count as u32),
            };
            // A full queue is no matter.
            let posted = self
                .side
                .post_flagged(self.count, op, &[from], SendFlags::SIGNALED);
            let count = self.side.send_cq.poll(&mut out)?;
            for done in &out[..count] {
                if done.status != Status::Success {
                    return Err(ActorError::new(format!("{:?}", done.status)));
                }
            }
            if posted.is_err() {
                break;
            }
        }
        Ok(())
    }
}

impl Actor for Peer {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if let Some(up) = &mut self.up {
            if !std::mem::replace(&mut self.greeted, true) {
                cx.report(&up.output())?;
            }
            while let Some(mail) = cx.receive() {
                up.input(self.side.qp.as_mut(), &mail.bytes)?;
            }
            let answer = up.output();
            if !answer.is_empty() {
                cx.report(&answer)?;
            }
            if !up.is_connected() {
                return Ok(Step::OnChange(Change::mail()));
            }
            let hello = up.peer().ok_or("no peer")?;
            let (addr, rkey) = hello.payload.split_at(8);
            self.there = Some(RemoteAddr {
                addr: u64::from_le_bytes(addr.try_into()?),
                rkey: u32::from_le_bytes(rkey.try_into()?),
            });
            self.up = None;
            cx.report(b"connected")?;
        }
        match self.manner {
            Manner::Idles => return Ok(Step::OnChange(Change::mail())),
            Manner::Works => self.work(self.there.ok_or("no peer")?)?,
            Manner::SendsOnce => {
                let from = self.side.region.sge(0, LONG as u32);
                self.side.post(0, SendOp::Send, &[from])?;
                cx.report(b"sending")?;
                self.manner = Manner::Idles;
            }
        }
        Ok(Step::Again)
    }
}

/// Connects with the peer.
pub(crate) fn meet(
    running: &mut dyn Running,
    side: &mut Side,
    up: &mut BringUp,
) -> Result<(), String> {
    running.send("peer", &up.output()).map_err(line)?;
    let until = clock::now() + DEADLINE;
    loop {
        match running.poll(until.since(clock::now())) {
            Some(Event::Report { bytes, .. }) if bytes == b"connected" => return Ok(()),
            Some(Event::Report { bytes, .. }) => {
                up.input(side.qp.as_mut(), &bytes).map_err(line)?;
                let answer = up.output();
                if !answer.is_empty() {
                    running.send("peer", &answer).map_err(line)?;
                }
            }
            other => return Err(format!("while connecting: {other:?}")),
        }
    }
}

/// Starts a peer called "peer" on the fabric at `path`.
pub(crate) fn start(path: &Path, manner: Manner) -> Result<Box<dyn Running>, String> {
    let play = Play::of([part("peer", path, manner)]);
    let world = Processes::of_this_test("plays_a_part");
    world.start(&play).map_err(line)
}

/// A peer's part.
pub(crate) fn part(role: &str, path: &Path, manner: Manner) -> PartSpec {
    let mut args = vec![manner as u8];
    args.extend(path.to_string_lossy().as_bytes());
    PartSpec::new(role, "peer").with_args(args)
}

/// What a connected side tells the peer: where it may WRITE.
pub(crate) fn target(side: &Side) -> Vec<u8> {
    let mut payload = side.region.addr(0).to_le_bytes().to_vec();
    payload.extend(side.region.rkey().to_le_bytes());
    payload
}

/// A peer and the side of ours that is connected to it.
pub(crate) fn connected(
    path: &Path,
    manner: Manner,
    side: &mut Side,
) -> Result<Box<dyn Running>, String> {
    let mut up = side.start(target(side))?;
    let mut running = start(path, manner)?;
    meet(running.as_mut(), side, &mut up)?;
    Ok(running)
}
