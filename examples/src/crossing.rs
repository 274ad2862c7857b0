//! Two rings that cross: messages one way and messages back.
//!
//! Each side could wait for what the other one holds back: its last messages, which are sent together
//! with the next ones, or space that it has not told of. So whoever finds a ring full, or nothing to
//! receive, sees to both of them.

use headworks::connect;
use headworks::ring::{Receiver, RingConfig, SendError, Sender};
use headworks::stage::{Interrupt, Line, Listener, dial_by};

use crate::shell::{Outcome, Watch, soon, whenever};

/// What the two rings are made from.
pub struct Rings {
    /// From who calls to who listens.
    pub there: RingConfig,
    /// And back.
    pub back: RingConfig,
}

/// One side.
pub struct Crossing<'a> {
    sender: Sender,
    receiver: Receiver,
    /// The end of this line is the other process's.
    line: Line,
    watch: Watch<'a>,
    interrupt: &'a Interrupt,
}

impl<'a> Crossing<'a> {
    /// Waits under a name for somebody to call.
    pub fn listen(name: &str, rings: &Rings, interrupt: &'a Interrupt) -> Outcome<Self> {
        let listener = Listener::bind(&headworks::fabric()?, name)?;
        let device = headworks::open(&"soft:server".parse()?)?;
        // A line connects one ring.
        let mut first = listener.accept(whenever(interrupt))?;
        let receiver = connect::receiver(&device, &rings.there, &mut first, soon(interrupt))?;
        let mut line = listener.accept(soon(interrupt))?;
        let sender = connect::sender(&device, &rings.back, &mut line, soon(interrupt))?;
        // The listener is dropped, and the name free again.
        Ok(Self::new(sender, receiver, line, interrupt))
    }

    /// Calls who listens under a name.
    pub fn call(name: &str, rings: &Rings, interrupt: &'a Interrupt) -> Outcome<Self> {
        let fabric = headworks::fabric()?;
        let device = headworks::open(&"soft:client".parse()?)?;
        let mut first = dial_by(&fabric, name, soon(interrupt))?;
        let sender = connect::sender(&device, &rings.there, &mut first, soon(interrupt))?;
        let mut line = dial_by(&fabric, name, soon(interrupt))?;
        let receiver = connect::receiver(&device, &rings.back, &mut line, soon(interrupt))?;
        Ok(Self::new(sender, receiver, line, interrupt))
    }

    fn new(sender: Sender, receiver: Receiver, line: Line, interrupt: &'a Interrupt) -> Self {
        Self {
            sender,
            receiver,
            line,
            watch: Watch::new(interrupt),
            interrupt,
        }
    }

    /// Sends a message of `len` bytes that `fill` writes, if there is room.
    pub fn try_send(&mut self, len: usize, fill: impl Fn(&mut [u8])) -> Outcome<bool> {
        let sent = self.sender.try_reserve(len).and_then(|mut place| {
            fill(&mut place);
            place.commit()
        });
        match sent {
            Ok(()) => Ok(true),
            Err(SendError::Full) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, once there is room.
    pub fn send(&mut self, len: usize, fill: impl Fn(&mut [u8])) -> Outcome {
        while !self.try_send(len, &fill)? {
            self.wait()?;
        }
        Ok(())
    }

    /// Shows the next message to `look` where it lies, if one is there.
    pub fn try_receive<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        let message = self.receiver.try_recv()?;
        Ok(message.map(|message| look(&message)))
    }

    /// No room, or no message: publishes what was sent, and tells of all space that is free. Says
    /// whether the other side has said goodbye.
    pub fn wait(&mut self) -> Outcome<bool> {
        self.sender.step()?;
        self.receiver.push_head()?;
        self.receiver.step()?;
        Ok(self.watch.idle(&mut self.line)?.is_some())
    }

    /// Says goodbye, and waits until the other side does; whoever goes without is taken for dead.
    pub fn goodbye(mut self) -> Outcome {
        self.line.send_small(b"goodbye")?;
        self.line.recv_small_by(soon(self.interrupt))?;
        Ok(())
    }

    /// Says goodbye to who has said it already.
    pub fn goodbye_too(mut self) -> Outcome {
        Ok(self.line.send_small(b"goodbye")?)
    }
}
