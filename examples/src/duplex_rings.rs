//! Two rings in opposite directions: messages one way and messages back.
//!
//! Both sides could wait for each other. A side may hold back its last messages until more follow, or hold
//! back free space that it has not announced. So the two rings are one [`Group`]. A side that finds no room,
//! or no message, steps the group and says that it is about to wait.

use headworks::connect;
use headworks::net::{ControlStream, Interrupt, Listener, dial_wait};
use headworks::ring::{AfterStep, Group, Receiver, RingConfig, RingId, SendError, Sender};

use crate::program::{self, IdleWait, Outcome, no_deadline, short_deadline};

/// The configurations of the two rings.
pub struct DuplexConfig {
    /// The ring from the caller to the listener.
    pub there: RingConfig,
    /// The ring from the listener to the caller.
    pub back: RingConfig,
}

/// One side of the connection: a ring to send on and a ring to receive from.
pub struct DuplexRings<'a> {
    rings: Group,
    /// The ring to send on.
    out: RingId,
    /// Control stream to the other process. It ends when that process dies.
    line: ControlStream,
    watch: IdleWait<'a>,
    interrupt: &'a Interrupt,
}

impl<'a> DuplexRings<'a> {
    /// Listens under `name` and waits for one caller.
    pub fn listen(name: &str, rings: &DuplexConfig, interrupt: &'a Interrupt) -> Outcome<Self> {
        let device = headworks::open("soft:server")?;
        let listener = Listener::bind(&headworks::registry()?, name)?;
        // Each control stream connects one ring.
        let mut first = listener.accept(no_deadline(interrupt))?;
        let receiver =
            connect::receiver(&device, &rings.there, &mut first, short_deadline(interrupt))?;
        // Drop the streams of other processes that call meanwhile.
        let until = short_deadline(interrupt);
        let mut line = loop {
            let line = listener.accept(until)?;
            if line.peer_pid() == first.peer_pid() {
                break line;
            }
        };
        let sender = connect::sender(&device, &rings.back, &mut line, short_deadline(interrupt))?;
        // Returning drops the listener and frees its name.
        Ok(Self::new(sender, receiver, line, interrupt))
    }

    /// Calls the process that listens under `name`.
    pub fn call(name: &str, rings: &DuplexConfig, interrupt: &'a Interrupt) -> Outcome<Self> {
        let fabric = headworks::registry()?;
        let device = headworks::open("soft:client")?;
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

    /// Sends a message of `len` bytes that `fill` writes, and waits for room if necessary.
    pub fn send(&mut self, len: usize, fill: impl Fn(&mut [u8])) -> Outcome {
        while !self.try_send(len, &fill)? {
            self.wait()?;
        }
        Ok(())
    }

    /// Lets `look` read the next message in place, if there is one.
    pub fn try_receive<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        self.watch.check()?;
        let message = self.rings.try_recv()?;
        Ok(message.map(|(_, message)| look(&message)))
    }

    /// Waits for a moment. Call it when there is no room and when there is no message. Returns whether the
    /// other side has said goodbye.
    pub fn wait(&mut self) -> Outcome<bool> {
        // Before waiting, send messages and announce free space that were held back: the other side may wait
        // for them.
        self.rings.step(AfterStep::Wait)?;
        Ok(self.watch.idle(&mut self.line)?.is_some())
    }

    /// Says goodbye and waits until the other side does. A side that leaves without goodbye is taken for
    /// dead.
    pub fn close_first(mut self) -> Outcome {
        self.line.send_control(b"goodbye")?;
        self.line
            .recv_control_wait(short_deadline(self.interrupt))?;
        Ok(())
    }

    /// Says goodbye to the other side, which has said it already.
    pub fn close_second(mut self) -> Outcome {
        Ok(self.line.send_control(b"goodbye")?)
    }
}
