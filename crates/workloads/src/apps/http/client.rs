//! The side that asks, as a browser does.

use headworks::ring::{MessageReceiver, MessageSender};

use super::site::{contents, path};
use crate::apps::looks::Looks;
use crate::apps::{AppError, Progress, room};

/// Header fields of a response, at most.
const FIELDS_MAX: usize = 64;

/// Fetches one file after the other: the next request is sent when the response to the one before it
/// came, and was right.
#[derive(Clone, Debug)]
pub struct Client {
    /// A request for each file, and what it must be answered.
    files: Vec<(Vec<u8>, Vec<u8>)>,
    requests: u64,
    is_waiting: bool,
    answered: u64,
    looks: Looks,
}

/// A request as a browser sends it.
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

impl Client {
    /// Sends `requests` requests, for each of the first `files` files (at least 1) in turn.
    pub fn new(files: u32, requests: u64) -> Self {
        let file = |number| (request(&path(number)), contents(number));
        Self {
            files: (0..files.max(1)).map(file).collect(),
            requests,
            is_waiting: false,
            answered: 0,
            looks: Looks::default(),
        }
    }

    /// Sends the next request, or takes the response to the last one: one of the two at most, so
    /// whoever measures can read a clock between them. [`Progress::Done`] once every request was
    /// answered.
    #[inline]
    pub fn step(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<Progress, AppError> {
        if self.answered == self.requests {
            return Ok(Progress::Done);
        }
        let at = (self.answered % self.files.len() as u64) as usize;
        let (request, file) = &self.files[at];
        if !self.is_waiting {
            let ask = |place: &mut [u8]| place.copy_from_slice(request);
            if !room(out.try_send_with(request.len(), ask))? {
                self.looks.full(out, from)?;
                return Ok(Progress::Idle);
            }
            out.flush()?;
            self.is_waiting = true;
            return Ok(Progress::Worked);
        }
        let Some(checked) = from.try_recv_with(|message| check(message, file))? else {
            self.looks.empty(out, from)?;
            return Ok(Progress::Idle);
        };
        checked.map_err(|what| AppError::Answer {
            number: self.answered,
            what,
        })?;
        self.looks.found();
        self.is_waiting = false;
        self.answered += 1;
        Ok(Progress::Worked)
    }

    /// Bytes of its longest request.
    pub fn request_len(&self) -> usize {
        let requests = self.files.iter().map(|(request, _)| request.len());
        requests.max().unwrap_or_default()
    }

    /// Whether a request is on its way.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Responses that came, and were right.
    pub fn answered(&self) -> u64 {
        self.answered
    }
}

/// Whether `message` is a response that brings `file`; if not, what is wrong with it.
pub fn check(message: &[u8], file: &[u8]) -> Result<(), &'static str> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let head = match response.parse(message) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Err("it is cut off"),
        Err(_) => return Err("it is no HTTP"),
    };
    if (response.version, response.code) != (Some(1), Some(200)) {
        return Err("its status is not 200, of HTTP/1.1");
    }
    let mut lengths = response
        .headers
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("Content-Length"));
    let length = lengths.next().and_then(|field| number(field.value));
    let body = message.get(head..).unwrap_or_default();
    if length != Some(body.len()) || lengths.next().is_some() {
        return Err("its length is not the one that it says");
    }
    match body == file {
        true => Ok(()),
        false => Err("it brings another file"),
    }
}

/// A length: digits and nothing else.
fn number(text: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}
