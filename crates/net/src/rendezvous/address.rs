//! Rendezvous addresses, at which two processes meet: a name on one machine, or a network address for TCP or
//! for RDMA.

use std::fmt;
use std::str::FromStr;

use crate::NetError;

/// Prefix of a rendezvous address for RDMA.
const RDMA: &str = "rdma:";

/// A rendezvous address. Text with a colon is a network address; any other text is a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousAddr {
    /// A name in the registry of a fabric, for processes of one user on one machine.
    Name(String),
    /// `HOST:PORT` or `[IPV6]:PORT`, over TCP. Every host that can reach it may connect.
    Tcp(String),
    /// `rdma:HOST:PORT`: as `Tcp`, but by the RDMA connection manager. The text is `HOST:PORT`.
    Rdma(String),
}

impl FromStr for RendezvousAddr {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        if !text.contains(':') {
            return Ok(Self::Name(text.to_owned()));
        }
        // `rdma:7471` alone is port 7471 of a host called `rdma`.
        let over_rdma = text.strip_prefix(RDMA).filter(|rest| rest.contains(':'));
        let Some((host, port)) = over_rdma.unwrap_or(text).rsplit_once(':') else {
            return Err(NetError::BadAddress(text.to_owned()));
        };
        let is_bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let is_host = !host.is_empty() && (is_bracketed || !host.contains([':', '[', ']']));
        // Only digits are allowed, because the standard parser would take a sign, too.
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
        match (is_host && is_port, over_rdma) {
            (true, None) => Ok(Self::Tcp(text.to_owned())),
            (true, Some(rest)) => Ok(Self::Rdma(rest.to_owned())),
            (false, _) => Err(NetError::BadAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for RendezvousAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(text) | Self::Tcp(text) => f.write_str(text),
            Self::Rdma(text) => write!(f, "{RDMA}{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_makes_an_address() {
        for text in [
            "192.0.2.1:7471",
            "host.example:1",
            "[2001:db8::1]:65535",
            "x:0",
        ] {
            let place: RendezvousAddr = text.parse().expect("an address");
            assert_eq!(place, RendezvousAddr::Tcp(text.to_owned()));
            assert_eq!(place.to_string(), text);
        }
        for text in ["rdma:192.0.2.1:7471", "rdma:[2001:db8::1]:0"] {
            let place: RendezvousAddr = text.parse().expect("an address");
            assert_eq!(place, RendezvousAddr::Rdma(text[5..].to_owned()));
            assert_eq!(place.to_string(), text);
        }
        let host = "rdma:7471".parse::<RendezvousAddr>().expect("a host");
        assert_eq!(host, RendezvousAddr::Tcp("rdma:7471".to_owned()));
        let name = "ring-1".parse::<RendezvousAddr>().expect("a name");
        assert_eq!(name, RendezvousAddr::Name("ring-1".to_owned()));
    }

    #[test]
    fn an_invalid_address_is_reported_in_one_line() {
        for text in [
            ":7471",
            "host:",
            "host:65536",
            "host:+1",
            "2001:db8::1:80",
            "[]:80",
            "a:b",
            "rdma:",
            "rdma::7471",
            "rdma:host:",
            "rdma:2001:db8::1:80",
        ] {
            let error = text.parse::<RendezvousAddr>().expect_err(text).to_string();
            assert!(
                error.contains(text) && error.contains("HOST:PORT"),
                "{error}"
            );
            assert_eq!(error.lines().count(), 1);
        }
    }
}
