//! Tests of redaction: replaced texts, kept texts, equal spellings.

use super::*;

fn redactor() -> Redactor {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Redactor::new(&Names {
        hosts: names(&["node7.example.com", "gateway", "localhost", "box.local", ""]),
        users: names(&["alice", "ada", "root"]),
        serials: names(&["MT2049X01234"]),
    })
}

fn clean(text: &str) -> String {
    redactor().text(text)
}

/// Checks that a text is kept.
fn is_kept(text: &str) {
    assert_eq!(clean(text), text);
}

#[test]
fn each_kind_of_address_is_replaced() {
    for (text, expected) in [
        ("192.0.2.1", "addr-1"),
        ("at 192.0.2.1.", "at addr-1."),
        ("192.0.2.1/24", "addr-1/24"),
        ("192.0.2.1:7471", "addr-1:7471"),
        ("(192.0.2.1)", "(addr-1)"),
        ("2001:db8::17", "addr-1"),
        ("[2001:db8::17]:7471", "[addr-1]:7471"),
        ("2001:0db8:0000:0000:0000:0000:0000:0017", "addr-1"),
        ("fe80::e42:a1ff:fe00:1%eth0", "fe80::addr-1%eth0"),
        ("::ffff:192.0.2.1, RoCE v2", "::ffff:addr-1, RoCE v2"),
        ("0000:0000:0000:0000:0000:ffff:c000:0201", "::ffff:addr-1"),
        ("0c:42:a1:00:00:01", "addr-1"),
        ("0C-42-A1-00-00-01", "addr-1"),
        (
            "00:00:10:87:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:00:00:01",
            "addr-1",
        ),
        ("0c42:a103:0000:0001", "addr-1"),
        ("0x0c42a10300000001", "0xaddr-1"),
        ("enx0c42a1000001", "enxaddr-1"),
        ("enx0c42a1000001.7", "enxaddr-1.7"),
        ("rocex0c42a10300000001", "rocexaddr-1"),
        ("0c42a1000001", "addr-1"),
        ("gid:fe80::e42:a1ff:fe00:1", "gid:fe80::addr-1"),
        ("gid0:2001:db8:0:0:0:0:0:17", "gid0:addr-1"),
        ("mlx5_0:192.0.2.1", "mlx5_0:addr-1"),
        // Numbers that touch an address.
        ("1:2001:db8:0:0:0:0:0:17", "addr-1"),
        ("7:0c42:a103:0000:0001", "addr-1"),
    ] {
        assert_eq!(clean(text), expected, "{text}");
    }
}

#[test]
fn no_neighbour_hides_an_address() {
    let neighbours = [
        "", " ", "=", ":", ";", ",", "/", "(", ")", "\"", "'", "@", "%", "-", "_", "a=", "gid:",
        "7 ",
    ];
    for (address, part) in [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::17:18", "17:18"),
        ("fe80::e42:a1ff:fe12:3456", "fe12:3456"),
        ("2001:0db8:0000:0000:0000:0000:0017:0018", "0017:0018"),
        ("0c:42:a1:12:34:56", "12:34:56"),
        ("0c42:a103:0012:3456", "0012:3456"),
        ("enx0c42a1123456", "a1123456"),
        ("alice", "alice"),
        ("node7.example.com", "node7"),
    ] {
        for before in neighbours.iter().chain(&["log.", "."]) {
            // A letter or digit behind an address is part of another word.
            let apart = neighbours
                .iter()
                .filter(|text| !text.starts_with(char::is_alphanumeric));
            for after in apart.chain(&[".log", "."]) {
                let text = format!("{before}{address}{after}");
                let clean = clean(&text);
                assert!(!clean.contains(part), "{text}: {clean}");
            }
        }
    }
}

