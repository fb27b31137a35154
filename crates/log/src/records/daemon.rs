//! The records that only the daemon writes: a header and UTF-8 JSON, padded with NUL to 8 bytes.

use crate::records::bytes::{Header, check};
use crate::records::outcome::Malformed;
use crate::records::site::SiteDefined;
use memscope_common::KIND_DAEMON_FIRST;
use memscope_ledger::event::{
    AllocatorFacts, Backend, CodeName, CoverageNote, DeviceTotal, Finding, HeldPart, Mark,
    NativeName, Placement, ProcessFacts, ProcessHandle, ReadingCost, RunsOn, Shed, StackSeen,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The wall clock at the record's time: the body of [`DaemonRecord::Clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// `CLOCK_REALTIME`, nanoseconds since 1970.
    pub unix_ns: u64,
}

/// Kernels that the process has launched: the body of [`DaemonRecord::Launches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launches {
    /// Number of launches since the counting began.
    pub count: u64,
}

#[derive(Serialize, Deserialize)]
struct Nothing {}

/// Declares the daemon's records: number, name and, if it has one, the type that is written as JSON.
macro_rules! daemon_records {
    ($($(#[doc = $doc:literal])+ $number:literal => $kind:ident: $name:ident $(($body:ty))?,)+) => {
        $(
            #[doc = concat!("Number of [`DaemonRecord::", stringify!($name), "`].")]
            pub const $kind: u16 = KIND_DAEMON_FIRST + $number;
        )+

        /// What the daemon writes into the journal.
        #[derive(Clone, Debug, PartialEq)]
        pub enum DaemonRecord {
            $($(#[doc = $doc])+ $name $(($body))?,)+
        }

        impl DaemonRecord {
            /// Number of the record's kind.
            pub fn kind(&self) -> u16 {
                match self {
                    $(DaemonRecord::$name { .. } => $kind,)+
                }
            }

            fn body(&self) -> serde_json::Result<Vec<u8>> {
                $(write_one!(self, $name $(, $body)?);)+
                serde_json::to_vec(&Nothing {})
            }

            fn read(json: &Json<'_>) -> Result<Option<DaemonRecord>, Malformed> {
                Ok(Some(match json.kind {
                    $($kind => read_one!(json, $name $(, $body)?),)+
                    _ => return Ok(None),
                }))
            }
        }
    };
}

macro_rules! write_one {
    ($record:ident, $name:ident) => {};
    ($record:ident, $name:ident, $body:ty) => {
        if let DaemonRecord::$name(body) = $record {
            return serde_json::to_vec(body);
        }
    };
}

macro_rules! read_one {
    ($json:ident, $name:ident) => {
        $json.read::<Nothing>().map(|_| DaemonRecord::$name)?
    };
    ($json:ident, $name:ident, $body:ty) => {
        DaemonRecord::$name($json.read::<$body>()?)
    };
}

daemon_records! {
    /// A site has this number from now on.
    0 => KIND_SITE_DEFINED: SiteDefined(SiteDefined),
    /// Tracing of a process begins here.
    1 => KIND_ATTACHED: Attached(Box<ProcessFacts>),
    /// The probes of a process were placed, or placed again.
    2 => KIND_PLACED: Placed(Placement),
    /// Tracing ended on request.
    3 => KIND_DETACHED: Detached,
    /// The process ended.
    4 => KIND_EXITED: Exited,
    /// The process executed another program.
    5 => KIND_REPLACED: Replaced,
    /// Something that cannot be observed, or that can be observed again.
    6 => KIND_COVERAGE: Coverage(CoverageNote),
    /// The allocator that PyTorch uses.
    7 => KIND_BACKEND: Backend(Backend),
    /// Wall clock at the record's time.
    8 => KIND_CLOCK: Clock(Clock),
    /// Memory of a device.
    9 => KIND_DEVICE_TOTAL: DeviceTotal(DeviceTotal),
    /// A part of what a device's pool held at one moment. See [`crate::records::held_parts`].
    10 => KIND_HELD: Held(HeldPart),
    /// A reading of the allocator's structures succeeded. This is what it cost.
    11 => KIND_READING_COST: ReadingCost(ReadingCost),
    /// Names and lines of a code object in stacks.
    12 => KIND_CODE_NAME: Code(CodeName),
    /// What was read about PyTorch's allocator apart from its blocks. Written when it changes.
    13 => KIND_ALLOCATOR: Allocator(Box<AllocatorFacts>),
    /// Records were lost. The stamp has the number of records that were lost so far.
    15 => KIND_LOST: Lost,
    /// A stack whose outer frames of compiled code were not unwound in the kernel.
    16 => KIND_STACK_WHOLE: Stack(Box<StackSeen>),
    /// The file and the functions at an address of compiled code.
    17 => KIND_NATIVE_NAME: Native(NativeName),
    /// A mark that was set from outside the program, or that an import found.
    18 => KIND_MARK_OUTSIDE: Mark(Mark),
    /// Number of kernels that were launched so far.
    19 => KIND_LAUNCHES: Launches(Launches),
    /// A finding, for alerts.
    20 => KIND_FINDING: Finding(Finding),
    /// A part of what was kept of a process was given up, because memory was short.
    21 => KIND_SHED: Shed(Shed),
    /// The devices on which the process runs.
    22 => KIND_RUNS_ON: RunsOn(RunsOn),
}

/// Values for the header of a daemon's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Process that the record belongs to; 0: the machine.
    pub process: ProcessHandle,
    /// Thread id in the initial pid namespace; 0: none.
    pub tid: u32,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Number of the process's records that are known to be lost so far; 0 if there is no such count.
    pub lost_before: u64,
}

/// Why a record could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The JSON could not be written.
    #[error("cannot write a record of kind {kind:#x} as JSON")]
    Json {
        /// Kind of the record.
        kind: u16,
        /// Error of the JSON writer.
        #[source]
        source: serde_json::Error,
    },
    /// The JSON is too long even after cutting.
    #[error("a record of kind {kind:#x} stays {len} bytes long")]
    TooLong {
        /// Kind of the record.
        kind: u16,
        /// Length of the JSON in bytes.
        len: usize,
    },
}

impl DaemonRecord {
    pub(crate) fn json(&self) -> Result<Vec<u8>, EncodeError> {
        self.body().map_err(|source| EncodeError::Json {
            kind: self.kind(),
            source,
        })
    }

    /// Decodes a daemon's record; `None` for a kind that is not one of these.
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
        DaemonRecord::read(&json)
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
