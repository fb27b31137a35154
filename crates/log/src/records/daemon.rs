//! The records that only the daemon writes: a header and UTF-8 JSON, padded with NUL to 8 bytes.

use crate::records::bytes::{Header, check};
use crate::records::outcome::Malformed;
use crate::records::site::SiteDefined;
use memscope_common::KIND_DAEMON_FIRST;
use memscope_ledger::event::{
    AllocatorFacts, Backend, CodeName, CoverageNote, Finding, HeldPart, Mark, NativeName,
    Placement, ProcessFacts, ProcessHandle, ReadingCost, StackSeen,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// [`DaemonRecord::SiteDefined`].
pub const KIND_SITE_DEFINED: u16 = KIND_DAEMON_FIRST;
/// [`DaemonRecord::Attached`].
pub const KIND_ATTACHED: u16 = KIND_DAEMON_FIRST + 1;
/// [`DaemonRecord::Placed`].
pub const KIND_PLACED: u16 = KIND_DAEMON_FIRST + 2;
/// [`DaemonRecord::Detached`].
pub const KIND_DETACHED: u16 = KIND_DAEMON_FIRST + 3;
/// [`DaemonRecord::Exited`].
pub const KIND_EXITED: u16 = KIND_DAEMON_FIRST + 4;
/// [`DaemonRecord::Replaced`].
pub const KIND_REPLACED: u16 = KIND_DAEMON_FIRST + 5;
/// [`DaemonRecord::Coverage`].
pub const KIND_COVERAGE: u16 = KIND_DAEMON_FIRST + 6;
/// [`DaemonRecord::Backend`].
pub const KIND_BACKEND: u16 = KIND_DAEMON_FIRST + 7;
/// [`DaemonRecord::Clock`].
pub const KIND_CLOCK: u16 = KIND_DAEMON_FIRST + 8;
/// [`DaemonRecord::DeviceTotal`].
pub const KIND_DEVICE_TOTAL: u16 = KIND_DAEMON_FIRST + 9;
/// [`DaemonRecord::Held`].
pub const KIND_HELD: u16 = KIND_DAEMON_FIRST + 10;

/// [`DaemonRecord::ReadingCost`].
pub const KIND_READING_COST: u16 = KIND_DAEMON_FIRST + 11;

/// [`DaemonRecord::Lost`].
pub const KIND_LOST: u16 = KIND_DAEMON_FIRST + 15;
/// [`DaemonRecord::Code`].
pub const KIND_CODE_NAME: u16 = KIND_DAEMON_FIRST + 12;

/// [`DaemonRecord::Stack`].
pub const KIND_STACK_WHOLE: u16 = KIND_DAEMON_FIRST + 16;
/// [`DaemonRecord::Native`].
pub const KIND_NATIVE_NAME: u16 = KIND_DAEMON_FIRST + 17;

/// [`DaemonRecord::Allocator`].
pub const KIND_ALLOCATOR: u16 = KIND_DAEMON_FIRST + 13;

/// [`DaemonRecord::Mark`].
pub const KIND_MARK_OUTSIDE: u16 = KIND_DAEMON_FIRST + 18;
/// [`DaemonRecord::Launches`].
pub const KIND_LAUNCHES: u16 = KIND_DAEMON_FIRST + 19;

/// [`DaemonRecord::Finding`].
pub const KIND_FINDING: u16 = KIND_DAEMON_FIRST + 20;

/// Memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTotal {
    /// Ordinal within the process.
    pub device: i32,
    /// Bytes.
    pub total_bytes: u64,
    /// Bytes that nobody uses, where it is certain which device of the machine this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Clock {
    unix_ns: u64,
}

#[derive(Serialize, Deserialize)]
struct Launches {
    count: u64,
}

#[derive(Serialize, Deserialize)]
struct Nothing {}

