//! An HTTP request to the server, and an HTTP response to the client, of any bytes.

use headworks_workloads::apps::http::{Reply, Site, check, contents};

/// Number of files of the site.
const FILES: usize = 3;

pub(super) fn run(bytes: &[u8]) {
    let site = Site::new(FILES as u32);
    let reply = site.reply(bytes);
    if let Reply::File(number) = reply {
        assert!(number < FILES);
        // The server skips blank lines before the request line (RFC 9112, section 2.2).
        let line = bytes.iter().position(|byte| !b"\r\n".contains(byte));
        assert!(bytes[line.unwrap_or_default()..].starts_with(b"GET /file/"));
    }
    // The client must accept the response with the file that it asked for, and no response with another file.
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
