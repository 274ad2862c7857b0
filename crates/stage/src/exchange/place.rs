//! Where two processes meet: under a name on one machine, or at an address of the network.

use std::fmt;
use std::str::FromStr;

use crate::exchange::ExchangeError;

/// A place to meet. Text with a colon is an address, any other a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A name in the fabric's registry: processes of one user of one machine.
    Name(String),
    /// `HOST:PORT`, `[IPV6]:PORT`: whoever reaches it may come.
    Address(String),
}

impl FromStr for Place {
    type Err = ExchangeError;

    fn from_str(text: &str) -> Result<Self, ExchangeError> {
        let Some((host, port)) = text.rsplit_once(':') else {
            return Ok(Self::Name(text.to_owned()));
        };
        let is_bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let is_host = !host.is_empty() && (is_bracketed || !host.contains([':', '[', ']']));
        // Digits only: the standard parser takes a sign, too.
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
        match is_host && is_port {
            true => Ok(Self::Address(text.to_owned())),
            false => Err(ExchangeError::BadAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(text) | Self::Address(text) => f.write_str(text),
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
            let place: Place = text.parse().expect("an address");
            assert_eq!(place, Place::Address(text.to_owned()));
            assert_eq!(place.to_string(), text);
        }
        let name = "ring-1".parse::<Place>().expect("a name");
        assert_eq!(name, Place::Name("ring-1".to_owned()));
    }

    #[test]
    fn what_is_no_address_is_said_in_one_line() {
        for text in [
            ":7471",
            "host:",
            "host:65536",
            "host:+1",
            "2001:db8::1:80",
            "[]:80",
            "a:b",
        ] {
            let error = text.parse::<Place>().expect_err(text).to_string();
            assert!(
                error.contains(text) && error.contains("HOST:PORT"),
                "{error}"
            );
            assert_eq!(error.lines().count(), 1);
        }
    }
}
