//! Layout of segment and batch headers. Marks are byte strings, the same in either byte order.

use memscope_common::RECORD_VERSION;

/// Version of the layouts in this module; a reader refuses a newer one.
///
/// 1: batches of plain records, and a preamble of repeated ones at the beginning of a segment. 2: batches are packed, and a
/// segment begins with a checkpoint. 3: a checkpoint has a part for each process, and a segment may be without some processes.
pub const FORMAT_VERSION: u16 = 3;

/// The first bytes of every segment.
pub(crate) const SEGMENT_MARK: [u8; 8] = *b"memscope";
/// The first bytes of every batch.
pub(crate) const BATCH_MARK: [u8; 4] = *b"MSJ2";
/// The first bytes of a batch of format 1, whose records are plain.
pub(crate) const PLAIN_BATCH_MARK: [u8; 4] = *b"MSJB";
/// Length of a segment's header.
pub(crate) const SEGMENT_HEADER: usize = 128;
/// Length of a batch's header.
pub(crate) const BATCH_HEADER: usize = 40;
/// Length of the header of a batch of format 1.
const PLAIN_BATCH_HEADER: usize = 32;
/// Most bytes of records in a batch: bounds what a reader must hold at once.
pub(crate) const BATCH_MOST: usize = 4 << 20;
/// Everything begins at a multiple of this.
pub(crate) const ALIGN: usize = 8;

const BYTE_ORDER: u32 = 0x0102_0304;
const ARCHITECTURE_BYTES: usize = 16;
/// Architectures on which records are laid out as they are here: 64 bits, little endian, numbers at multiples of their size.
const ALIKE: [&str; 2] = ["x86_64", "aarch64"];
const CRC_AT: usize = 20;

/// The same moment on two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockPair {
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub boot_ns: u64,
    /// `CLOCK_REALTIME`, nanoseconds since 1970.
    pub unix_ns: u64,
}

/// What a segment says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u16,
    /// [`RECORD_VERSION`] of the writer.
    pub record_version: u8,
    /// Architecture of the writer (`x86_64`, `aarch64`).
    pub architecture: String,
    /// `/proc/sys/kernel/random/boot_id`: which boot the boot times belong to.
    pub boot_id: [u8; 16],
    /// Which journal: boot-time nanoseconds of its start.
    pub epoch: u64,
    /// Number of the segment in it, from 0.
    pub index: u64,
    /// Number of the first record in the segment.
    pub first_sequence: u64,
    /// Boot time of the first record.
    pub first_boot_ns: u64,
    /// A pair of clock readings, the last known when the segment was made.
    pub clock: ClockPair,
    /// Bytes allocated for the segment.
    pub segment_bytes: u64,
    /// Bytes before the first batch: the list of those who are left out, and the checkpoint. 0: the checkpoint is in a file beside the
    /// segment, or there is none.
    pub checkpoint_bytes: u64,
    /// How many processes are left out of the segment.
    pub left_out: u64,
}

/// Why 128 bytes are no segment header for us.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    NotOurs,
    Short,
    ByteOrder,
    NewerFormat(u16),
    Damaged,
    NewerRecords(u8),
    OlderRecords(u8),
    Architecture(String),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEGMENT_HEADER);
        out.extend_from_slice(&SEGMENT_MARK);
        out.extend_from_slice(&BYTE_ORDER.to_ne_bytes());
        out.extend_from_slice(&self.format_version.to_ne_bytes());
        out.extend_from_slice(&[self.record_version, 0]);
        out.extend_from_slice(&(SEGMENT_HEADER as u32).to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
        let mut architecture = self.architecture.clone().into_bytes();
        architecture.resize(ARCHITECTURE_BYTES, 0);
        out.extend_from_slice(&architecture);
        out.extend_from_slice(&self.boot_id);
        for number in [
            self.epoch,
            self.index,
            self.first_sequence,
            self.first_boot_ns,
            self.clock.boot_ns,
            self.clock.unix_ns,
            self.segment_bytes,
            self.checkpoint_bytes,
            self.left_out,
        ] {
            out.extend_from_slice(&number.to_ne_bytes());
        }
        out.resize(SEGMENT_HEADER, 0);
        let crc = header_crc(&out);
        if let Some(place) = out.get_mut(CRC_AT..CRC_AT + 4) {
            place.copy_from_slice(&crc.to_ne_bytes());
        }
        out
    }

    /// Reads a header. What may differ between versions is looked at only after the version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let mark = bytes.get(..SEGMENT_MARK.len()).unwrap_or(bytes);
        if !SEGMENT_MARK.starts_with(mark) {
            return Err(HeaderFault::NotOurs);
        }
        let mut fields = Fields(bytes.get(mark.len()..).unwrap_or_default());
        let bytes = bytes.get(..SEGMENT_HEADER).ok_or(HeaderFault::Short)?;
        let order = fields.u32()?;
        if order == BYTE_ORDER.swap_bytes() {
            return Err(HeaderFault::ByteOrder);
        }
        let format_version = fields.u16()?;
        let [record_version, _] = fields.take().ok_or(HeaderFault::Short)?;
        let _length = fields.u32()?;
        let crc = fields.u32()?;
        if format_version > FORMAT_VERSION && order == BYTE_ORDER {
            return Err(HeaderFault::NewerFormat(format_version));
        }
        if crc != header_crc(bytes) || order != BYTE_ORDER || format_version == 0 {
            return Err(HeaderFault::Damaged);
        }
        let name: [u8; ARCHITECTURE_BYTES] = fields.take().ok_or(HeaderFault::Short)?;
        let end = name.iter().position(|byte| *byte == 0);
        let architecture =
            String::from_utf8_lossy(name.get(..end.unwrap_or(name.len())).unwrap_or_default())
                .into_owned();
        let boot_id = fields.take().ok_or(HeaderFault::Short)?;
        let header = Self {
            format_version,
            record_version,
            architecture,
            boot_id,
            epoch: fields.u64()?,
            index: fields.u64()?,
            first_sequence: fields.u64()?,
            first_boot_ns: fields.u64()?,
            clock: ClockPair {
                boot_ns: fields.u64()?,
                unix_ns: fields.u64()?,
            },
            segment_bytes: fields.u64()?,
            // Format 1 has zeros here, and format 2 in the last one.
            checkpoint_bytes: fields.u64()?,
            left_out: fields.u64()?,
        };
        if !ALIKE.contains(&header.architecture.as_str()) {
            return Err(HeaderFault::Architecture(header.architecture));
        }
        if record_version < RECORD_VERSION {
            return Err(HeaderFault::OlderRecords(record_version));
        }
        if record_version > RECORD_VERSION {
            return Err(HeaderFault::NewerRecords(record_version));
        }
        Ok(header)
    }
}

