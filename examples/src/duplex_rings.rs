//! Two rings that cross: messages one way and messages back.
//!
//! Each side could wait for what the other one holds back: its last messages, which are sent together
//! with the next ones, or space that it has not told of. So the two are a [`Group`], and whoever finds
//! no room, or nothing to receive, steps it and says that it will wait.

use headworks::connect;
use headworks::net::{ControlStream, Interrupt, Listener, dial_wait};
use headworks::ring::{Group, Receiver, RingConfig, RingId, SendError, Sender};

use crate::program::{self, IdleWait, Outcome, no_deadline, short_deadline};

/// What the two rings are made from.
pub struct DuplexConfig {
    /// From who calls to who listens.
    pub there: RingConfig,
    /// And back.
    pub back: RingConfig,
}

/// One side.
pub struct DuplexRings<'a> {
    rings: Group,
    /// The one to send on.
    out: RingId,
    /// The end of this line is the other process's.
    line: ControlStream,
    watch: IdleWait<'a>,
    interrupt: &'a Interrupt,
}

impl<'a> DuplexRings<'a> {
    /// Waits under a name for somebody to call.
    pub fn listen(name: &str, rings: &DuplexConfig, interrupt: &'a Interrupt) -> Outcome<Self> {
        let device = headworks::open(&"soft:server".parse()?)?;
        let listener = Listener::bind(&headworks::registry()?, name)?;
        // A line connects one ring.
        let mut first = listener.accept(no_deadline(interrupt))?;
        let receiver =
            connect::receiver(&device, &rings.there, &mut first, short_deadline(interrupt))?;
        // Whoever else calls meanwhile is not the one: his line ends.
        let until = short_deadline(interrupt);
        let mut line = loop {
            let line = listener.accept(until)?;
            if line.peer_pid() == first.peer_pid() {
                break line;
            }
        };
        let sender = connect::sender(&device, &rings.back, &mut line, short_deadline(interrupt))?;
        // The listener is dropped, and the name free again.
        Ok(Self::new(sender, receiver, line, interrupt))
    }

    /// Calls who listens under a name.
    pub fn call(name: &str, rings: &DuplexConfig, interrupt: &'a Interrupt) -> Outcome<Self> {
        let fabric = headworks::registry()?;
        let device = headworks::open(&"soft:client".parse()?)?;
        let mut first = dial_wait(&fabric, name, short_deadline(interrupt))?;
        let sender = connect::sender(&device, &rings.there, &mut first, short_deadline(interrupt))?;
        let mut line = dial_wait(&fabric, name, short_deadline(interrupt))?;
        if line.peer_pid() != first.peer_pid() {
            return Err(program::gone());
        }
        let receiver =
            connect::receiver(&device, &rings.back, &mut line, short_deadline(interrupt))?;
        Ok(Self::new(sender, receiver, line, interrupt))
    }

    fn new(
        sender: Sender,
        receiver: Receiver,
        line: ControlStream,
        interrupt: &'a Interrupt,
    ) -> Self {
        let mut rings = Group::default();
        let out = rings.add_sender(sender);
        rings.add_receiver(receiver);
        Self {
            rings,
            out,
            line,
            watch: IdleWait::new(interrupt),
            interrupt,
        }
    }

    /// Sends a message of `len` bytes that `fill` writes, if there is room.
    pub fn try_send(&mut self, len: usize, fill: impl Fn(&mut [u8])) -> Outcome<bool> {
        self.watch.check()?;
        let sender = self.rings.sender(self.out).ok_or_else(program::gone)?;
        let sent = sender.try_reserve(len).and_then(|mut place| {
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
        self.watch.check()?;
        let message = self.rings.try_recv()?;
        Ok(message.map(|(_, message)| look(&message)))
    }

    /// Due where there is no room, and where there is no message. Says whether the other side has said
    /// goodbye.
    pub fn wait(&mut self) -> Outcome<bool> {
        // Who waits keeps neither messages nor space back: the other side may wait for either.
        self.rings.step(true)?;
        Ok(self.watch.idle(&mut self.line)?.is_some())
    }

    /// Says goodbye, and waits until the other side does; whoever goes without is taken for dead.
    pub fn close_first(mut self) -> Outcome {
        self.line.send_control(b"goodbye")?;
        self.line
            .recv_control_wait(short_deadline(self.interrupt))?;
        Ok(())
    }

    /// Says goodbye to who has said it already.
    pub fn close_second(mut self) -> Outcome {
        Ok(self.line.send_control(b"goodbye")?)
    }
}