#[test]
fn what_only_looks_like_an_address_is_kept() {
    for text in [
        "0000:3b:00.0",
        "0000:00:02.3 and 3b:00.1",
        "6.1.0-13-amd64",
        "/lib64/libibverbs.so.1/version: libibverbs.so.1.14.44.0",
        "v1.2.3.4",
        "1.2.3.4.5",
        "999.0.2.1",
        "fw_ver: 216.0.51.0",
        "mlx5_core/version: 5.8.1.1",
        "headworks::devices, x::y",
        "0::/user.slice",
        "12:30:45",
        "0-3,8-11",
        "123456789012",
        "0x2651e848",
        "MT_0000000012",
        "commit-g0123456789ab",
        "255.255.255.0",
        // These have no owner.
        "0.0.0.0:7471",
        "127.0.0.1",
        "::1",
        "fe80:0000:0000:0000:0000:0000:0000:0000",
        "0000:0000:0000:0000",
        "00:00:00:00:00:00",
        "mlx5_0, cafe, dead: beef.",
        "ü ::ffff:127.0.0.1",
    ] {
        is_kept(text);
    }
}

#[test]
fn spellings_of_one_address_have_one_placeholder() {
    for (text, expected) in [
        ("192.0.2.1 ::ffff:192.0.2.1", "addr-1 ::ffff:addr-1"),
        (
            "2001:db8::17 2001:0DB8:0:0:0:0:0:0017 2001:db8::18",
            "addr-1 addr-1 addr-2",
        ),
        (
            "0c42:a103:0000:0001 fe80::c42:a103:0:1 0x0c42a10300000001",
            "addr-1 fe80::addr-1 0xaddr-1",
        ),
        (
            "0c:42:a1:00:00:01 0C-42-A1-00-00-01 enx0c42a1000001",
            "addr-1 addr-1 enxaddr-1",
        ),
    ] {
        assert_eq!(clean(text), expected);
    }
}

#[test]
fn names_are_replaced_as_whole_words() {
    for (text, expected) in [
        ("node7.example.com node7 NODE7", "host-1 host-1 host-1"),
        ("a.example.com", "a.host-1"),
        ("node7_mlx5 node70", "host-1_mlx5 node70"),
        ("gateway:7471", "host-1:7471"),
        ("box.local box local_ack", "host-1 host-1 local_ack"),
        ("alice, Alice, malice", "user-1, Alice, malice"),
        // Names that begin or consist of hexadecimal digits.
        ("7471:alice 7471.alice", "7471:user-1 7471.user-1"),
        ("192.0.2.1:ada 7:ada ada", "addr-1:user-1 7:user-1 user-1"),
        ("S/N mt2049x01234", "S/N serial-1"),
    ] {
        assert_eq!(clean(text), expected, "{text}");
    }
    is_kept("localhost root user (none)");
    let text = format!("{HOMES}alice/x {HOMES}bob \"{HOMES}bob\" {HOMES}");
    let expected = format!("{HOMES}user-1/x {HOMES}user-2 \"{HOMES}user-2\" {HOMES}");
    assert_eq!(clean(&text), expected);
}

#[test]
fn the_key_of_a_line_decides_about_its_value() {
    for (text, expected) in [
        ("node_desc: node9 HCA-1\n", "node_desc: description-1\n"),
        (
            "device/serial_number: X1\n",
            "device/serial_number: serial-1\n",
        ),
        ("serial: X1", "serial: serial-1"),
        ("node_guid: 0c42:a103:0000:0001", "node_guid: addr-1"),
        (
            "rdma/192.0.2.1/fw_ver: 1.2.3.4",
            "rdma/addr-1/fw_ver: 1.2.3.4",
        ),
    ] {
        assert_eq!(clean(text), expected);
    }
    is_kept("node_desc: rxe\n");
    is_kept("\n\nno end of line");
}

#[test]
fn placeholders_last_for_all_texts_and_are_counted() {
    let mut redactor = redactor();
    assert_eq!(redactor.summary(), "nothing");
    assert_eq!(redactor.text("192.0.2.1 192.0.2.2"), "addr-1 addr-2");
    assert_eq!(redactor.text("alice at 192.0.2.2"), "user-1 at addr-2");
    let expected = "addresses: 2 (addr-1 to addr-2), user names: 1 (user-1)";
    assert_eq!(redactor.summary(), expected);
}
