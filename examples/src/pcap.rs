//! Reads the packets of a file that `tcpdump -w` wrote.

use std::fs::File;
use std::io::Read;

use crate::program::{Failure, Outcome};

/// Largest file size in bytes. The whole file is read into memory.
const BYTES_MAX: u64 = 1 << 30;

/// A flow: addresses, ports and protocol, in the packet's byte order.
pub type Flow = [u8; 13];

/// A captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The flow it belongs to.
    pub flow: Flow,
    /// When it was captured, in ns.
    pub time_ns: u64,
    /// Size on the wire, in bytes.
    pub size_bytes: u64,
}

/// The IPv4 packets in a pcap file of Ethernet frames. Other packets are skipped.
pub fn read(path: &str) -> Outcome<Vec<Packet>> {
    let wrong = |what: &str| Failure::BadInput(format!("{path}: {what}"));
    let failed = |error: std::io::Error| wrong(&error.to_string());
    // Opening a named pipe would block until it has a writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(wrong("not a regular file"));
    }
    let mut file = File::open(path).map_err(failed)?;
    let mut head = Vec::new();
    let from = &mut file;
    from.take(24).read_to_end(&mut head).map_err(failed)?;
    if head.len() < 24 {
        return Err(wrong("not a pcap file"));
    }
    let big = head[0] == 0xa1;
    let word = |bytes: &[u8], at: usize| {
        let word = [0, 1, 2, 3].map(|byte| bytes[at + byte]);
        if big {
            u32::from_be_bytes(word)
        } else {
            u32::from_le_bytes(word)
        }
    };
    let unit_ns = match word(&head, 0) {
        0xa1b2_c3d4 => 1000,
        0xa1b2_3c4d => 1,
        _ => return Err(wrong("not a pcap file")),
    };
    if word(&head, 20) != 1 {
        return Err(wrong("the link type is not Ethernet"));
    }
    let mut all = Vec::new();
    let read = file.take(BYTES_MAX + 1).read_to_end(&mut all);
    if read.map_err(failed)? as u64 > BYTES_MAX {
        return Err(wrong(
            "larger than 1 GiB, the limit because the file is read into memory",
        ));
    }
    let mut rest = &*all;
    let mut packets = Vec::new();
    // A packet that is cut off at the end of the file is skipped too.
    while let Some((head, behind)) = rest.split_at_checked(16) {
        let Some((frame, behind)) = behind.split_at_checked(word(head, 8) as usize) else {
            break;
        };
        rest = behind;
        if let [_, _, _, _, _, _, _, _, _, _, _, _, 8, 0, ip @ ..] = frame
            && let Some(flow) = flow_of(ip)
        {
            let time_ns =
                u64::from(word(head, 0)) * 1_000_000_000 + u64::from(word(head, 4)) * unit_ns;
            let size_bytes = word(head, 12).into();
            packets.push(Packet {
                flow,
                time_ns,
                size_bytes,
            });
        }
    }
    Ok(packets)
}

/// The flow of an IPv4 packet; `None` if too little of the packet was captured.
fn flow_of(ip: &[u8]) -> Option<Flow> {
    let header = ip.get(..20)?;
    let mut flow = [0; 13];
    flow[..8].copy_from_slice(&header[12..20]);
    flow[12] = header[9];
    // Ports are at the start of TCP and UDP, which only the first fragment has.
    if matches!(header[9], 6 | 17) && header[6] & 0x1f == 0 && header[7] == 0 {
        let at = usize::from(header[0] & 0xf) * 4;
        flow[8..12].copy_from_slice(ip.get(at..at + 4)?);
    }
    Some(flow)
}
