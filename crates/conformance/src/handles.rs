//! Addresses, keys and numbers that calls of one host need of another host's objects.

use std::collections::{BTreeMap, BTreeSet};

use crate::call::{Call, DeviceFacts, Id, Op, Peer, Port, PortAddress, Remote, Reply, Send};
use crate::world::HostId;

/// Address and keys of a region.
#[derive(Clone, Copy, Debug)]
struct Keys {
    addr: u64,
    lkey: u32,
    rkey: u32,
}

/// Addresses, keys and queue pair numbers of the objects created so far, including destroyed ones. The caller
/// passes every call through [`resolve_call`](HandleTable::resolve_call) and every reply to
/// [`record_reply`](HandleTable::record_reply).
#[derive(Debug, Default)]
pub struct HandleTable {
    ports: BTreeMap<HostId, DeviceFacts>,
    qpns: BTreeMap<(HostId, Id), u32>,
    regions: BTreeMap<(HostId, Id), Keys>,
}

impl HandleTable {
    /// Returns the facts of the device that a host opened first.
    pub fn facts(&self, host: HostId) -> Option<&DeviceFacts> {
        self.ports.get(&host)
    }

    /// Returns the queue pairs with this queue pair number on the wire, of any host.
    pub fn find_qpn(&self, qpn: u32) -> impl Iterator<Item = (HostId, Id)> {
        let found = self.qpns.iter().filter(move |(_, found)| **found == qpn);
        found.map(|(whose, _)| *whose)
    }

    /// Returns the rkey of a region.
    pub fn rkey(&self, host: HostId, region: Id) -> Option<u32> {
        self.regions.get(&(host, region)).map(|keys| keys.rkey)
    }

    /// Returns a bit that, flipped in the keys of a region, gives keys that the host never had.
    pub fn unused_key_bit(&self, host: HostId, region: Id) -> Option<u32> {
        let of = |keys: &Keys| [keys.lkey, keys.rkey];
        let keys = of(self.regions.get(&(host, region))?);
        let known: BTreeSet<_> = self
            .regions
            .iter()
            .filter(|((whose, _), _)| *whose == host)
            .flat_map(|(_, keys)| of(keys))
            .collect();
        let mut bits = (0..u32::BITS).rev().map(|bit| 1 << bit);
        bits.find(|bit| keys.iter().all(|key| !known.contains(&(key ^ bit))))
    }

    /// Records the numbers in the reply to a call.
    pub fn record_reply(&mut self, host: HostId, call: &Call, reply: &Reply) {
        match (call, reply) {
            (Call::Open { .. }, Reply::Device(facts)) => {
                self.ports.entry(host).or_insert_with(|| facts.clone());
            }
            (Call::CreateQp(plan), Reply::Queue { qpn, .. }) => {
                self.qpns.insert((host, plan.qp), *qpn);
            }
            (
                Call::Register { region, .. },
                &Reply::Keys {
                    addr, lkey, rkey, ..
                },
            ) => {
                let keys = Keys { addr, lkey, rkey };
                self.regions.insert((host, *region), keys);
            }
            (Call::Each(calls), Reply::Each(replies)) => {
                for (call, reply) in calls.iter().zip(replies) {
                    self.record_reply(host, call, reply);
                }
            }
            _ => {}
        }
    }

    /// Fills in the references of a call to objects of other hosts. Returns an error if one is unknown.
    pub fn resolve_call(&self, call: &mut Call) -> Result<(), String> {
        match call {
            Call::Modify {
                peer: Some(peer), ..
            } => self.peer(peer),
            Call::CreateAh { to, .. } => {
                if let Port::Of { host } = *to {
                    let port = self.port(host)?;
                    *to = Port::At { port };
                }
                Ok(())
            }
            Call::PostSend { chain, .. } => chain.iter_mut().try_for_each(|send| self.send(send)),
            Call::Each(calls) | Call::Repeat { calls, .. } => calls
                .iter_mut()
                .try_for_each(|call| self.resolve_call(call)),
            _ => Ok(()),
        }
    }

    fn send(&self, send: &mut Send) -> Result<(), String> {
        match &mut send.op {
            Op::Write(remote)
            | Op::WriteImm(remote, _)
            | Op::Read(remote)
            | Op::CompareSwap { remote, .. }
            | Op::FetchAdd { remote, .. } => self.remote(remote),
            Op::SendTo { peer, .. } => self.peer(peer),
            Op::Send | Op::SendImm(_) => Ok(()),
        }
    }

    fn remote(&self, remote: &mut Remote) -> Result<(), String> {
        if let Remote::Of {
            host,
            region,
            offset,
            address_fault,
        } = *remote
        {
            let known = self.regions.get(&(host, region));
            let keys = known.ok_or_else(|| format!("{host:?} has no region {region}"))?;
            let (addr, rkey) = address_fault.apply(keys.addr, offset, keys.rkey);
            *remote = Remote::At { addr, rkey };
        }
        Ok(())
    }

    fn peer(&self, peer: &mut Peer) -> Result<(), String> {
        if let Peer::Of { host, qp } = *peer {
            let known = self.qpns.get(&(host, qp)).copied();
            let qpn = known.ok_or_else(|| format!("{host:?} has no queue pair {qp}"))?;
            let port = self.port(host)?;
            *peer = Peer::At { port, qpn };
        }
        Ok(())
    }

    fn port(&self, host: HostId) -> Result<PortAddress, String> {
        let facts = self.facts(host);
        facts
            .map(|facts| facts.port)
            .ok_or_else(|| format!("{host:?} has opened no device"))
    }
}