/// What the daemon writes into the journal.
#[derive(Clone, Debug, PartialEq)]
pub enum DaemonRecord {
    /// A site has this number from now on.
    SiteDefined(SiteDefined),
    /// A process is traced from now on.
    Attached(Box<ProcessFacts>),
    /// Its probes were (re)placed.
    Placed(Placement),
    /// Tracing ended on request.
    Detached,
    /// The process ended.
    Exited,
    /// The process runs another image.
    Replaced,
    /// Something that could not be seen, or can be seen again.
    Coverage(CoverageNote),
    /// Which allocator PyTorch uses.
    Backend(Backend),
    /// What was read about it, when that changed.
    Allocator(Box<AllocatorFacts>),
    /// `CLOCK_REALTIME` at the record's time.
    Clock {
        /// Nanoseconds since 1970.
        unix_ns: u64,
    },
    /// Memory of a device.
    DeviceTotal(DeviceTotal),
    /// A part of what a device's pool held at one moment. See [`crate::records::held_parts`].
    Held(HeldPart),
    /// A reading of the allocator's structures ended well.
    ReadingCost(ReadingCost),
    /// Records were lost; the stamp says how many in all.
    Lost,
    /// What names a code object in stacks.
    Code(CodeName),
    /// A stack whose outer frames of compiled code were not unwound in the kernel.
    Stack(Box<StackSeen>),
    /// What is at an address of compiled code.
    Native(NativeName),
    /// A moment that somebody outside named, or that an import found.
    Mark(Mark),
    /// Something worth an alert.
    Finding(Finding),
    /// Kernels launched so far.
    Launches {
        /// Since the counting began.
        count: u64,
    },
}

/// What the header of a daemon's record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Whose; 0 for the machine's.
    pub process: ProcessHandle,
    /// Thread, or 0.
    pub tid: u32,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Records of the process known lost so far; 0 where there is no such count.
    pub lost_before: u64,
}

/// A record could not be written.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// As JSON.
    #[error("cannot write a record of kind {kind:#x} as JSON")]
    Json {
        /// The kind.
        kind: u16,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// It stays too long however much is cut.
    #[error("a record of kind {kind:#x} stays {len} bytes long")]
    TooLong {
        /// The kind.
        kind: u16,
        /// JSON bytes.
        len: usize,
    },
}

impl DaemonRecord {
    /// The kind's number.
    pub fn kind(&self) -> u16 {
        match self {
            DaemonRecord::SiteDefined(_) => KIND_SITE_DEFINED,
            DaemonRecord::Attached(_) => KIND_ATTACHED,
            DaemonRecord::Placed(_) => KIND_PLACED,
            DaemonRecord::Detached => KIND_DETACHED,
            DaemonRecord::Exited => KIND_EXITED,
            DaemonRecord::Replaced => KIND_REPLACED,
            DaemonRecord::Coverage(_) => KIND_COVERAGE,
            DaemonRecord::Backend(_) => KIND_BACKEND,
            DaemonRecord::Allocator(_) => KIND_ALLOCATOR,
            DaemonRecord::Clock { .. } => KIND_CLOCK,
            DaemonRecord::DeviceTotal(_) => KIND_DEVICE_TOTAL,
            DaemonRecord::Held(_) => KIND_HELD,
            DaemonRecord::ReadingCost(_) => KIND_READING_COST,
            DaemonRecord::Lost => KIND_LOST,
            DaemonRecord::Code(_) => KIND_CODE_NAME,
            DaemonRecord::Stack(_) => KIND_STACK_WHOLE,
            DaemonRecord::Native(_) => KIND_NATIVE_NAME,
            DaemonRecord::Mark(_) => KIND_MARK_OUTSIDE,
            DaemonRecord::Launches { .. } => KIND_LAUNCHES,
            DaemonRecord::Finding(_) => KIND_FINDING,
        }
    }

