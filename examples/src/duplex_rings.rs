//! A [`DuplexRing`] between two processes that meet under a name, with calls that end at Ctrl-C.

use headworks::duplex::{DuplexConfig, DuplexRing};
use headworks::net::{ControlStream, Interrupt, Listener, dial_wait};
use headworks::ring::{AfterStep, SendError};

use crate::program::{IdleWait, Outcome, no_deadline, short_deadline};

/// One side of the connection.
pub struct DuplexRings<'a> {
    rings: DuplexRing,
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
        let mut line = listener.accept(no_deadline(interrupt))?;
        let rings = DuplexRing::answer(&device, rings, &mut line, short_deadline(interrupt))?;
        // Returning drops the listener and frees its name.
        Ok(Self::new(rings, line, interrupt))
    }

    /// Calls the process that listens under `name`.
    pub fn call(name: &str, rings: &DuplexConfig, interrupt: &'a Interrupt) -> Outcome<Self> {
        let fabric = headworks::registry()?;
        let device = headworks::open("soft:client")?;
        let mut line = dial_wait(&fabric, name, short_deadline(interrupt))?;
        let rings = DuplexRing::call(&device, rings, &mut line, short_deadline(interrupt))?;
        Ok(Self::new(rings, line, interrupt))
    }

    fn new(rings: DuplexRing, line: ControlStream, interrupt: &'a Interrupt) -> Self {
        Self {
            rings,
            line,
            watch: IdleWait::new(interrupt),
            interrupt,
        }
    }

    /// Sends a message of `len` bytes that `fill` writes, if there is room.
    pub fn try_send(&mut self, len: usize, fill: impl Fn(&mut [u8])) -> Outcome<bool> {
        self.watch.check()?;
        let sent = self.rings.try_reserve(len).and_then(|mut place| {
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
        Ok(message.map(|message| look(&message)))
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
