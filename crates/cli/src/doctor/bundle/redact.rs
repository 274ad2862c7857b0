//! Replaces what identifies a machine or a person by placeholders: pure. Equal ones get the same placeholder, also in
//! different spellings.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Names to replace wherever they occur as whole words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Names of this host and of others, with or without a domain.
    pub(super) hosts: Vec<String>,
    pub(super) users: Vec<String>,
    /// Serial numbers of the machine and of its parts.
    pub(super) serials: Vec<String>,
}

/// Names that identify nobody: those that many machines have, and words of the findings.
const COMMON: &[&str] = &[
    "localhost",
    "localdomain",
    "(none)",
    "root",
    "nobody",
    "ubuntu",
    "debian",
    "user",
    "vm",
];

/// Directory that has one of each user, whose name is the user's.
pub(super) const HOMES: &str = concat!("/ho", "me/");

/// The kind of text that a placeholder replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An IP or MAC address, a GID or a GUID.
    Address,
    Host,
    User,
    Serial,
    /// A description that an administrator gave to a device.
    Description,
}

impl Kind {
    const ALL: [Self; 5] = [
        Self::Address,
        Self::Host,
        Self::User,
        Self::Serial,
        Self::Description,
    ];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Address => "addr",
            Self::Host => "host",
            Self::User => "user",
            Self::Serial => "serial",
            Self::Description => "description",
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::Address => "addresses",
            Self::Host => "host names",
            Self::User => "user names",
            Self::Serial => "serial numbers",
            Self::Description => "descriptions of devices",
        }
    }
}

/// A name, and the key that all spellings of it share.
#[derive(Debug)]
struct Literal {
    kind: Kind,
    text: String,
    key: String,
}

/// Replaces names and addresses in texts.
#[derive(Debug)]
pub(super) struct Redactor {
    /// Names, the longest first.
    literals: Vec<Literal>,
    /// The replaced texts. The number of a placeholder is its place among those of its kind.
    replaced: Vec<(Kind, String)>,
}

impl Redactor {
    pub(super) fn new(names: &Names) -> Self {
        let mut literals = Vec::new();
        let mut add = |kind, text: &str, key: &str| {
            let is_common = COMMON
                .iter()
                .any(|common| text.eq_ignore_ascii_case(common));
            if !text.is_empty() && !is_common {
                let (text, key) = (text.to_owned(), key.to_ascii_lowercase());
                literals.push(Literal { kind, text, key });
            }
        };
        for host in &names.hosts {
            let host = host.trim_end_matches('.');
            match host.split_once('.') {
                // The name is the same with and without the domain.
                Some((short, domain)) if host.parse::<Ipv4Addr>().is_err() => {
                    add(Kind::Host, host, short);
                    add(Kind::Host, short, short);
                    // A domain of one label, such as `local`, is no domain of anybody.
                    if domain.contains('.') {
                        add(Kind::Host, domain, domain);
                    }
                }
                _ => add(Kind::Host, host, host),
            }
        }
        for user in &names.users {
            add(Kind::User, user, user);
        }
        for serial in &names.serials {
            add(Kind::Serial, serial, serial);
        }
        literals.sort_by_key(|literal| std::cmp::Reverse(literal.text.len()));
        Self {
            literals,
            replaced: Vec::new(),
        }
    }