fn header_crc(header: &[u8]) -> u32 {
    let (before, rest) = header.split_at_checked(CRC_AT).unwrap_or((header, &[]));
    let mut crc = crc32fast::Hasher::new();
    crc.update(before);
    crc.update(rest.get(4..).unwrap_or_default());
    crc.finalize()
}

/// How the content of a batch is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// As it is.
    Plain,
    /// By [`crate::journal::pack`].
    Packed,
    /// A piece of a checkpoint's part, compressed as a whole.
    Checkpoint,
    /// The processes that are left out of the segment.
    LeftOut,
}

/// What a batch says of itself. The check sum covers all of it and what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// Bytes of this header in the file: 32 in format 1, 40 since.
    pub(crate) header_len: usize,
    /// Bytes stored, filled up to a multiple of 8.
    pub(crate) stored: u32,
    /// Bytes of records.
    pub(crate) len: u32,
    /// Records, repeated ones among them.
    pub(crate) count: u32,
    /// Number of the first record that has one.
    pub(crate) first_sequence: u64,
    /// Where the ring's reader stood after these records.
    pub(crate) ring_position: u64,
    /// How the records are stored.
    pub(crate) packing: Packing,
}

impl BatchHeader {
    /// Writes the header, and what is stored behind it, to the end of `out`.
    pub(crate) fn encode(&self, stored: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&BATCH_MARK);
        out.extend_from_slice(&self.stored.to_ne_bytes());
        out.extend_from_slice(&self.crc(stored).to_ne_bytes());
        out.extend_from_slice(&self.count.to_ne_bytes());
        out.extend_from_slice(&self.first_sequence.to_ne_bytes());
        out.extend_from_slice(&self.ring_position.to_ne_bytes());
        out.extend_from_slice(&self.len.to_ne_bytes());
        out.extend_from_slice(&(self.packing as u32).to_ne_bytes());
        out.extend_from_slice(stored);
    }

    /// Reads a header, and the check sum that it and what is stored behind it must have.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, u32)> {
        let mut fields = Fields(bytes);
        let mark: [u8; 4] = fields.take()?;
        let stored = fields.u32().ok()?;
        let crc = fields.u32().ok()?;
        let mut header = Self {
            header_len: PLAIN_BATCH_HEADER,
            stored,
            len: stored,
            count: fields.u32().ok()?,
            first_sequence: fields.u64().ok()?,
            ring_position: fields.u64().ok()?,
            packing: Packing::Plain,
        };
        if mark == BATCH_MARK {
            header.header_len = BATCH_HEADER;
            header.len = fields.u32().ok()?;
            header.packing = match fields.u32().ok()? {
                0 => Packing::Plain,
                1 => Packing::Packed,
                2 => Packing::Checkpoint,
                3 => Packing::LeftOut,
                _ => return None,
            };
        } else if mark != PLAIN_BATCH_MARK {
            return None;
        }
        let stored = stored as usize;
        let whole = stored.is_multiple_of(ALIGN) && stored <= BATCH_MOST;
        (whole && header.len as usize <= BATCH_MOST).then_some((header, crc))
    }

    /// Check sum over the header's other fields and what is stored.
    pub(crate) fn crc(&self, stored: &[u8]) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.stored.to_ne_bytes());
        crc.update(&self.count.to_ne_bytes());
        crc.update(&self.first_sequence.to_ne_bytes());
        crc.update(&self.ring_position.to_ne_bytes());
        if self.header_len == BATCH_HEADER {
            crc.update(&self.len.to_ne_bytes());
            crc.update(&(self.packing as u32).to_ne_bytes());
        }
        crc.update(stored);
        crc.finalize()
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
    fn u16(&mut self) -> Result<u16, HeaderFault> {
        self.take()
            .map(u16::from_ne_bytes)
            .ok_or(HeaderFault::Short)
    }
    fn u32(&mut self) -> Result<u32, HeaderFault> {
        self.take()
            .map(u32::from_ne_bytes)
            .ok_or(HeaderFault::Short)
    }
    fn u64(&mut self) -> Result<u64, HeaderFault> {
        self.take()
            .map(u64::from_ne_bytes)
            .ok_or(HeaderFault::Short)
    }
}

/// The bytes of a boot id as `/proc/sys/kernel/random/boot_id` writes it.
pub fn boot_id(text: &str) -> Option<[u8; 16]> {
    let mut digits = text.trim().chars().filter(|character| *character != '-');
    let mut id = [0; 16];
    for byte in &mut id {
        let high = digits.next()?.to_digit(16)?;
        let low = digits.next()?.to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    digits.next().is_none().then_some(id)
}
