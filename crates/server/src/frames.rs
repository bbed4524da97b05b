//! Follows the frames of an HTTP/2 connection far enough to know whether a request head is
//! incomplete.
//!
//! The HTTP library waits without a limit for the rest of a header block. The sweep of connections
//! closes those whose head takes too long, so it must know when one began: [`Frames::pass`] reads
//! the frame headers of the bytes that arrive and steps over their payloads. It changes nothing,
//! and leaves every judgement about the frames themselves to the library.

/// The bytes that a client sends before its first frame (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// Length, type, flags and stream (RFC 9113, section 4.1).
const HEADER: usize = 9;

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;

/// Follows the frames of one connection.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Bytes that belong to the preface or to the payload of the current frame.
    payload: usize,
    /// The frame header so far.
    header: [u8; HEADER],
    received: usize,
    kind: u8,
    /// Whether a header block began and its last frame did not.
    block: bool,
}

impl Frames {
    pub(crate) fn new() -> Self {
        Self { payload: PREFACE, header: [0; HEADER], received: 0, kind: DATA, block: false }
    }

    /// Takes the next bytes of the connection. Returns whether they leave a head incomplete: a
    /// header block, or any frame but one of a body.
    pub(crate) fn pass(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if self.payload > 0 {
                let here = self.payload.min(bytes.len());
                self.payload -= here;
                bytes = &bytes[here..];
                continue;
            }
            let here = (HEADER - self.received).min(bytes.len());
            self.header[self.received..self.received + here].copy_from_slice(&bytes[..here]);
            self.received += here;
            bytes = &bytes[here..];
            if self.received == HEADER {
                self.received = 0;
                self.begin();
            }
        }
        self.block || self.received > 0 || (self.payload > 0 && self.kind != DATA)
    }

    fn begin(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.kind = kind;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.block = flags & END_HEADERS == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        frame.resize(HEADER + payload, 7);
        frame
    }

    fn follow(frames: &[Vec<u8>], cuts: &[usize]) -> bool {
        let mut bytes = vec![0; PREFACE];
        bytes.extend(frames.concat());
        let (mut follower, mut rest, mut open) = (Frames::new(), bytes.as_slice(), false);
        for cut in cuts.iter().chain([&usize::MAX]) {
            let (piece, left) = rest.split_at((*cut).min(rest.len()));
            open = follower.pass(piece);
            rest = left;
        }
        open
    }

    #[test]
    fn a_head_is_incomplete_until_the_last_frame_of_its_block_arrived() {
        let settings = || frame(4, 0, 12);
        let mut cut = frame(HEADERS, END_HEADERS, 40);
        cut.truncate(20);
        let mut body = frame(DATA, 0, 4000);
        body.truncate(200);
        let cases = [
            (vec![], false),
            (vec![settings()], false),
            (vec![settings(), vec![0; 3]], true),
            (vec![settings(), frame(HEADERS, END_HEADERS, 40)], false),
            (vec![settings(), frame(HEADERS, 0, 40)], true),
            (vec![frame(HEADERS, 0, 40), frame(CONTINUATION, 0, 0)], true),
            (vec![frame(HEADERS, 0, 0), frame(CONTINUATION, END_HEADERS, 9)], false),
            (vec![cut], true),
            (vec![frame(HEADERS, END_HEADERS, 40), body], false),
        ];
        for (frames, open) in cases {
            assert_eq!(follow(&frames, &[]), open, "{frames:?}");
        }
    }

    proptest! {
        #[test]
        fn the_answer_does_not_depend_on_how_the_bytes_are_cut(
            frames in proptest::collection::vec(
                (0_u8..10, any::<u8>(), 0_usize..60).prop_map(|(k, f, n)| frame(k, f, n)), 0..8),
            cuts in proptest::collection::vec(0_usize..40, 0..30),
        ) {
            prop_assert_eq!(follow(&frames, &cuts), follow(&frames, &[]));
        }
    }
}