    /// Returns a text without names and addresses. In a line `KEY: VALUE`, the key decides about some values: a
    /// description or a serial number is replaced as a whole, a version is kept.
    pub(super) fn text(&mut self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let content = line.trim_end_matches('\n');
            clean.push_str(&self.line(content));
            clean.push_str(&line[content.len()..]);
        }
        clean
    }

    /// Describes what was replaced: `addresses: 3 (addr-1 to addr-3), host names: 1 (host-1)`.
    pub(super) fn summary(&self) -> String {
        let of = |kind| self.replaced.iter().filter(move |(of, _)| *of == kind);
        let kinds = Kind::ALL.iter().filter_map(|kind| {
            let (count, prefix) = (of(*kind).count(), kind.prefix());
            let range = match count {
                0 => return None,
                1 => format!("{prefix}-1"),
                _ => format!("{prefix}-1 to {prefix}-{count}"),
            };
            Some(format!("{}: {count} ({range})", kind.in_words()))
        });
        let kinds: Vec<_> = kinds.collect();
        match kinds.is_empty() {
            true => "nothing".to_owned(),
            false => kinds.join(", "),
        }
    }

    fn line(&mut self, line: &str) -> String {
        let Some((key, value)) = line.split_once(": ") else {
            return self.scan(line);
        };
        let last = key.rsplit('/').next().unwrap_or_default();
        let software = ["rxe", "Software iWARP stack"];
        let kind = match last {
            "node_desc" if software.contains(&value) => return line.to_owned(),
            "node_desc" => Kind::Description,
            _ if last.starts_with("serial") => Kind::Serial,
            // A firmware's version may have four numbers, as an address has.
            "fw_ver" | "version" => {
                return format!("{}: {value}", self.scan(key));
            }
            _ => return self.scan(line),
        };
        let placeholder = self.placeholder(kind, value);
        format!("{}: {placeholder}", self.scan(key))
    }

    /// Replaces names and addresses wherever they are in a text.
    fn scan(&mut self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut at = 0;
        while let Some(next) = text[at..].chars().next() {
            let before = text[..at].chars().next_back();
            if let Some((len, literal)) = self.literal(&text[at..], before) {
                let (kind, key) = (literal.kind, literal.key.clone());
                clean.push_str(&self.placeholder(kind, &key));
                at += len;
            } else if let Some(rest) = text[at..].strip_prefix(HOMES) {
                let ends = |c: char| c.is_whitespace() || "/\"':,;)".contains(c);
                let user = &rest[..rest.find(ends).unwrap_or(rest.len())];
                clean.push_str(HOMES);
                if !user.is_empty() {
                    clean.push_str(&self.placeholder(Kind::User, user));
                }
                at += HOMES.len() + user.len();
            } else if let Some(digits) = dashed_mac(&text[at..], before) {
                clean.push_str(&self.placeholder(Kind::Address, &digits));
                at += DASHED_MAC_LEN;
            } else if is_of_run(next) {
                let rest = &text[at..];
                let run = &rest[..rest.find(|c| !is_of_run(c)).unwrap_or(rest.len())];
                let run = &run[..self.literal_behind(rest, run.len())];
                let after = rest[run.len()..].chars().next();
                let replaced = self.run(run, before, after);
                clean.push_str(&self.literals_in(&replaced, before));
                at += run.len();
            } else {
                clean.push(next);
                at += next.len_utf8();
            }
        }
        clean
    }

    /// Returns the name that a text begins with, and its length in bytes.
    fn literal(&self, text: &str, before: Option<char>) -> Option<(usize, &Literal)> {
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let found = self.literals.iter().find(|literal| {
            let len = literal.text.len();
            let Some(there) = text.get(..len) else {
                return false;
            };
            let is_same = match literal.kind {
                Kind::Host | Kind::Serial => there.eq_ignore_ascii_case(&literal.text),
                _ => there == literal.text,
            };
            is_same && !is_word(before) && !is_word(text[len..].chars().next())
        })?;
        Some((found.text.len(), found))
    }

    /// Returns where a name begins in the first `len` bytes of a text, if it ends behind them; else `len`. A run of
    /// digits may end with the first letters of a name, as in `7471:alice`.
    fn literal_behind(&self, text: &str, len: usize) -> usize {
        let mut starts = 1..len;
        let begins = |start: &usize| {
            let before = text[..*start].chars().next_back();
            let found = self.literal(&text[*start..], before);
            found.is_some_and(|(name, _)| *start + name > len)
        };
        starts.find(begins).unwrap_or(len)
    }

    /// Replaces names that consist of hexadecimal digits in a text whose addresses are replaced.
    fn literals_in(&mut self, text: &str, before: Option<char>) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut at = 0;
        while let Some(next) = text[at..].chars().next() {
            let before = text[..at].chars().next_back().or(before);
            let found = self.literal(&text[at..], before);
            if let Some((len, literal)) = found {
                let (kind, key) = (literal.kind, literal.key.clone());
                clean.push_str(&self.placeholder(kind, &key));
                at += len;
            } else {
                clean.push(next);
                at += next.len_utf8();
            }
        }
        clean
    }

    /// Replaces the addresses in a run of hexadecimal digits, colons and dots.
    fn run(&mut self, run: &str, before: Option<char>, after: Option<char>) -> String {
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let head = run.split(['.', ':']).next().unwrap_or_default();
        if let Some(key) = plain_digits(head, before) {
            let placeholder = self.placeholder(Kind::Address, &key);
            return placeholder + &self.run_from(&run[head.len()..], Some('x'), after);
        }
        if !run.contains([':', '.']) {
            return run.to_owned();
        }
        let is_separator = run.starts_with('.') || run.starts_with(':') && !run.starts_with("::");
        if is_separator {
            return run[..1].to_owned() + &self.run_from(&run[1..], Some(' '), after);
        }
        // The first group is the end of a word, as in `gid:fe80::1`, `mlx5_0:fe80::1` or `v1.2.3.4`.
        let is_end_of_word = match before {
            Some('_') => {
                let is_number = head.len() <= 3 && head.bytes().all(|digit| digit.is_ascii_digit());
                is_number && run[head.len()..].starts_with(':') && !has_full_groups(run)
            }
            _ => is_word(before),
        };
        if is_end_of_word {
            // The separator is one byte.
            let (word, rest) = run.split_at(head.len() + 1);
            return word.to_owned() + &self.run_from(rest, Some(' '), after);
        }
        let mut core = run.trim_end_matches('.');
        // The last group is the beginning of a word, as in `::devices`.
        if is_word(after)
            && !has_full_groups(core)
            && let Some(colon) = core.rfind(':')
            && !core[colon..].contains('.')
        {
            core = &core[..=colon];
        }
        if core.ends_with(':') && !core.ends_with("::") {
            core = &core[..core.len() - 1];
        }
        self.address(core) + &run[core.len()..]
    }

    /// Does what [`run`](Self::run) does, if anything is left of a run.
    fn run_from(&mut self, rest: &str, before: Option<char>, after: Option<char>) -> String {
        match rest.is_empty() {
            true => String::new(),
            false => self.run(rest, before, after),
        }
    }

    /// Returns a text that may be an address, or its placeholder.
    fn address(&mut self, text: &str) -> String {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return self.ipv4(address, text);
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return self.ipv6(address, text);
        }
        let groups: Vec<_> = text.split(':').collect();
        let are = |groups: &[&str], len| groups.iter().all(|group| group.len() == len);
        let digits = groups.concat().to_ascii_lowercase();
        if groups.len() >= 6 && are(&groups, 2) {
            return match digits.bytes().all(|digit| digit == b'0') {
                true => text.to_owned(),
                false => self.placeholder(Kind::Address, &digits),
            };
        }
        if groups.len() == 4 && are(&groups, 4) {
            return match digits.bytes().all(|digit| digit == b'0') {
                true => text.to_owned(),
                false => self.placeholder(Kind::Address, &digits),
            };
        }
        // Several addresses, or an address beside other numbers, without a gap.
        if groups.len() >= 7 || groups.windows(4).any(|four| are(four, 4)) {
            return self.placeholder(Kind::Address, &text.to_ascii_lowercase());
        }
        // An address and a port.
        let groups = groups.into_iter().map(|group| match group.parse() {
            Ok(address) => self.ipv4(address, group),
            Err(_) => group.to_owned(),
        });
        groups.collect::<Vec<_>>().join(":")
    }

    fn ipv4(&mut self, address: Ipv4Addr, text: &str) -> String {
        let is_mask = address.octets()[0] == 255;
        match address.is_unspecified() || address.is_loopback() || is_mask {
            true => text.to_owned(),
            false => self.placeholder(Kind::Address, &address.to_string()),
        }
    }

    /// Returns the placeholder of an IPv6 address. What its kind is remains visible.
    fn ipv6(&mut self, address: Ipv6Addr, text: &str) -> String {
        if let Some(inner) = address.to_ipv4_mapped() {
            return format!("::ffff:{}", self.ipv4(inner, &inner.to_string()));
        }
        let low = address.to_bits() as u64;
        let is_link_local = address.to_bits() >> 64 == 0xfe80_0000_0000_0000;
        match (is_link_local, low) {
            _ if address.is_unspecified() || address.is_loopback() => text.to_owned(),
            (true, 0) => text.to_owned(),
            // On InfiniBand the lower half is the port's GUID.
            (true, _) => format!(
                "fe80::{}",
                self.placeholder(Kind::Address, &format!("{low:016x}"))
            ),
            (false, _) => self.placeholder(Kind::Address, &address.to_string()),
        }
    }

    fn placeholder(&mut self, kind: Kind, key: &str) -> String {
        let known = |(of, there): &(Kind, String)| *of == kind && there == key;
        if !self.replaced.iter().any(known) {
            self.replaced.push((kind, key.to_owned()));
        }
        let of_kind = self.replaced.iter().filter(|(of, _)| *of == kind);
        let at = of_kind
            .map(|(_, there)| there)
            .position(|there| there == key);
        let number = at.expect("it was added if it was missing") + 1;
        format!("{}-{number}", kind.prefix())
    }
}

