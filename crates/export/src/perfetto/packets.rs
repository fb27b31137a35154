//! The packets of a Perfetto trace.
//!
//! Owns: the messages, the clocks, and the identities of tracks. Refuses: to know what a block is.

use crate::levels::Holder;
use crate::private_pool::Pool;
use memscope_ledger::report::SnapshotReport;
use prost::Message;
use std::io::{self, Write};

/// `BUILTIN_CLOCK_REALTIME` and `BUILTIN_CLOCK_BOOTTIME`.
const REALTIME: u32 = 1;
const BOOTTIME: u32 = 6;
/// Id of the sequence of packets. Any number will do, because there is only one sequence.
const SEQUENCE: u32 = 1;
const TYPE_COUNTER: u32 = 4;
const UNIT_SIZE_BYTES: u32 = 3;
const ORDER_EXPLICIT: u32 = 3;

/// Kinds of track event, in the order in which they may come at one moment on one track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    End,
    Instant,
    Begin,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Kind::Begin => 1,
            Kind::End => 2,
            Kind::Instant => 3,
        }
    }
}

// The messages that a trace of memory needs, with the numbers of their fields in Perfetto's `protos/perfetto/trace`.
// All fields are optional there, so that a value of 0 is written.

#[derive(Clone, PartialEq, prost::Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TracePacket {
    #[prost(message, optional, tag = "6")]
    clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(uint32, optional, tag = "58")]
    timestamp_clock_id: Option<u32>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    clocks: Vec<Clock>,
    #[prost(uint32, optional, tag = "2")]
    primary_trace_clock: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Clock {
    #[prost(uint32, optional, tag = "1")]
    clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    timestamp: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
    #[prost(uint32, optional, tag = "11")]
    child_ordering: Option<u32>,
    #[prost(uint64, optional, tag = "12")]
    sibling_order_rank: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ProcessDescriptor {
    #[prost(uint32, optional, tag = "1")]
    pid: Option<u32>,
    #[prost(string, repeated, tag = "2")]
    cmdline: Vec<String>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CounterDescriptor {
    #[prost(uint32, optional, tag = "3")]
    unit: Option<u32>,
}

/// An event on a track, with annotations.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(uint32, optional, tag = "9")]
    kind: Option<u32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(uint64, optional, tag = "30")]
    counter_value: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DebugAnnotation {
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
    #[prost(oneof = "Value", tags = "3, 6, 7")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(uint64, tag = "3")]
    Uint(u64),
    #[prost(string, tag = "6")]
    Text(String),
    #[prost(uint64, tag = "7")]
    Pointer(u64),
}

impl TrackEvent {
    /// An event with a category and a name. Events of one meaning have the same name.
    pub(super) fn named(category: &str, name: &str) -> TrackEvent {
        TrackEvent {
            categories: vec![category.to_owned()],
            name: Some(name.to_owned()),
            ..TrackEvent::default()
        }
    }

    fn annotate(&mut self, name: &str, value: Value) {
        self.debug_annotations.push(DebugAnnotation {
            name: Some(name.to_owned()),
            value: Some(value),
        });
    }

    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.annotate(name, Value::Uint(value));
    }

    pub(super) fn pointer(&mut self, name: &str, value: u64) {
        self.annotate(name, Value::Pointer(value));
    }

    pub(super) fn note(&mut self, name: &str, text: &str) {
        self.annotate(name, Value::Text(text.to_owned()));
    }

    pub(super) fn pool(&mut self, (high, low): Pool) {
        self.note("pool", &format!("({high}, {low})"));
    }
}

/// Writes the packets of one process.
pub(super) struct Packets<'a, W> {
    pub(super) report: &'a SnapshotReport,
    out: &'a mut W,
    process: u64,
    /// Number of tracks made so far.
    tracks: u64,
}

impl<'a, W: Write> Packets<'a, W> {
    pub(super) fn new(report: &'a SnapshotReport, out: &'a mut W) -> Self {
        // Several traces may be opened together, so the identities of tracks are derived from the process's identity.
        let facts = &report.process.facts;
        let image = (u64::from(facts.pid) << 32) ^ (u64::from(facts.generation) << 56);
        let process = (image ^ facts.start_ticks).wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xff_ffff;
        Self {
            report,
            out,
            process: process | 1,
            tracks: 0,
        }
    }

