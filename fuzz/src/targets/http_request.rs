//! A request of HTTP, and a response: what one side makes of any bytes of the other.

use headworks_workloads::apps::http::{Reply, Site, check, contents};

/// Files of the site.
const FILES: usize = 3;

pub(super) fn run(bytes: &[u8]) {
    let site = Site::new(FILES as u32);
    let reply = site.reply(bytes);
    if let Reply::File(number) = reply {
        assert!(number < FILES);
        // Blank lines in front are passed over (RFC 9112, section 2.2).
        let line = bytes.iter().position(|byte| !b"\r\n".contains(byte));
        assert!(bytes[line.unwrap_or_default()..].starts_with(b"GET /file/"));
    }
    // What is answered is what a client takes for that, and it never takes another file for its own.
    let response = site.response(reply).concat();
    for number in 0..FILES {
        let is_it = check(&response, &contents(number as u32)).is_ok();
        assert_eq!(is_it, reply == Reply::File(number));
    }
    let file = contents(0);
    if check(bytes, &file).is_ok() {
        assert!(bytes.ends_with(&file));
    }
}
