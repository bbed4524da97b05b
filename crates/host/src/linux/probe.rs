//! Finds well-known signatures by reading the disk itself.
//!
//! This is the quick look, done at every turn. Before anything destructive the gate also asks wipefs
//! (and blkid, where there is anything), which know more kinds; what any of the three finds counts.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::{Class, Contents, Signature};

/// The beginning of a disk that is always read: the last signature in it is that of btrfs.
const HEAD: usize = 72 << 10;
/// Where ZFS keeps its uberblocks, and how many there are of how many bytes each.
const UBERS: (u64, usize, usize) = (128 << 10, 128, 1 << 10);

thread_local! {
    /// The buffer of a thread. Allocating so much for each probe costs more than reading it.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// So many zeros.
fn zeroed(buffer: &mut Vec<u8>, length: usize) -> &mut [u8] {
    buffer.clear();
    buffer.resize(length, 0);
    buffer
}

/// Reads what is on a disk of `size` bytes.
pub(crate) fn probe(file: &File, size: u64, sector: u64) -> io::Result<Contents> {
    // Read no more than is asked for: reading ahead would be most of the work. A file that cannot be
    // advised is read all the same.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    let found = BUFFER.with_borrow_mut(|buffer| {
        let head = zeroed(buffer, HEAD.min(usize::try_from(size).unwrap_or(HEAD)));
        read_at(file, head, 0)?;
        let mut found = Vec::new();
        filesystems(head, &mut found);
        others(head, &mut found);
        raid(file, head, size, &mut found)?;
        tables(file, head, size, sector, &mut found)?;
        if found.is_empty() {
            zfs(file, zeroed(buffer, UBERS.1 * UBERS.2), &mut found)?;
        }
        Ok::<_, io::Error>(found)
    });
    let mut found = found?;
    found.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    Ok(Contents { signatures: found, ..Contents::default() })
}

/// The types of the partitions of a GPT, by number from 1.
pub(crate) fn partition_types(file: &File, sector: u64) -> io::Result<Vec<(u64, String)>> {
    let mut header = [0; 92];
    read_at(file, &mut header, sector)?;
    if !header.starts_with(b"EFI PART") {
        return Ok(Vec::new());
    }
    let (first, count) = (u64_at(&header, 72), u32_at(&header, 80).min(128));
    let size = u32_at(&header, 84).clamp(128, 4096);
    let mut types = Vec::new();
    for entry in 0..u64::from(count) {
        let mut kind = [0; 16];
        read_at(file, &mut kind, first * sector + entry * u64::from(size))?;
        if kind != [0; 16] {
            types.push((entry + 1, guid(&kind)));
        }
    }
    Ok(types)
}

/// Reads as much as there is; the rest stays zero.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn at(head: &[u8], offset: usize, length: usize) -> &[u8] {
    head.get(offset..offset + length).unwrap_or(&[])
}

fn is(head: &[u8], offset: usize, magic: &[u8]) -> bool {
    at(head, offset, magic.len()) == magic
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&[at(bytes, offset, 4), &[0; 4]].concat()[..4]);
    u32::from_le_bytes(value)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from(u32_at(bytes, offset)) | u64::from(u32_at(bytes, offset + 4)) << 32
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

