//! A server of small files (RB² section V-C, case 3): HTTP/1.1, one request at a time.
//!
//! A message of the channel is a whole request or a whole response; the channel keeps message boundaries.
//! Requests are parsed with `httparse`; RFC 9110 and RFC 9112 define what is legal.

use headworks::ring::{MessageSender, SendError};

use super::request_response::{self, Requests, Service};
use super::wrong;
use crate::error::Result;
use crate::random::Random;

/// Length of a file in bytes, as in the paper.
pub const FILE: usize = 1024;
/// Default number of files of a site. With more than one, the client notices the response to another request.
/// With at most ten, all requests have one length, and so have all responses with a file, as some channels
/// require.
pub const FILES: u32 = 8;
/// Length in bytes of the longest request or response with a file of [`FILE`] bytes, rounded up to a cache
/// line.
pub const MESSAGE_MAX: usize = 1280;
/// Maximum number of header fields of a message: browsers send about 15.
const FIELDS_MAX: usize = 64;

/// Fetches one file at a time: sends the next request once the previous response has come and was right.
pub type Client = request_response::Client<PageRequests>;
/// Answers requests for the files of a [`Site`].
pub type Server = request_response::Server<Site>;

/// Files under the paths `/file/0`, `/file/1` and so on, with different contents.
#[derive(Clone, Debug)]
pub struct Site {
    files: Vec<Vec<u8>>,
    /// Head of the response with a file.
    head: Vec<u8>,
}

/// Response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// 200, with this file.
    File(usize),
    /// 400: the message is not an HTTP/1.1 request, or is one with a body.
    BadRequest,
    /// 404: there is no such file.
    NotFound,
    /// 405: the method is not GET.
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

/// Returns the contents of file `number` of every site.
pub fn contents(number: u32) -> Vec<u8> {
    let mut random = Random::new(number.into());
    let words = (0..FILE / 8).flat_map(|_| random.bits().to_le_bytes());
    words.collect()
}

/// Returns the path of file `number`.
pub fn path(number: u32) -> String {
    format!("/file/{number}")
}

impl Site {
    /// Makes a site of `files` files of [`FILE`] bytes each.
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

    /// Returns the reply to any message.
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
            let named = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(name);
            request.headers.iter().filter(named).count()
        };
        if count("Host") != 1 || count("Content-Length") + count("Transfer-Encoding") != 0 {
            return Reply::BadRequest;
        }
        match (method, target.starts_with('/')) {
            ("GET", true) => {}
            ("GET", false) => return Reply::BadRequest,
            _ => return Reply::NotAllowed,
        }
        let path = target.split('?').next().unwrap_or_default();
        let number = path.strip_prefix("/file/").and_then(|number| {
            // Each file has one path: no plus sign and no leading zeros.
            let canonical = number == "0" || !number.starts_with(['0', '+']);
            number.parse::<usize>().ok().filter(|_| canonical)
        });
        match number {
            Some(number) if number < self.files.len() => Reply::File(number),
            _ => Reply::NotFound,
        }
    }

    /// Returns head and body of a response.
    pub fn response(&self, reply: Reply) -> [&[u8]; 2] {
        match reply {
            Reply::File(number) if number < self.files.len() => [&self.head, &self.files[number]],
            Reply::File(_) | Reply::NotFound => [NOT_FOUND, b""],
            Reply::BadRequest => [BAD_REQUEST, b""],
            Reply::NotAllowed => [NOT_ALLOWED, b""],
        }
    }
}

impl Service for Site {
    type Request = Reply;

    const BATCH: usize = 8;
    const PROMPT: bool = true;

    fn parse(&self, message: &[u8]) -> Result<Reply> {
        Ok(self.reply(message))
    }

    fn answer(&self, to: Reply, out: &mut impl MessageSender) -> Result<(), SendError> {
        let [head, body] = self.response(to);
        out.try_send_with(head.len() + body.len(), |place| {
            let (first, second) = place.split_at_mut(head.len());
            first.copy_from_slice(head);
            second.copy_from_slice(body);
        })
    }
}

/// Makes a request as a browser sends it.
pub fn request(path: &str) -> Vec<u8> {
    let text = format!(
        "GET {path} HTTP/1.1\r\n\
         Host: files.example:8080\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
         Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
         Accept-Language: en-GB,en;q=0.5\r\n\
         Accept-Encoding: identity\r\n\
         Referer: http://files.example:8080/\r\n\
         Connection: keep-alive\r\n\
         Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
         Sec-Fetch-Dest: document\r\n\
         Sec-Fetch-Mode: navigate\r\n\
         Sec-Fetch-Site: same-origin\r\n\
         Priority: u=0, i\r\n\r\n"
    );
    text.into_bytes()
}

/// A request for each file, and the contents that the response must have.
#[derive(Clone, Debug)]
pub struct PageRequests(Vec<(Vec<u8>, Vec<u8>)>);

impl PageRequests {
    fn page(&self, number: u64) -> &(Vec<u8>, Vec<u8>) {
        &self.0[(number % self.0.len() as u64) as usize]
    }
}

impl Requests for PageRequests {
    const BATCH: usize = 1;
    const ALTERNATE: bool = true;

    fn ask(&self, number: u64, out: &mut impl MessageSender) -> Result<(), SendError> {
        let (request, _) = self.page(number);
        out.try_send_with(request.len(), |place| place.copy_from_slice(request))
    }

    fn check(&self, number: u64, response: &[u8]) -> Result<()> {
        let checked = check(response, &self.page(number).1);
        checked.map_err(|what| wrong(number, what))
    }
}

impl Client {
    /// Makes a client that sends `requests` requests, for each of the first `files` files (at least 1) in
    /// turn.
    pub fn new(files: u32, requests: u64) -> Self {
        let page = |number| (request(&path(number)), contents(number));
        let pages = PageRequests((0..files.max(1)).map(page).collect());
        Self::over(pages, requests, 1)
    }
}

/// Checks that `message` is a response with the contents of `file`; the error says what is wrong.
pub fn check(message: &[u8], file: &[u8]) -> Result<(), &'static str> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let head = match response.parse(message) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Err("it is truncated"),
        Err(_) => return Err("it is not HTTP"),
    };
    if (response.version, response.code) != (Some(1), Some(200)) {
        return Err("its status line is not HTTP/1.1 200");
    }
    let mut lengths = response
        .headers
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("Content-Length"));
    let length = lengths.next().and_then(|field| number(field.value));
    let body = message.get(head..).unwrap_or_default();
    if length != Some(body.len()) || lengths.next().is_some() {
        return Err("its Content-Length is not the length of its body");
    }
    match body == file {
        true => Ok(()),
        false => Err("its body is another file"),
    }
}

/// Parses a length: digits only.
fn number(text: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests;
