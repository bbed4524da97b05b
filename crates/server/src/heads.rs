//! Where the heads of HTTP/1 requests lie on a connection, and that every line of them ends in CRLF.
//!
//! The parser of the HTTP library takes a bare LF for the end of a line. A proxy in front may not,
//! and two that read one stream differently are how requests are smuggled past it. So the bytes of a
//! connection pass through here first: [`Heads`] follows heads and bodies and turns a bare LF in a
//! head into NUL, which the parser answers with 400. Heads that leave it open where their body ends
//! (more than one length, or a length beside `chunked`, or another encoding) are refused in the same way, and
//! so are chunks without a size.
//!
//! A head costs one search for LF a line; a body with a length is stepped over.

use memchr::memchr;

/// How much of a line is kept when it arrives in pieces: enough for the two that matter.
const KEPT: usize = 64;

/// The part of a request that comes next on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// So many bytes of a body.
    Body(u64),
    /// The line with the size of the next chunk.
    Size,
    /// So many bytes of a chunk, its CRLF included.
    Chunk(u64),
    Trailers,
    /// A head was refused; nothing that follows matters.
    Refused,
}

/// The framing of the body that follows a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Framing {
    length: Option<u64>,
    chunked: bool,
}

/// Follows the requests on one connection.
#[derive(Debug)]
pub(crate) struct Heads {
    state: State,
    framing: Framing,
    /// Whether the head has a line already.
    begun: bool,
    /// The line so far, if it did not arrive at once.
    kept: [u8; KEPT],
    /// How long it is, whether all of it was kept or not.
    length: usize,
    /// Its last byte.
    last: u8,
}

impl Heads {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Head,
            framing: Framing::default(),
            begun: false,
            kept: [0; KEPT],
            length: 0,
            last: 0,
        }
    }

    /// Looks at the next bytes of the connection, and changes those the parser shall refuse.
    pub(crate) fn pass(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                State::Refused => return,
                State::Body(left) | State::Chunk(left) => {
                    let here = left.min((bytes.len() - at) as u64);
                    at += usize::try_from(here).unwrap_or(usize::MAX);
                    self.state = match (self.state, left - here) {
                        (State::Body(_), 0) => State::Head,
                        (State::Body(_), left) => State::Body(left),
                        (_, 0) => State::Size,
                        (_, left) => State::Chunk(left),
                    };
                }
                State::Head | State::Size | State::Trailers => {
                    let Some(end) = memchr(b'\n', &bytes[at..]).map(|end| at + end) else {
                        self.keep(&bytes[at..]);
                        return;
                    };
                    let last = if end > at { bytes[end - 1] } else { self.last };
                    let ends_well = last == b'\r' && self.length + (end - at) > 0;
                    if !(ends_well && self.line(&bytes[at..end])) {
                        bytes[end] = 0;
                        self.state = State::Refused;
                        return;
                    }
                    (self.length, self.last) = (0, 0);
                    at = end + 1;
                }
            }
        }
    }

    /// Whether a head began and has not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Head && (self.begun || self.length > 0)
    }

    fn keep(&mut self, piece: &[u8]) {
        if let Some(room) = self.kept.get_mut(self.length..) {
            let fits = room.len().min(piece.len());
            room[..fits].copy_from_slice(&piece[..fits]);
        }
        self.length += piece.len();
        self.last = piece.last().copied().unwrap_or(self.last);
    }

    /// Takes a line that ends in CR. Says whether the request may go on.
    fn line(&mut self, piece: &[u8]) -> bool {
        if self.length == 0 {
            return self.whole(&piece[..piece.len() - 1]);
        }
        self.keep(piece);
        let (kept, length) = (self.kept, self.length - 1);
        if length <= KEPT {
            return self.whole(&kept[..length]);
        }
        // Only a padded field that matters is longer.
        let long = self.state == State::Head && (field(&kept, LENGTH) || field(&kept, ENCODING));
        match self.state {
            // A size of that many digits may go on behind them.
            State::Size => digits(&kept) < KEPT && self.whole(&kept),
            _ => {
                self.begun = true;
                !long
            }
        }
    }

    /// Takes a line without its end.
    fn whole(&mut self, line: &[u8]) -> bool {
        match (self.state, line) {
            (State::Size, line) => {
                let size = std::str::from_utf8(&line[..digits(line)]).ok();
                let size = size.and_then(|size| u64::from_str_radix(size, 16).ok());
                // The chunk and its CRLF.
                let Some((size, whole)) = size.and_then(|size| Some((size, size.checked_add(2)?)))
                else {
                    return false;
                };
                self.state = if size == 0 { State::Trailers } else { State::Chunk(whole) };
            }
            (State::Trailers, []) => self.next_head(),
            (State::Head, []) if self.begun => {
                let state = match self.framing {
                    Framing { length: Some(_), chunked: true } => return false,
                    Framing { chunked: true, .. } => State::Size,
                    Framing { length: None | Some(0), .. } => State::Head,
                    Framing { length: Some(length), .. } => State::Body(length),
                };
                self.next_head();
                self.state = state;
            }
            // Empty lines before a request do no harm.
            (State::Head, []) => {}
            (State::Head, line) => {
                self.begun = true;
                return self.framed(line);
            }
            _ => {}
        }
        true
    }

    fn next_head(&mut self) {
        (self.state, self.framing, self.begun) = (State::Head, Framing::default(), false);
    }

    /// Takes a line of a head. Says whether it leaves no doubt about the body.
    fn framed(&mut self, line: &[u8]) -> bool {
        let framing = &mut self.framing;
        if field(line, LENGTH) {
            let digits = line[LENGTH.len()..].trim_ascii();
            let length = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'));
            let length = length.and_then(|text| text.parse().ok());
            let first = framing.length.is_none();
            framing.length = length;
            return length.is_some() && first;
        }
        if field(line, ENCODING) {
            let encoding = line[ENCODING.len()..].trim_ascii();
            let first = !framing.chunked;
            framing.chunked = true;
            return first && encoding.eq_ignore_ascii_case(b"chunked");
        }
        true
    }
}