/// A UUID as it is written.
fn uuid(bytes: &[u8]) -> String {
    let digits = hex::encode(bytes);
    if digits.len() != 32 {
        return String::new();
    }
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

/// A GUID, whose first three parts are the other way round.
fn guid(bytes: &[u8; 16]) -> String {
    let mut turned = *bytes;
    turned[..4].reverse();
    turned[4..6].reverse();
    turned[6..8].reverse();
    uuid(&turned)
}

fn put(
    found: &mut Vec<Signature>,
    class: Class,
    name: &str,
    offset: u64,
    uuid: String,
    label: String,
) {
    found.push(Signature { class, name: name.to_owned(), uuid, label, offset });
}

fn filesystems(head: &[u8], found: &mut Vec<Signature>) {
    let mut add = |name: &str, offset: usize, uuid: String, label: String| {
        put(found, Class::Filesystem, name, offset as u64, uuid, label);
    };
    if is(head, 0x438, b"\x53\xef") {
        let (compat, incompat, ro) = (u32_at(head, 1116), u32_at(head, 1120), u32_at(head, 1124));
        let name = if incompat & 0x8 != 0 {
            "jbd"
        } else if incompat & 0x3c0 != 0 || ro & 0x478 != 0 {
            "ext4"
        } else if compat & 0x4 != 0 {
            "ext3"
        } else {
            "ext2"
        };
        add(name, 0x438, uuid(at(head, 1128, 16)), text(at(head, 1144, 16)));
    }
    if is(head, 0, b"XFSB") {
        add("xfs", 0, uuid(at(head, 32, 16)), text(at(head, 108, 12)));
    }
    if is(head, 0x10040, b"_BHRfS_M") {
        add("btrfs", 0x10040, uuid(at(head, 0x10020, 16)), text(at(head, 0x1012b, 256)));
    }
    for (name, offset, magic) in [
        ("vfat", 82, b"FAT32   ".as_slice()),
        ("vfat", 54, b"FAT16   "),
        ("vfat", 54, b"FAT12   "),
        ("ntfs", 3, b"NTFS    "),
        ("exfat", 3, b"EXFAT   "),
        ("squashfs", 0, b"hsqs"),
        ("f2fs", 1024, b"\x10\x20\xf5\xf2"),
        ("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
        ("iso9660", 32769, b"CD001"),
        ("reiserfs", 65588, b"ReIsEr2Fs"),
    ] {
        if is(head, offset, magic) {
            add(name, offset, String::new(), String::new());
        }
    }
}

fn others(head: &[u8], found: &mut Vec<Signature>) {
    for magic in [b"SWAPSPACE2", b"SWAP-SPACE"] {
        for page in [4096, 8192, 16384, 65536] {
            if is(head, page - 10, magic) {
                let (uuid, label) = (uuid(at(head, 1036, 16)), text(at(head, 1052, 16)));
                put(found, Class::Swap, "swap", (page - 10) as u64, uuid, label);
            }
        }
    }
    for (offset, magic) in
        [(0, b"LUKS\xba\xbe"), (0x4000, b"SKUL\xba\xbe"), (0x8000, b"SKUL\xba\xbe")]
    {
        if is(head, offset, magic) && !found.iter().any(|known| known.class == Class::Luks) {
            let uuid = text(at(head, offset + 168, 40));
            put(found, Class::Luks, "crypto_LUKS", offset as u64, uuid, String::new());
        }
    }
    for sector in 0..4 {
        let offset = sector * 512;
        if is(head, offset, b"LABELONE") && is(head, offset + 24, b"LVM2 001") {
            let id = text(at(head, offset + 32, 32));
            put(found, Class::Lvm, "LVM2_member", (offset + 24) as u64, dashed(&id), String::new());
            break;
        }
    }
    if is(head, 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81") {
        put(found, Class::Raid, "bcache", 4120, uuid(at(head, 4136, 16)), String::new());
    }
}

/// Looks for ZFS. It is asked for only where nothing else is found: whatever was made over a pool
/// leaves its uberblocks, and the programs that the gate asks see both.
fn zfs(file: &File, ubers: &mut [u8], found: &mut Vec<Signature>) -> io::Result<()> {
    let (start, _, each) = UBERS;
    read_at(file, ubers, start)?;
    let magic = |uber: &[u8]| is(uber, 0, b"\x0c\xb1\xba\x00") || is(uber, 4, b"\x00\xba\xb1\x0c");
    if let Some(at) = ubers.chunks(each).position(magic) {
        let offset = start + (at * each) as u64;
        put(found, Class::Raid, "zfs_member", offset, String::new(), String::new());
    }
    Ok(())
}

/// The identity of a physical volume as LVM writes it: 6-4-4-4-4-4-6.
fn dashed(id: &str) -> String {
    if id.len() != 32 || !id.is_ascii() {
        return id.to_owned();
    }
    let cuts = [0, 6, 10, 14, 18, 22, 26, 32];
    cuts.windows(2).map(|cut| &id[cut[0]..cut[1]]).collect::<Vec<_>>().join("-")
}

fn raid(file: &File, head: &[u8], size: u64, found: &mut Vec<Signature>) -> io::Result<()> {
    const MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
    let mut add = |offset: u64, uuid: String, label: String| {
        put(found, Class::Raid, "linux_raid_member", offset, uuid, label);
    };
    for offset in [0_usize, 4096] {
        if is(head, offset, MAGIC) {
            let (id, label) = (uuid(at(head, offset + 16, 16)), text(at(head, offset + 32, 32)));
            add(offset as u64, id, label);
        }
    }
    let aligned = (size & !0xfff).saturating_sub(8192);
    let old = (size & !0xffff).saturating_sub(65536);
    for offset in [aligned, old] {
        if offset < 8192 {
            continue;
        }
        let mut block = [0; 64];
        read_at(file, &mut block, offset)?;
        if is(&block, 0, MAGIC) {
            add(offset, uuid(&block[16..32]), text(&block[32..64]));
        }
    }
    Ok(())
}

fn tables(
    file: &File,
    head: &[u8],
    size: u64,
    sector: u64,
    found: &mut Vec<Signature>,
) -> io::Result<()> {
    let mut gpt = |header: &[u8], offset: u64| {
        if !is(header, 0, b"EFI PART") {
            return false;
        }
        let mut id = [0; 16];
        id.copy_from_slice(&header[56..72]);
        put(found, Class::PartitionTable, "gpt", offset, guid(&id), String::new());
        true
    };
    let mut any = false;
    for lba in [512_usize, 4096] {
        any |= gpt(at(head, lba, 92), lba as u64);
    }
    let last = size.saturating_sub(sector.max(512));
    let mut header = [0; 92];
    read_at(file, &mut header, last)?;
    any |= gpt(&header, last);
    // A boot sector of a FAT ends like a partition table; one with entries is a table.
    let boots = found.iter().any(|known| matches!(known.name.as_str(), "vfat" | "ntfs" | "exfat"));
    if !any && !boots && is(head, 510, b"\x55\xaa") {
        let entries = (0..4).map(|n| at(head, 446 + n * 16, 16));
        let plausible =
            entries.clone().all(|entry| entry.first().is_some_and(|flag| flag & 0x7f == 0));
        let used = entries.into_iter().any(|entry| entry.get(4).is_some_and(|kind| *kind != 0));
        if plausible && used {
            let id = hex::encode(at(head, 440, 4).iter().rev().copied().collect::<Vec<_>>());
            put(found, Class::PartitionTable, "dos", 510, id, String::new());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn disk(parts: &[(usize, &[u8])]) -> Vec<String> {
        let mut file = tempfile::tempfile().unwrap();
        let mut bytes = vec![0; 1 << 20];
        for (offset, part) in parts {
            bytes[*offset..*offset + part.len()].copy_from_slice(part);
        }
        file.write_all(&bytes).unwrap();
        probe(&file, 1 << 20, 512).unwrap().names()
    }

    /// Bytes, and where they are.
    type Written<'a> = &'a [(usize, &'a [u8])];

    #[test]
    fn every_signature_is_known_by_its_place() {
        let mut dos = [0_u8; 66];
        dos[4] = 0x83;
        dos[64..].copy_from_slice(b"\x55\xaa");
        let boot = [(446, dos.as_slice())];
        let cases: Vec<(Written<'_>, &[&str])> = vec![
            (&[], &[]),
            (&[(0x438, b"\x53\xef"), (1120, b"\x42\x02\0\0")], &["ext4"]),
            (&[(0x438, b"\x53\xef"), (1116, b"\x04")], &["ext3"]),
            (&[(0x438, b"\x53\xef")], &["ext2"]),
            (&[(0, b"XFSB")], &["xfs"]),
            (&[(0x10040, b"_BHRfS_M")], &["btrfs"]),
            (&[(4086, b"SWAPSPACE2")], &["swap"]),
            (&[(0, b"LUKS\xba\xbe")], &["crypto_LUKS"]),
            (&[(512, b"LABELONE"), (536, b"LVM2 001")], &["LVM2_member"]),
            (&[(4096, b"\xfc\x4e\x2b\xa9")], &["linux_raid_member"]),
            (&[((1 << 20) - 8192, b"\xfc\x4e\x2b\xa9")], &["linux_raid_member"]),
            (&[((1 << 20) - 65536, b"\xfc\x4e\x2b\xa9")], &["linux_raid_member"]),
            (&[(512, b"EFI PART")], &["gpt"]),
            (&[((1 << 20) - 512, b"EFI PART")], &["gpt"]),
            (&boot, &["dos"]),
            (&[(82, b"FAT32   "), (510, b"\x55\xaa")], &["vfat"]),
            (&[(0x20000, b"\x0c\xb1\xba\x00")], &["zfs_member"]),
            (&[(512, b"EFI PART"), (0x438, b"\x53\xef")], &["ext2", "gpt"]),
        ];
        for (parts, expected) in cases {
            assert_eq!(disk(parts), expected, "{parts:?}");
        }
    }

    #[test]
    fn identities_are_written_as_everybody_does() {
        let bytes: Vec<u8> = (0..16).collect();
        assert_eq!(uuid(&bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
        let mut fixed = [0; 16];
        fixed.copy_from_slice(&bytes);
        assert_eq!(guid(&fixed), "03020100-0504-0706-0809-0a0b0c0d0e0f");
        assert_eq!(dashed(&"a".repeat(32)), "aaaaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaaaa");
    }
}
