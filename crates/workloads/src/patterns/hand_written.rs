//! The four pairs of verbs as a program would write each by hand: one requester and one responder, one request at a time,
//! constants in place of parameters. The building blocks are compared with these loops.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{
    BringUp, Completion, Device, Payload, QpCaps, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
    Status,
};
use headworks_baselines::{End, EndSizes, WordMemory};
use headworks_net::clock;
use headworks_patterns::message::{REQUEST, WORD, request_bytes, write_item};

use super::design::{Design, MessageVerb};
use crate::error::{Result, WorkloadError};

/// Items in the responder's region.
const ITEMS: u64 = 64;
/// One send request in this many is signalled.
const SIGNAL_EVERY: u64 = 16;
/// Depth of a send queue.
const DEPTH: u64 = 64;

/// One side: a queue pair, memory, and where messages go.
struct Side {
    end: End,
    memory: WordMemory,
    to: RemoteAddr,
    posted: u64,
    completed: u64,
}

fn at(what: &'static str) -> impl Fn(String) -> WorkloadError {
    move |why| WorkloadError::at(what, why)
}

impl Side {
    fn open(device: Arc<dyn Device>, bytes: usize, is_shared: bool) -> Result<Self> {
        let sizes = EndSizes {
            queue_pairs: 1,
            caps: QpCaps {
                max_send_wr: DEPTH as u32,
                max_recv_wr: 1,
                max_inline: 64,
                ..QpCaps::default()
            },
            cq_depth: DEPTH as u32,
            shared_receives: u32::from(is_shared),
            channel: false,
        };
        let mut end = End::open(device, &sizes)?;
        end.populate(&sizes)?;
        let memory = end.memory(bytes)?;
        Ok(Self {
            end,
            memory,
            to: RemoteAddr::default(),
            posted: 0,
            completed: 0,
        })
    }

    #[inline(always)]
    fn post(&mut self, op: SendOp, payload: Payload<'_>) -> Result<()> {
        if self.posted - self.completed == DEPTH {
            self.poll_sends()?;
        }
        self.posted += 1;
        let flags = match self.posted % SIGNAL_EVERY {
            0 => SendFlags::SIGNALED,
            _ => SendFlags::NONE,
        };
        let request = SendWr {
            wr_id: self.posted,
            op,
            payload,
            flags,
        };
        let posted = self.end.queue_pairs[0].post_send(&[request]);
        posted.map_err(|why| at("posting")(why.to_string()))
    }

    #[inline(never)]
    fn poll_sends(&mut self) -> Result<()> {
        let mut completions = [Completion::default(); 16];
        while self.posted - self.completed == DEPTH {
            let count = self.end.send_cq.poll(&mut completions);
            let count = count.map_err(|why| at("polling")(why.to_string()))?;
            for completion in &completions[..count] {
                if completion.status != Status::Success {
                    return Err(WorkloadError("a request failed".into()));
                }
                self.completed = completion.wr_id;
            }
        }
        Ok(())
    }

    /// Posts the receive of `len` bytes at `at_byte`.
    #[inline(always)]
    fn post_receive(&mut self, at_byte: usize, len: usize) -> Result<()> {
        let sges = [self.memory.sge(at_byte, len)];
        let receive = RecvWr {
            wr_id: 0,
            sges: &sges,
        };
        let posted = match &self.end.srq {
            Some(srq) => srq.post_recv(&[receive]),
            None => self.end.queue_pairs[0].post_recv(&[receive]),
        };
        posted.map_err(|why| at("posting a receive")(why.to_string()))
    }

    /// Returns whether a receive has completed. Its message must have `len` bytes.
    #[inline(always)]
    fn poll_receive(&mut self, len: usize) -> Result<bool> {
        let mut completion = [Completion::default()];
        let count = self.end.recv_cq.poll(&mut completion);
        if count.map_err(|why| at("polling")(why.to_string()))? == 0 {
            return Ok(false);
        }
        let [completion] = completion;
        match completion.status == Status::Success && completion.byte_len as usize == len {
            true => Ok(true),
            false => Err(WorkloadError("a receive failed".into())),
        }
    }
}

/// One requester and one responder that take turns.
pub struct HandWritten {
    turns: fn(&mut Sides, u64) -> Result<()>,
    sides: Sides,
}

struct Sides {
    requester: Side,
    responder: Side,
    response: usize,
    /// Offset of the response in the requester's memory, and of the first item in the responder's.
    inbox: usize,
    items: usize,
    round: u64,
    is_outstanding: bool,
    answered: u64,
}

