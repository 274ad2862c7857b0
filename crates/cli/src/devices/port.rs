//! How the port of an RDMA device is used: what the provider chose, and what sysfs says of it.

use std::path::Path;

use headworks::devices::Choice;
use headworks::verbs::DeviceName;
use serde_json::{Value, json};

use crate::rdma_facts::{self, DEVICES, NameOptions, PortFacts, in_words};

/// The port of a device, as connections use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortReport {
    choice: Choice,
    options: NameOptions,
    facts: PortFacts,
    /// Network device of the GID, and its MTU.
    net: Option<(String, u32)>,
}

impl PortReport {
    /// Reads the facts below `root` about the port that was chosen for a device.
    pub(super) fn read(root: &Path, name: &DeviceName, choice: Choice) -> Self {
        let device = root.join(DEVICES).join(name.name().unwrap_or_default());
        let port = device.join("ports").join(choice.port.to_string());
        Self {
            choice,
            options: NameOptions::of(name),
            facts: rdma_facts::port(&device, choice.port.into()),
            net: rdma_facts::net(root, &port, choice.gid_index.into()),
        }
    }

    /// Returns the name, the value and the meaning of each fact. Facts that are not known are left out.
    pub(super) fn lines(&self) -> Vec<(&'static str, String, String)> {
        let (choice, facts, options) = (&self.choice, &self.facts, self.options);
        let mut lines = vec![
            ("port", choice.port.to_string(), choice.network.to_string()),
            (
                "gid_index",
                choice.gid_index.to_string(),
                in_words::gid_reason(choice, &facts.gids, options),
            ),
        ];
        if let Some(kind) = self.gid_type() {
            lines.push(("gid_type", kind.to_owned(), String::new()));
        }
        let (index, key) = rdma_facts::pkey(choice, facts);
        if let Some(key) = key {
            let membership = in_words::membership(key).to_owned();
            lines.push(("pkey_index", index.to_string(), String::new()));
            lines.push(("pkey", key.key.to_string(), membership));
        }
        if choice.network.is_roce() {
            let class = rdma_facts::traffic_class(facts, options);
            let source = in_words::class_source(class, options, choice.port);
            lines.push(("traffic_class", class.value.to_string(), source));
        }
        if let Some((net, mtu)) = &self.net {
            lines.push(("net_mtu", mtu.to_string(), format!("of {net}")));
        }
        lines
    }

    /// Returns the same facts for programs. A fact that is not known is null.
    pub(super) fn in_json(&self) -> Value {
        let (choice, facts, options) = (&self.choice, &self.facts, self.options);
        let (pkey_index, pkey) = rdma_facts::pkey(choice, facts);
        let is_roce = choice.network.is_roce();
        let class = is_roce.then(|| rdma_facts::traffic_class(facts, options).value);
        json!({
            "number": choice.port,
            "is_up": choice.is_up,
            "network": choice.network.to_string(),
            "gid_index": choice.gid_index,
            "gid_type": self.gid_type(),
            "pkey_index": pkey_index,
            "pkey": pkey.map(|entry| entry.key.raw()),
            "traffic_class": class,
            "net": self.net.as_ref().map(|(net, _)| net),
            "net_mtu": self.net.as_ref().map(|(_, mtu)| mtu),
        })
    }

    /// Returns the type of the GID in the kernel's words.
    fn gid_type(&self) -> Option<&str> {
        let index = u16::from(self.choice.gid_index);
        let entry = self.facts.gids.iter().find(|entry| entry.index == index)?;
        entry.kind.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use headworks::devices::Network;
    use headworks::verbs::{Gid, Lid, Mtu};

    use super::*;

    const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

    fn read(name: &str, network: Network, files: &[(&str, &str)]) -> PortReport {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let gid = "::ffff:192.0.2.1".parse::<std::net::Ipv6Addr>().unwrap();
        let mut choice = Choice::new(1, network, (3, Gid(gid.octets())), Mtu::B4096);
        // As the provider chooses.
        choice.pkey_index = u16::from(name.contains("pkey_index=1"));
        PortReport::read(root.path(), &name.parse().unwrap(), choice)
    }

    fn in_text(report: &PortReport) -> Vec<String> {
        let lines = report.lines().into_iter();
        lines
            .map(|(name, value, what)| format!("{name} {value} {what}").trim().to_owned())
            .collect()
    }

    #[test]
    fn what_connections_use_is_shown_with_its_reason() {
        let files = [
            ("pkeys/0", "0xffff\n"),
            ("pkeys/1", "0x0001\n"),
            ("gids/3", "0000:0000:0000:0000:0000:ffff:c000:0201\n"),
            ("gid_attrs/types/3", "RoCE v2\n"),
            ("gid_attrs/ndevs/3", "eth0.7\n"),
        ];
        let files = files.map(|(path, text)| (format!("{PORT}/{path}"), text));
        let mut files: Vec<_> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        files.push(("sys/class/net/eth0.7/mtu", "9000\n"));
        let report = read("ibv:mlx5_0", Network::RoceV2, &files);
        let expected = [
            "port 1 RoCE v2",
            "gid_index 3 RoCE v2 over IPv4 comes first",
            "gid_type RoCE v2",
            "pkey_index 0",
            "pkey 0xffff full membership",
            "traffic_class 0 the default",
            "net_mtu 9000 of eth0.7",
        ];
        assert_eq!(in_text(&report), expected);
        let expected = json!({
            "number": 1,
            "is_up": true,
            "network": "RoCE v2",
            "gid_index": 3,
            "gid_type": "RoCE v2",
            "pkey_index": 0,
            "pkey": 0xffff,
            "traffic_class": 0,
            "net": "eth0.7",
            "net_mtu": 9000,
        });
        assert_eq!(report.in_json(), expected);
        let name = "ibv:mlx5_0,gid_index=3,pkey_index=1,traffic_class=106";
        let text = in_text(&read(name, Network::RoceV2, &files));
        for line in [
            "gid_index 3 the device's name says gid_index=3",
            "pkey_index 1",
            "pkey 0x0001 limited membership",
            "traffic_class 106 as the device's name says",
        ] {
            assert!(text.iter().any(|there| there == line), "{line}: {text:?}");
        }
    }

    #[test]
    fn facts_that_are_not_known_are_left_out() {
        let network = Network::Infiniband(Lid::new(7).unwrap());
        let report = read("ibv:mlx5_0", network, &[]);
        let expected = [
            "port 1 InfiniBand, LID 7",
            "gid_index 3 on InfiniBand the first entry, the port's own GID, is used",
        ];
        assert_eq!(in_text(&report), expected);
        assert_eq!(report.in_json()["traffic_class"], Value::Null);
        assert_eq!(report.in_json()["pkey"], Value::Null);
    }
}
