//! Layout of the headers of segments and batches. The marks at their beginning are byte strings, so they are the same
//! in either byte order.

use memscope_common::RECORD_VERSION;

/// Version of the layouts in this module; a reader refuses a newer one.
///
/// * Format 1: batches of plain records, and a preamble of repeated records at the beginning of a segment.
/// * Format 2: batches are packed, and a segment begins with a checkpoint.
/// * Format 3: a checkpoint has a part for each process, and a segment may leave out some processes.
pub const FORMAT_VERSION: u16 = 3;

/// The first bytes of every segment.
pub(crate) const SEGMENT_MARK: [u8; 8] = *b"memscope";
/// The first bytes of every batch.
pub(crate) const BATCH_MARK: [u8; 4] = *b"MSJ2";
/// The first bytes of every batch of format 1, whose records are not packed.
pub(crate) const PLAIN_BATCH_MARK: [u8; 4] = *b"MSJB";
/// Length of a segment's header in bytes.
pub(crate) const SEGMENT_HEADER: usize = 128;
/// Length of a batch's header in bytes.
pub(crate) const BATCH_HEADER: usize = 40;
/// Length of the header of a batch of format 1, in bytes.
const PLAIN_BATCH_HEADER: usize = 32;
/// Maximum size of the records in a batch, in bytes. It bounds what a reader must hold in memory at once.
pub(crate) const BATCH_MOST: usize = 4 << 20;
/// Headers, batches and checkpoints begin at multiples of this number of bytes.
pub(crate) const ALIGN: usize = 8;

const BYTE_ORDER: u32 = 0x0102_0304;
const ARCHITECTURE_BYTES: usize = 16;
/// Architectures whose records have the same layout as on this one: 64 bits, little endian, integers aligned to their
/// size.
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

/// Header of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u16,
    /// [`RECORD_VERSION`] of the writer.
    pub record_version: u8,
    /// Architecture of the writer (`x86_64`, `aarch64`).
    pub architecture: String,
    /// Id of the boot to which the boot times belong, from `/proc/sys/kernel/random/boot_id`.
    pub boot_id: [u8; 16],
    /// Epoch of the journal: boot-time nanoseconds of its start.
    pub epoch: u64,
    /// Number of the segment within its epoch, from 0.
    pub index: u64,
    /// Number of the first record in the segment.
    pub first_sequence: u64,
    /// Boot time of the first record, in nanoseconds.
    pub first_boot_ns: u64,
    /// The same moment on both clocks, as last known when the segment was made.
    pub clock: ClockPair,
    /// Bytes allocated for the segment when it was made. It may have been lengthened since.
    pub segment_bytes: u64,
    /// Bytes between the header and the first batch: the list of the processes that are left out, and the checkpoint.
    /// 0: the checkpoint is in a file beside the segment, or there is none.
    pub checkpoint_bytes: u64,
    /// Number of processes that are left out of the segment.
    pub left_out: u64,
}

/// Why the first bytes of a file are not a segment header that this version can read.
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

    /// Reads a header. The version is checked first, because other fields may differ between versions.
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
            // Both fields are zero in format 1; `left_out` is zero in format 2.
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
    /// Not packed.
    Plain,
    /// Packed by [`crate::journal::pack`].
    Packed,
    /// Piece of a part of a checkpoint; the part is compressed as a whole.
    Checkpoint,
    /// The list of the processes that are left out of the segment.
    LeftOut,
}

/// Header of a batch. Its check sum covers the other fields and the stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// Length of this header in the file: 32 bytes in format 1, 40 since format 2.
    pub(crate) header_len: usize,
    /// Length of the stored bytes, padded to a multiple of 8.
    pub(crate) stored: u32,
    /// Bytes of the records after unpacking.
    pub(crate) len: u32,
    /// Number of records, repeated ones included.
    pub(crate) count: u32,
    /// Number of the first record that has a number.
    pub(crate) first_sequence: u64,
    /// Position of the ring's reader after these records.
    pub(crate) ring_position: u64,
    pub(crate) packing: Packing,
}

impl BatchHeader {
    /// Appends the header and the stored bytes to `out`.
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

    /// Reads a header, and the check sum that the header and the stored bytes after it must have.
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

    /// Computes the check sum over the header's other fields and the stored bytes.
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

/// Parses a boot id as `/proc/sys/kernel/random/boot_id` prints it. `None` if the text is not 32 hexadecimal digits.
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