impl HandWritten {
    /// Opens both sides, for responses of `response` bytes.
    ///
    /// # Errors
    ///
    /// The devices lack resources.
    pub fn open(design: Design, response: usize, devices: [Arc<dyn Device>; 2]) -> Result<Self> {
        let (by_write, response_by_write) = (
            design.request == MessageVerb::Write,
            design.response == MessageVerb::Write,
        );
        let [requesting, responding] = devices;
        let (inbox, items) = (REQUEST, REQUEST);
        let mut requester = Side::open(requesting, inbox + response, false)?;
        let bytes = items + response.next_multiple_of(64) * ITEMS as usize;
        let mut responder = Side::open(responding, bytes, !by_write)?;
        for item in 0..ITEMS {
            let place = items + response.next_multiple_of(64) * item as usize;
            write_item(&responder.memory, place, item, response);
        }
        requester.to = responder.memory.region().remote(0);
        responder.to = requester.memory.region().remote(inbox);
        if !by_write {
            responder.post_receive(0, REQUEST)?;
        }
        connect(&mut requester.end, &mut responder.end)?;
        if !response_by_write {
            requester.post_receive(inbox, response)?;
        }
        let turns = match (by_write, response_by_write) {
            (true, true) => Sides::run::<true, true>,
            (true, false) => Sides::run::<true, false>,
            (false, true) => Sides::run::<false, true>,
            (false, false) => Sides::run::<false, false>,
        };
        Ok(Self {
            turns,
            sides: Sides {
                requester,
                responder,
                response,
                inbox,
                items,
                round: 0,
                is_outstanding: false,
                answered: 0,
            },
        })
    }

    /// Makes `count` requests and takes their responses.
    ///
    /// # Errors
    ///
    /// A request failed, or a response was wrong.
    pub fn run(&mut self, count: u64) -> Result<()> {
        (self.turns)(&mut self.sides, count)
    }

    /// As [`run`](Self::run). Returns the nanoseconds per request.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn time(&mut self, count: u64) -> Result<f64> {
        let began = clock::now();
        self.run(count)?;
        Ok(clock::now().since(began).nanos() as f64 / count as f64)
    }
}

impl Sides {
    fn run<const REQUEST_BY_WRITE: bool, const RESPONSE_BY_WRITE: bool>(
        &mut self,
        count: u64,
    ) -> Result<()> {
        let all = self.answered + count;
        while self.answered < all {
            // The last response is taken without a further request.
            let is_last = self.answered + 1 == all;
            self.requester_turn::<REQUEST_BY_WRITE, RESPONSE_BY_WRITE>(is_last)?;
            self.responder_turn::<REQUEST_BY_WRITE, RESPONSE_BY_WRITE>()?;
        }
        Ok(())
    }

    /// The turn of the requester: takes the response, and sends the next request. Instruction counts find it by its
    /// name.
    #[inline(never)]
    fn requester_turn<const REQUEST_BY_WRITE: bool, const RESPONSE_BY_WRITE: bool>(
        &mut self,
        is_last: bool,
    ) -> Result<()> {
        let side = &mut self.requester;
        if self.is_outstanding {
            let flag = self.inbox + self.response - WORD;
            if RESPONSE_BY_WRITE {
                if side.memory.word(flag).load(Acquire) >> 56 == 0 {
                    return Ok(());
                }
            } else if !side.poll_receive(self.response)? {
                return Ok(());
            }
            if side.memory.word(self.inbox).load(Relaxed) != self.round % ITEMS {
                return Err(WorkloadError("a response is wrong".into()));
            }
            match RESPONSE_BY_WRITE {
                true => side.memory.word(flag).store(0, Release),
                false => side.post_receive(self.inbox, self.response)?,
            }
            self.answered += 1;
            self.is_outstanding = false;
            if is_last {
                return Ok(());
            }
        }
        self.round += 1;
        let request = request_bytes(self.round % ITEMS, 0);
        let op = match REQUEST_BY_WRITE {
            true => SendOp::Write(side.to),
            false => SendOp::Send,
        };
        side.post(op, Payload::Inline(&request))?;
        self.is_outstanding = true;
        Ok(())
    }

    /// The turn of the responder. Instruction counts find it by its name.
    #[inline(never)]
    fn responder_turn<const REQUEST_BY_WRITE: bool, const RESPONSE_BY_WRITE: bool>(
        &mut self,
    ) -> Result<()> {
        let side = &mut self.responder;
        let flag = REQUEST - WORD;
        if REQUEST_BY_WRITE {
            if side.memory.word(flag).load(Acquire) >> 56 == 0 {
                return Ok(());
            }
        } else if !side.poll_receive(REQUEST)? {
            return Ok(());
        }
        let item = side.memory.word(0).load(Relaxed);
        match REQUEST_BY_WRITE {
            true => side.memory.word(flag).store(0, Release),
            false => side.post_receive(0, REQUEST)?,
        }
        if item >= ITEMS {
            return Err(WorkloadError("a request is wrong".into()));
        }
        let place = self.items + self.response.next_multiple_of(64) * item as usize;
        let sges = [side.memory.sge(place, self.response)];
        let op = match RESPONSE_BY_WRITE {
            true => SendOp::Write(side.to),
            false => SendOp::Send,
        };
        side.post(op, Payload::Gather(&sges))
    }
}

fn connect(left: &mut End, right: &mut End) -> Result<()> {
    let failed = |why| WorkloadError::at("connecting", why);
    let infos = [left.device.info().clone(), right.device.info().clone()];
    let (ours, theirs) = (&mut left.queue_pairs[0], &mut right.queue_pairs[0]);
    let params = ConnectionParams::default();
    let mut one = BringUp::start(&infos[0], &mut **ours, params, 1, Vec::new()).map_err(failed)?;
    let mut two =
        BringUp::start(&infos[1], &mut **theirs, params, 2, Vec::new()).map_err(failed)?;
    one.connect_both(&mut **ours, &mut two, &mut **theirs)
        .map_err(failed)
}
