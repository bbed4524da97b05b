//! The format of a journal file: records one after the other, each `length checksum number entry`.
//!
//! Length and checksum are four bytes each, the lowest first. The number is the number of records
//! before this one, in decimal digits with a space after it; the entry is JSON. The checksum is the
//! CRC-32 of both. Older versions wrote no number. [`pieces`] reads a whole file. It never stops at the first record that
//! cannot be read: it searches for the next one that can, because only that tells a torn tail, which
//! a crash explains, from damage, which it does not.
//!
//! A tail is torn if the last record breaks off, or if the file system filled its end with zeros. A
//! last record that is complete and does not fit its checksum is damaged: a crash cannot cause that,
//! and its loss could make the engine delete objects. Zeros beyond the end of the last record are
//! damage too, because other records may have been there. A file without any valid record is
//! damaged, also an empty one: a journal is created with its first record.
//!
//! The numbers show whole records that are missing, repeated or in the wrong order.

use super::{Entry, Error};

/// The bytes before an entry: its length and its checksum.
pub(super) const HEAD: usize = 8;
/// The unit in which a disk writes.
const SECTOR: usize = 512;
/// Fewer zeros at the end may be a damaged byte.
const FEWEST_ZEROS: usize = 8;
/// More bytes after a record whose length cannot be read are damage.
const PAGE: usize = 4096;

/// A part of a journal file.
#[derive(Debug)]
pub(super) struct Piece {
    /// Its first byte.
    pub(super) offset: usize,
    /// The number of bytes.
    pub(super) length: usize,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Entry(Box<Entry>),
    /// The checksum fits, but this version cannot decode the entry.
    Unknown {
        kind: String,
        error: String,
    },
    /// Bytes that hold no entry. No bytes if the file is empty.
    Damaged,
    /// Records that were here once, by their numbers; the last one is not included.
    Missing {
        from: u64,
        to: u64,
    },
    /// A record that is repeated or in the wrong place.
    Misplaced {
        number: Option<u64>,
    },
    /// A record at the end that was not written completely.
    Torn,
}

/// Appends a record, which has `number` records before it in the file.
pub(super) fn encode(entry: &Entry, number: u64, out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    out.extend([0; HEAD]);
    out.extend(number.to_string().as_bytes());
    out.push(b' ');
    if let Err(error) = serde_json::to_writer(&mut *out, entry) {
        out.truncate(start);
        return Err(Error::Encoding(error));
    }
    let body = &out[start + HEAD..];
    let Ok(length) = u32::try_from(body.len()) else {
        let length = body.len();
        out.truncate(start);
        return Err(Error::TooLarge { length });
    };
    let checksum = crc32(body);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + HEAD].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// Every part of a journal file, in order. Together they cover all bytes.
pub(super) fn pieces(bytes: &[u8]) -> Vec<Piece> {
    if bytes.is_empty() {
        return vec![Piece { offset: 0, length: 0, content: Content::Damaged }];
    }
    let mut pieces = Vec::new();
    let mut order = Order::default();
    let mut offset = 0;
    while offset < bytes.len() {
        let (length, content) = match body(bytes, offset) {
            Some(body) => {
                let (number, content) = decode(body);
                let (missing, content) = order.next(number, content);
                let missing = missing.map(|content| Piece { offset, length: 0, content });
                pieces.extend(missing);
                (HEAD + body.len(), content)
            }
            None => match (offset + 1..bytes.len()).find(|next| body(bytes, *next).is_some()) {
                Some(next) => {
                    order.damaged = true;
                    (next - offset, Content::Damaged)
                }
                None if offset > 0 && is_torn(bytes, offset) => {
                    (bytes.len() - offset, Content::Torn)
                }
                None => (bytes.len() - offset, Content::Damaged),
            },
        };
        pieces.push(Piece { offset, length, content });
        offset += length;
    }
    pieces
}

/// Compares the numbers of records with their order.
#[derive(Default)]
struct Order {
    /// The number of the next record.
    next: u64,
    /// Whether a record with a number was seen.
    numbered: bool,
    /// Whether an unknown number of records was lost in damaged bytes.
    damaged: bool,
}

impl Order {
    /// The records that are missing before a record, if any, and the content of the record.
    fn next(&mut self, number: Option<u64>, content: Content) -> (Option<Content>, Content) {
        let Some(number) = number else {
            if self.numbered && matches!(content, Content::Entry(_)) {
                return (None, Content::Misplaced { number });
            }
            self.next += 1;
            return (None, content);
        };
        self.numbered = true;
        if number < self.next {
            return (None, Content::Misplaced { number: Some(number) });
        }
        let gap = number > self.next && !std::mem::take(&mut self.damaged);
        let missing = gap.then_some(Content::Missing { from: self.next, to: number });
        self.damaged = false;
        self.next = number.saturating_add(1);
        (missing, content)
    }
}

/// Length and checksum of the record that begins at `offset`.
fn head(bytes: &[u8], offset: usize) -> Option<(usize, u32)> {
    let head: [u8; HEAD] = bytes.get(offset..offset + HEAD)?.try_into().ok()?;
    let [a, b, c, d, e, f, g, h] = head;
    Some((u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h])))
}

