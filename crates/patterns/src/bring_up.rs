//! Connecting to the peers of a run: each end learns the other's queue pair and memory area from bytes that the
//! caller carries, by mail or over a socket.

use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{BringUp, RemoteAddr};
use headworks_wire::{Decoder, Encoder, Malformed};

use crate::error::PatternError;
use crate::ports::Ports;

/// Bytes of an encoded [`Area`].
const AREA_BYTES: usize = 24;

/// Where a peer's messages go: an area that this side gives to one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// First place of the area.
    pub messages: RemoteAddr,
    /// First flag of the area, where flags are apart from the messages
    /// ([`DenseWrite`](crate::verb::DenseWrite)); else the same as `messages`.
    pub flags: RemoteAddr,
}

impl Area {
    /// Encodes the area: addresses and keys.
    fn to_bytes(self) -> Vec<u8> {
        let to = Encoder::new().field(&self.messages);
        to.field(&self.flags).finish()
    }

    /// Decodes an area.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut of = Decoder::new(bytes);
        let (messages, flags) = (of.field()?, of.field()?);
        of.end()?;
        Ok(Self { messages, flags })
    }
}

/// The bring-up of all queue pairs of one side.
pub struct PeerBringUps {
    ups: Vec<BringUp>,
}

impl PeerBringUps {
    /// Starts the bring-up of every queue pair of `ports`. `area` is the area that each peer is given. `seed` draws
    /// the first packet sequence numbers.
    ///
    /// # Errors
    ///
    /// [`PatternError::BringUp`]: a queue pair cannot be initialised.
    pub fn start(
        ports: &mut Ports,
        seed: u32,
        area: impl Fn(usize) -> Area,
    ) -> Result<Self, PatternError> {
        let info = ports.end.device.info().clone();
        let queue_pairs = ports.queue_pairs().enumerate();
        let ups = queue_pairs.map(|(peer, qp)| {
            let params = ConnectionParams::default();
            BringUp::start(&info, &mut **qp, params, seed, area(peer).to_bytes())
        });
        Ok(Self {
            ups: ups.collect::<Result<_, _>>()?,
        })
    }

    /// Takes the bytes that are to be carried to `peer`; empty if there are none now.
    pub fn output(&mut self, peer: usize) -> Vec<u8> {
        self.ups[peer].output()
    }

    /// Takes bytes that came from `peer`.
    ///
    /// # Errors
    ///
    /// [`PatternError::BringUp`]: the peer's device cannot be connected to this one, or the bytes are malformed.
    pub fn input(
        &mut self,
        ports: &mut Ports,
        peer: usize,
        bytes: &[u8],
    ) -> Result<(), PatternError> {
        let qp = ports.queue_pair(peer);
        let used = self.ups[peer].input(qp, bytes)?;
        match used == bytes.len() {
            true => Ok(()),
            false => Err(PatternError::Protocol {
                what: "the number of bytes of a bring-up",
                value: bytes.len() as u64,
                most: used as u64,
            }),
        }
    }

    /// Returns whether all queue pairs are connected.
    pub fn is_connected(&self) -> bool {
        self.ups.iter().all(BringUp::is_connected)
    }

    /// Ends the bring-up: messages to each peer go to the area that it gave.
    ///
    /// # Errors
    ///
    /// [`PatternError::Protocol`]: a peer gave no area.
    pub fn finish(self, ports: &mut Ports) -> Result<(), PatternError> {
        for (peer, up) in self.ups.iter().enumerate() {
            let payload = up.peer().map_or(&[][..], |hello| &hello.payload);
            let area = Area::from_bytes(payload).map_err(|_| PatternError::Protocol {
                what: "the number of bytes of an area",
                value: payload.len() as u64,
                most: AREA_BYTES as u64,
            })?;
            ports.set_peer_area(peer, area);
        }
        Ok(())
    }
}

/// Connects queue pair `i` of `left` with queue pair `j` of `right`, both in this process, and tells each side the
/// area that the other gives it.
///
/// # Errors
///
/// [`PatternError::BringUp`]: the two devices cannot be connected.
pub fn connect(
    (left, i, left_area): (&mut Ports, usize, Area),
    (right, j, right_area): (&mut Ports, usize, Area),
) -> Result<(), PatternError> {
    let params = ConnectionParams::default();
    let infos = [
        left.end.device.info().clone(),
        right.end.device.info().clone(),
    ];
    let (ours, theirs) = (left.queue_pair(i), right.queue_pair(j));
    let mut one = BringUp::start(&infos[0], ours, params, 1, Vec::new())?;
    let mut two = BringUp::start(&infos[1], theirs, params, 2, Vec::new())?;
    one.connect_both(ours, &mut two, theirs)?;
    left.set_peer_area(i, right_area);
    right.set_peer_area(j, left_area);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_travel_and_other_bytes_are_refused() {
        let at = |addr, rkey| RemoteAddr { addr, rkey };
        let area = Area {
            messages: at(1 << 40, 7),
            flags: at(u64::MAX, u32::MAX),
        };
        assert_eq!(Area::from_bytes(&area.to_bytes()), Ok(area));
        for len in [0, AREA_BYTES - 1, AREA_BYTES + 1] {
            Area::from_bytes(&vec![0; len]).unwrap_err();
        }
    }
}