    pub(crate) fn json(&self) -> Result<Vec<u8>, EncodeError> {
        match self {
            DaemonRecord::SiteDefined(site) => serde_json::to_vec(site),
            DaemonRecord::Attached(facts) => serde_json::to_vec(facts),
            DaemonRecord::Placed(placement) => serde_json::to_vec(placement),
            DaemonRecord::Detached
            | DaemonRecord::Exited
            | DaemonRecord::Replaced
            | DaemonRecord::Lost => serde_json::to_vec(&Nothing {}),
            DaemonRecord::Coverage(note) => serde_json::to_vec(note),
            DaemonRecord::Backend(backend) => serde_json::to_vec(backend),
            DaemonRecord::Allocator(facts) => serde_json::to_vec(facts),
            DaemonRecord::Clock { unix_ns } => serde_json::to_vec(&Clock { unix_ns: *unix_ns }),
            DaemonRecord::DeviceTotal(total) => serde_json::to_vec(total),
            DaemonRecord::Held(part) => serde_json::to_vec(part),
            DaemonRecord::ReadingCost(cost) => serde_json::to_vec(cost),
            DaemonRecord::Code(name) => serde_json::to_vec(name),
            DaemonRecord::Stack(seen) => serde_json::to_vec(seen),
            DaemonRecord::Native(name) => serde_json::to_vec(name),
            DaemonRecord::Mark(mark) => serde_json::to_vec(mark),
            DaemonRecord::Finding(finding) => serde_json::to_vec(finding),
            DaemonRecord::Launches { count } => serde_json::to_vec(&Launches { count: *count }),
        }
        .map_err(|source| EncodeError::Json {
            kind: self.kind(),
            source,
        })
    }

    /// Reads a daemon's record; `None` for a kind that is not one of these.
    pub fn decode(record: &[u8]) -> Result<Option<DaemonRecord>, Malformed> {
        let header = check(record)?;
        Self::decode_body(&header, record)
    }

    pub(crate) fn decode_body(
        header: &Header,
        record: &[u8],
    ) -> Result<Option<DaemonRecord>, Malformed> {
        let padded = record.get(Header::SIZE..).unwrap_or_default();
        let end = padded
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        let json = Json {
            kind: header.kind,
            bytes: padded.get(..end).unwrap_or_default(),
        };
        Ok(Some(match header.kind {
            KIND_SITE_DEFINED => DaemonRecord::SiteDefined(json.read()?),
            KIND_ATTACHED => DaemonRecord::Attached(json.read()?),
            KIND_PLACED => DaemonRecord::Placed(json.read()?),
            KIND_DETACHED => json.read::<Nothing>().map(|_| DaemonRecord::Detached)?,
            KIND_EXITED => json.read::<Nothing>().map(|_| DaemonRecord::Exited)?,
            KIND_REPLACED => json.read::<Nothing>().map(|_| DaemonRecord::Replaced)?,
            KIND_COVERAGE => DaemonRecord::Coverage(json.read()?),
            KIND_BACKEND => DaemonRecord::Backend(json.read()?),
            KIND_ALLOCATOR => DaemonRecord::Allocator(json.read()?),
            KIND_CLOCK => DaemonRecord::Clock {
                unix_ns: json.read::<Clock>()?.unix_ns,
            },
            KIND_DEVICE_TOTAL => DaemonRecord::DeviceTotal(json.read()?),
            KIND_HELD => DaemonRecord::Held(json.read()?),
            KIND_READING_COST => DaemonRecord::ReadingCost(json.read()?),
            KIND_LOST => json.read::<Nothing>().map(|_| DaemonRecord::Lost)?,
            KIND_CODE_NAME => DaemonRecord::Code(json.read()?),
            KIND_STACK_WHOLE => DaemonRecord::Stack(json.read()?),
            KIND_NATIVE_NAME => DaemonRecord::Native(json.read()?),
            KIND_MARK_OUTSIDE => DaemonRecord::Mark(json.read()?),
            KIND_FINDING => DaemonRecord::Finding(json.read()?),
            KIND_LAUNCHES => DaemonRecord::Launches {
                count: json.read::<Launches>()?.count,
            },
            _ => return Ok(None),
        }))
    }
}

struct Json<'a> {
    kind: u16,
    bytes: &'a [u8],
}

impl Json<'_> {
    fn read<T: DeserializeOwned>(&self) -> Result<T, Malformed> {
        serde_json::from_slice(self.bytes).map_err(|source| Malformed::Json {
            kind: self.kind,
            source: Arc::new(source),
        })
    }
}