/// The entry of the record that begins at `offset`, if it is complete and its checksum fits.
fn body(bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let (length, checksum) = head(bytes, offset)?;
    let start = offset + HEAD;
    // A number or, in older records, a JSON object or string; this spares most checksums.
    if !matches!(bytes.get(start), Some(b'0'..=b'9' | b'{' | b'"')) {
        return None;
    }
    let body = bytes.get(start..start.checked_add(length)?)?;
    (!body.is_empty() && crc32(body) == checksum).then_some(body)
}

/// The number and the entry of a record.
fn decode(body: &[u8]) -> (Option<u64>, Content) {
    let (number, json) = numbered(body).map_or((None, body), |(number, json)| (Some(number), json));
    let content = match serde_json::from_slice(json) {
        Ok(entry) => Content::Entry(Box::new(entry)),
        Err(error) => Content::Unknown { kind: kind(json), error: error.to_string() },
    };
    (number, content)
}

/// Splits a record into its number and its JSON; none if it has no number.
fn numbered(body: &[u8]) -> Option<(u64, &[u8])> {
    let end = body.iter().position(|byte| !byte.is_ascii_digit())?;
    let number = std::str::from_utf8(&body[..end]).ok()?.parse().ok()?;
    Some((number, body[end..].strip_prefix(b" ")?))
}

/// The name of the kind of an entry.
fn kind(body: &[u8]) -> String {
    match serde_json::from_slice(body) {
        Ok(serde_json::Value::Object(fields)) => fields.keys().next().cloned().unwrap_or_default(),
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

/// Whether a crash explains the bytes from `offset` to the end, which hold no valid record.
fn is_torn(bytes: &[u8], offset: usize) -> bool {
    let rest = &bytes[offset..];
    let written = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let zeros = rest.len() - written;
    let filled = zeros >= FEWEST_ZEROS && (offset + written).is_multiple_of(SECTOR);
    let whole = rest.len();
    let rest = if filled || written == 0 { &rest[..written] } else { rest };
    let Some((length, checksum)) = head(rest, 0) else {
        return whole <= PAGE;
    };
    if whole > HEAD.saturating_add(length) {
        return false;
    }
    let body = &rest[HEAD..];
    let json = numbered(body).map_or(body, |(_, json)| json);
    // A complete entry has a damaged length: the beginning of a JSON object is never one itself.
    let complete = matches!(json.first(), Some(b'{' | b'"'))
        && serde_json::from_slice::<serde::de::IgnoredAny>(json).is_ok();
    body.len() < length && crc32(body) != checksum && !complete
}

/// Eight tables, so that eight bytes are folded at a time.
const TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut index = 0;
    while index < 256 {
        let mut word = index as u32;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 { 0xEDB8_8320 ^ (word >> 1) } else { word >> 1 };
            bit += 1;
        }
        tables[0][index] = word;
        index += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut index = 0;
        while index < 256 {
            let word = tables[table - 1][index];
            tables[table][index] = tables[0][(word & 0xFF) as usize] ^ (word >> 8);
            index += 1;
        }
        table += 1;
    }
    tables
}

pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let word = words.iter().fold(!0_u32, |word, eight| {
        let folded = u64::from_le_bytes(*eight) ^ u64::from(word);
        let folded = folded.to_le_bytes();
        folded
            .iter()
            .zip(TABLES.iter().rev())
            .fold(0, |word, (byte, table)| word ^ table[usize::from(*byte)])
    });
    let word = rest
        .iter()
        .fold(word, |word, byte| TABLES[0][usize::from(byte ^ (word & 0xFF) as u8)] ^ (word >> 8));
    !word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn entry(number: u64) -> Entry {
        let key = Key::from(format!("key/{number}"));
        Entry::Commit {
            seq: number,
            changes: vec![(key, None)],
            parts: Vec::new(),
            retries: Vec::new(),
            record: None,
            revisions: None,
        }
    }

    fn file(entries: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in 0..entries {
            encode(&entry(number), number, &mut bytes).unwrap();
        }
        bytes
    }

    /// The records of a file, each for itself.
    fn records(entries: u64) -> Vec<Vec<u8>> {
        let whole = file(entries);
        let record = |piece: &Piece| whole[piece.offset..piece.offset + piece.length].to_vec();
        pieces(&whole).iter().map(record).collect()
    }

    #[test]
    fn missing_repeated_and_swapped_records_are_noticed() {
        let records = records(6);
        let order = |order: &[usize]| -> Vec<String> {
            let bytes: Vec<u8> = order.iter().flat_map(|at| records[*at].clone()).collect();
            let problem = |piece: &Piece| match &piece.content {
                Content::Entry(_) => None,
                other => Some(format!("{other:?}")),
            };
            pieces(&bytes).iter().filter_map(problem).collect()
        };
        let missing = |from: u64, to: u64| format!("{:?}", Content::Missing { from, to });
        let misplaced = |number: u64| format!("{:?}", Content::Misplaced { number: Some(number) });
        assert!(order(&[0, 1, 2, 3, 4, 5]).is_empty());
        assert_eq!(order(&[0, 1, 4, 5]), [missing(2, 4)]);
        assert_eq!(order(&[2, 3, 4, 5]), [missing(0, 2)]);
        assert_eq!(order(&[0, 1, 2, 2, 3]), [misplaced(2)]);
        assert_eq!(order(&[0, 1, 2, 3, 0]), [misplaced(0)]);
        assert_eq!(order(&[0, 2, 1, 3]), [missing(1, 2), misplaced(1)]);
    }

    #[test]
    fn records_without_a_number_are_accepted_before_the_first_number() {
        let old = |number: u64| {
            let body = serde_json::to_vec(&entry(number)).unwrap();
            let mut bytes = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
            bytes.extend(crc32(&body).to_le_bytes());
            bytes.extend(body);
            bytes
        };
        let new = records(4);
        let good = [old(0), old(1), new[2].clone(), new[3].clone()].concat();
        assert!(pieces(&good).iter().all(sane));
        let lost = [old(0), new[2].clone(), new[3].clone()].concat();
        assert!(matches!(pieces(&lost)[1].content, Content::Missing { from: 1, to: 2 }));
        let stale = [new[0].clone(), old(0)].concat();
        assert!(matches!(pieces(&stale)[1].content, Content::Misplaced { number: None }));
    }

    #[test]
    fn zeros_in_the_place_of_several_records_are_damage() {
        for (from, whole) in [(4096, file(200)), (0, file(200)), (0, file(1)), (0, Vec::new())] {
            let mut bytes = whole;
            bytes[from..].fill(0);
            let found = pieces(&bytes);
            let last = found.last().map(|piece| &piece.content);
            assert!(matches!(last, Some(Content::Damaged)), "from {from}: {last:?}");
        }
    }

    fn sane(piece: &Piece) -> bool {
        matches!(piece.content, Content::Entry(_))
    }

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414F_A339);
    }

    #[test]
    fn a_changed_byte_is_damage_and_never_a_torn_tail() {
        let whole = file(3);
        assert_eq!(pieces(&whole).iter().filter(|piece| sane(piece)).count(), 3);
        for position in 0..whole.len() {
            let zeroed = whole[position];
            for change in [0x01, 0x80, 0xFF, zeroed].into_iter().filter(|change| *change != 0) {
                let mut bytes = whole.clone();
                bytes[position] ^= change;
                let found = pieces(&bytes);
                assert_eq!(found.iter().map(|piece| piece.length).sum::<usize>(), bytes.len());
                assert_eq!(found.iter().filter(|piece| sane(piece)).count(), 2, "{position}");
                let damaged = found.iter().any(|piece| matches!(piece.content, Content::Damaged));
                assert!(damaged, "byte {position} by {change:02x}: {found:?}");
            }
        }
    }

    #[test]
    fn a_file_that_breaks_off_has_a_torn_tail() {
        let whole = file(3);
        let records = pieces(&whole);
        let ends: Vec<usize> = records.iter().map(|piece| piece.offset + piece.length).collect();
        for length in ends[0]..whole.len() {
            let found = pieces(&whole[..length]);
            let torn = found.iter().any(|piece| matches!(piece.content, Content::Torn));
            assert_eq!(torn, !ends.contains(&length), "{length}: {found:?}");
            assert!(!found.iter().any(|piece| matches!(piece.content, Content::Damaged)));
        }
    }

    #[test]
    fn zeros_that_a_file_system_adds_are_a_torn_tail() {
        let mut bytes = file(3);
        bytes.extend([0; 4096]);
        let found = pieces(&bytes);
        assert!(matches!(found.last().map(|piece| &piece.content), Some(Content::Torn)));
        // The last record reaches into a sector that was never written.
        let mut bytes = file(40);
        let records = pieces(&bytes);
        let last = records.iter().find(|piece| {
            let end = piece.offset + piece.length;
            let sector = end / SECTOR * SECTOR;
            sector > piece.offset + HEAD + 2 && end - sector >= FEWEST_ZEROS
        });
        let last = last.map(|piece| (piece.offset, piece.offset + piece.length)).unwrap();
        bytes.truncate(last.1);
        bytes[last.1 / SECTOR * SECTOR..].fill(0);
        let found = pieces(&bytes);
        let torn = found.last().unwrap();
        assert!(matches!(torn.content, Content::Torn) && torn.offset == last.0, "{torn:?}");
    }

    #[test]
    fn kinds_of_a_newer_version_are_named() {
        let body = br#"{"Later":{"seq":7}}"#;
        let mut bytes = file(1);
        bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
        bytes.extend(crc32(body).to_le_bytes());
        bytes.extend(body);
        let found = pieces(&bytes);
        let Content::Unknown { kind, .. } = &found[1].content else { panic!("{found:?}") };
        assert_eq!(kind, "Later");
    }
}