    /// Writes a packet. A trace is its packets one after the other, so each is written as a trace of one packet.
    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let trace = Trace {
            packet: vec![TracePacket {
                trusted_packet_sequence_id: Some(SEQUENCE),
                ..packet
            }],
        };
        self.out.write_all(&trace.encode_to_vec())
    }

    /// Writes a clock snapshot, which ties boot time to real time where both are known.
    pub(super) fn clocks(&mut self) -> io::Result<()> {
        let as_of = self.report.as_of;
        let clock = |id, time| Clock {
            clock_id: Some(id),
            timestamp: Some(time),
        };
        let mut clocks = vec![clock(BOOTTIME, as_of.boot_ns)];
        if as_of.unix_ns != 0 {
            clocks.push(clock(REALTIME, as_of.unix_ns));
        }
        self.packet(TracePacket {
            clock_snapshot: Some(ClockSnapshot {
                clocks,
                primary_trace_clock: Some(BOOTTIME),
            }),
            ..TracePacket::default()
        })
    }

    fn descriptor(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket {
            track_descriptor: Some(track),
            ..TracePacket::default()
        })
    }

    /// Writes the process's own track, below which all others lie.
    pub(super) fn process(&mut self) -> io::Result<()> {
        let facts = &self.report.process.facts;
        let process = ProcessDescriptor {
            pid: Some(facts.pid),
            cmdline: facts.cmdline.clone(),
            process_name: Some(facts.comm.clone()),
        };
        self.descriptor(TrackDescriptor {
            uuid: Some(self.process),
            process: Some(process),
            child_ordering: Some(ORDER_EXPLICIT),
            ..TrackDescriptor::default()
        })
    }

    pub(super) fn process_track(&self) -> u64 {
        self.process
    }

    /// Makes a track below another one, and returns its identity.
    fn describe(&mut self, parent: u64, name: &str, more: TrackDescriptor) -> io::Result<u64> {
        self.tracks += 1;
        let uuid = self.process.wrapping_add(self.tracks);
        self.descriptor(TrackDescriptor {
            uuid: Some(uuid),
            parent_uuid: Some(parent),
            name: Some(name.to_owned()),
            sibling_order_rank: Some(self.tracks),
            ..more
        })?;
        Ok(uuid)
    }

    /// Makes the group for a device's tracks.
    pub(super) fn group(&mut self, device: i32) -> io::Result<u64> {
        let ordered = TrackDescriptor {
            child_ordering: Some(ORDER_EXPLICIT),
            ..TrackDescriptor::default()
        };
        self.describe(self.process, &format!("device {device}"), ordered)
    }

    /// Makes a track of slices or instants. Perfetto's page draws tracks of one name in one group as one track.
    pub(super) fn track(&mut self, group: u64, name: &str) -> io::Result<u64> {
        self.describe(group, name, TrackDescriptor::default())
    }

    /// Makes a counter of bytes.
    pub(super) fn counter(&mut self, group: u64, of: &Holder, what: &str) -> io::Result<u64> {
        let device = of.device;
        let name = match of.pool {
            None => format!("device {device} {what}"),
            Some((high, low)) => format!("device {device} pool ({high}, {low}) {what}"),
        };
        let bytes = TrackDescriptor {
            counter: Some(CounterDescriptor {
                unit: Some(UNIT_SIZE_BYTES),
            }),
            ..TrackDescriptor::default()
        };
        self.describe(group, &name, bytes)
    }

    fn track_event(
        &mut self,
        time_ns: u64,
        kind: u32,
        track: u64,
        event: TrackEvent,
    ) -> io::Result<()> {
        self.packet(TracePacket {
            timestamp: Some(time_ns),
            timestamp_clock_id: Some(BOOTTIME),
            track_event: Some(TrackEvent {
                kind: Some(kind),
                track_uuid: Some(track),
                ..event
            }),
            ..TracePacket::default()
        })
    }

    /// Writes a counter's value from this moment on.
    pub(super) fn level(&mut self, time_ns: u64, track: u64, bytes: u64) -> io::Result<()> {
        let level = TrackEvent {
            counter_value: Some(bytes),
            ..TrackEvent::default()
        };
        self.track_event(time_ns, TYPE_COUNTER, track, level)
    }

    /// Writes the begin or the end of a slice, or an instant.
    pub(super) fn event(
        &mut self,
        time_ns: u64,
        kind: Kind,
        track: u64,
        event: TrackEvent,
    ) -> io::Result<()> {
        self.track_event(time_ns, kind.number(), track, event)
    }
}