fn is_of_run(c: char) -> bool {
    c.is_ascii_hexdigit() || c == ':' || c == '.'
}

/// Whether a text has the groups of a MAC address, a GUID or a GID without `::`.
fn has_full_groups(text: &str) -> bool {
    let groups: Vec<_> = text.split(':').collect();
    let are = |len| groups.iter().all(|group| group.len() == len);
    groups.len() >= 6 && are(2) || [4, 8].contains(&groups.len()) && are(4)
}

/// Returns the digits of an address that is written without separators, as in the interface name `enx0c42a1000001` or
/// the GUID `0x0c42a10300000001`. `before` is the character before the digits.
fn plain_digits(digits: &str, before: Option<char>) -> Option<String> {
    let is_hex = digits.bytes().any(|digit| digit.is_ascii_alphabetic());
    let is_address = match before {
        Some('x' | 'X') => digits.len() >= 12,
        Some(c) if c.is_alphanumeric() => false,
        _ => is_hex && [12, 16, 32].contains(&digits.len()),
    };
    is_address.then(|| digits.to_ascii_lowercase())
}

/// Length of `0c-42-a1-00-00-01`.
const DASHED_MAC_LEN: usize = 17;

/// Returns the digits of a MAC address with dashes that a text begins with.
fn dashed_mac(text: &str, before: Option<char>) -> Option<String> {
    let mac = text.get(..DASHED_MAC_LEN)?;
    let is_longer = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '-');
    if is_longer(before) || is_longer(text[DASHED_MAC_LEN..].chars().next()) {
        return None;
    }
    let is_group =
        |group: &str| group.len() == 2 && group.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_mac = mac.split('-').count() == 6 && mac.split('-').all(is_group);
    is_mac.then(|| mac.replace('-', "").to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
