//! The files of a server, and what it answers to any bytes.

use super::FILE;
use crate::random::Random;

/// Header fields of a request, at most: browsers send some 15.
const FIELDS_MAX: usize = 64;

/// Files under the paths `/file/0`, `/file/1` and so on, each of its own contents.
#[derive(Clone, Debug)]
pub struct Site {
    files: Vec<Vec<u8>>,
    /// In front of each.
    head: Vec<u8>,
}

/// What a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// 200, and this file.
    File(usize),
    /// 400: the bytes are no request of HTTP/1.1, or one with a body.
    BadRequest,
    /// 404: there is no such file.
    NotFound,
    /// 405: something else than GET.
    NotAllowed,
}

const BAD_REQUEST: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nServer: headworks\r\nContent-Type: text/plain\r\n\
    Content-Length: 12\r\n\r\nBad request\n";
const NOT_FOUND: &[u8] =
    b"HTTP/1.1 404 Not Found\r\nServer: headworks\r\nContent-Type: text/plain\r\n\
    Content-Length: 13\r\n\r\nNo such file\n";
const NOT_ALLOWED: &[u8] =
    b"HTTP/1.1 405 Method Not Allowed\r\nServer: headworks\r\nAllow: GET\r\n\
    Content-Type: text/plain\r\nContent-Length: 9\r\n\r\nGET only\n";

/// The contents of file `number` of every site.
pub fn contents(number: u32) -> Vec<u8> {
    let mut random = Random::new(number.into());
    let words = (0..FILE / 8).flat_map(|_| random.word().to_le_bytes());
    words.collect()
}

/// The path of file `number`.
pub fn path(number: u32) -> String {
    format!("/file/{number}")
}

impl Site {
    /// With so many files of [`FILE`] bytes.
    pub fn new(files: u32) -> Self {
        // A server without a clock sends no Date (RFC 9110, section 6.6.1).
        let head = format!(
            "HTTP/1.1 200 OK\r\nServer: headworks\r\nContent-Type: application/octet-stream\r\n\
             Content-Length: {FILE}\r\nCache-Control: no-cache\r\nConnection: keep-alive\r\n\r\n"
        );
        Self {
            files: (0..files).map(contents).collect(),
            head: head.into_bytes(),
        }
    }

    /// What to answer to a message, whatever it is.
    pub fn reply(&self, message: &[u8]) -> Reply {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let whole = match request.parse(message) {
            Ok(httparse::Status::Complete(length)) => length == message.len(),
            Ok(httparse::Status::Partial) | Err(_) => false,
        };
        let (Some(method), Some(target), Some(1), true) =
            (request.method, request.path, request.version, whole)
        else {
            return Reply::BadRequest;
        };
        let count = |name: &str| {
            let fields = request.headers.iter();
            fields
                .filter(|field| field.name.eq_ignore_ascii_case(name))
                .count()
        };
        if count("Host") != 1 || count("Content-Length") + count("Transfer-Encoding") != 0 {
            return Reply::BadRequest;
        }
        if method != "GET" {
            return Reply::NotAllowed;
        }
        if !target.starts_with('/') {
            return Reply::BadRequest;
        }
        let path = target.split('?').next().unwrap_or_default();
        let number = path.strip_prefix("/file/").and_then(|number| {
            // One path for each file: no plus sign, no zeros in front.
            let canonical = number == "0" || !number.starts_with(['0', '+']);
            number.parse::<usize>().ok().filter(|_| canonical)
        });
        match number {
            Some(number) if number < self.files.len() => Reply::File(number),
            _ => Reply::NotFound,
        }
    }

    /// Bytes of a response that brings a file.
    pub fn response_len(&self) -> usize {
        self.head.len() + FILE
    }

    /// Head and body of a response.
    pub fn response(&self, reply: Reply) -> [&[u8]; 2] {
        match reply {
            Reply::File(number) => match self.files.get(number) {
                Some(file) => [&self.head, file],
                None => [NOT_FOUND, b""],
            },
            Reply::BadRequest => [BAD_REQUEST, b""],
            Reply::NotFound => [NOT_FOUND, b""],
            Reply::NotAllowed => [NOT_ALLOWED, b""],
        }
    }
}