const LENGTH: &[u8] = b"content-length:";
const ENCODING: &[u8] = b"transfer-encoding:";

fn digits(line: &[u8]) -> usize {
    line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count()
}

fn field(line: &[u8], name: &[u8]) -> bool {
    line.len() >= name.len() && line[..name.len()].eq_ignore_ascii_case(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Passes a stream in pieces; what comes out, and whether a head is awaited at the end.
    fn pass(stream: &[u8], cuts: &[usize]) -> (Vec<u8>, bool) {
        let mut heads = Heads::new();
        let mut out = stream.to_vec();
        let mut rest = out.as_mut_slice();
        for cut in cuts {
            let (piece, left) = rest.split_at_mut((*cut).min(rest.len()));
            heads.pass(piece);
            rest = left;
        }
        heads.pass(rest);
        let fresh = heads.state == State::Head && !heads.is_open();
        (out, fresh)
    }

    #[test]
    fn heads_that_are_ambiguous_are_refused_and_others_are_not() {
        let cases: [(&str, bool); 16] = [
            ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", true),
            ("\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n", true),
            ("POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\n\n\n\n", true),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", false),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n2;x=\"y\"\r\n\n\n\r\n0\r\na: b\r\n\r\n",
                true,
            ),
            ("GET / HTTP/1.1\nhost: x\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: x\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: x\r\n\n", false),
            ("\nGET / HTTP/1.1\r\nhost: x\r\n\r\n", false),
            ("POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabcGET / HTTP/1.1\n\r\n", false),
            ("POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n", false),
            ("POST / HTTP/1.1\r\ncontent-length: 3, 3\r\n\r\n", false),
            ("POST / HTTP/1.1\r\ncontent-length: +3\r\n\r\n", false),
            ("POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n", false),
            ("POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", false),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\n\r\n", false),
        ];
        for (stream, taken) in cases {
            for cut in 0..stream.len() {
                let (out, fresh) = pass(stream.as_bytes(), &[cut]);
                assert_eq!(out == stream.as_bytes(), taken, "{stream:?} cut at {cut}");
                assert!(fresh || !taken, "{stream:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn long_lines_are_followed_and_padded_lengths_refused() {
        let long = "x".repeat(500);
        let padded = format!("content-length:{}5", " ".repeat(100));
        for (line, taken) in [(format!("cookie: {long}"), true), (padded, false)] {
            let stream = format!("GET /{long} HTTP/1.1\r\n{line}\r\n\r\n");
            for cut in 0..stream.len() {
                let (out, fresh) = pass(stream.as_bytes(), &[cut]);
                // A line that arrives at once is read whatever its length.
                let whole = out == stream.as_bytes();
                assert!(whole || !taken, "{stream:?} cut at {cut}");
                assert!(fresh || !taken, "{stream:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_chunk_without_a_size_is_refused_where_its_line_ends() {
        let padded = "0".repeat(70);
        for size in ["x", "", "fffffffffffffffff", "ffffffffffffffff", "-1", &padded] {
            let stream = format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{size}\r\n");
            let head = stream.len() - size.len() - 2;
            let (out, _) = pass(stream.as_bytes(), &[head, 1]);
            let changed = out.iter().zip(stream.as_bytes()).position(|(out, sent)| out != sent);
            assert_eq!(changed, Some(stream.len() - 1), "{size:?}");
        }
    }

    fn request() -> impl Strategy<Value = (String, Vec<usize>)> {
        let body = prop_oneof![
            Just(None),
            "[a\r\n]{0,9}".prop_map(|body| Some((body, false))),
            "[a\r\n]{1,9}".prop_map(|body| Some((body, true))),
        ];
        ("[A-Z]{1,8}", "[a-z0-9]{0,80}", proptest::collection::vec("[ -~]{0,70}", 0..4), body)
            .prop_map(|(method, path, values, body)| {
                let mut head = format!("{method} /{path} HTTP/1.1\r\n");
                for value in values {
                    head.push_str(&format!("field: {value}\r\n"));
                }
                match &body {
                    Some((_, true)) => head.push_str("transfer-encoding: chunked\r\n"),
                    Some((body, false)) => {
                        head.push_str(&format!("content-length: {}\r\n", body.len()));
                    }
                    None => {}
                }
                head.push_str("\r\n");
                let ends = head.match_indices('\n').map(|(at, _)| at).collect();
                let body = match body {
                    Some((body, true)) => format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
                    Some((body, false)) => body,
                    None => String::new(),
                };
                (head + &body, ends)
            })
    }

    proptest! {
        #[test]
        fn however_requests_are_cut_they_pass_and_a_bare_line_end_does_not(
            requests in proptest::collection::vec(request(), 1..5),
            cuts in proptest::collection::vec(0_usize..60, 0..12),
            which in any::<prop::sample::Index>(),
        ) {
            let mut stream = String::new();
            let mut ends = Vec::new();
            for (request, found) in &requests {
                ends.extend(found.iter().map(|end| stream.len() + end));
                stream.push_str(request);
            }
            let (out, fresh) = pass(stream.as_bytes(), &cuts);
            prop_assert_eq!(&out, stream.as_bytes());
            prop_assert!(fresh);
            let end = ends[which.index(ends.len())];
            let mut bare = stream.into_bytes();
            bare.remove(end - 1);
            let (out, _) = pass(&bare, &cuts);
            let changed: Vec<_> = (0..bare.len()).filter(|at| out[*at] != bare[*at]).collect();
            prop_assert_eq!(changed, [end - 1]);
        }
    }
}
