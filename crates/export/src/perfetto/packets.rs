//! The packets of a Perfetto trace.
//!
//! Owns: field numbers, clocks, and tracks' identities. Refuses: to know what a block is.

use crate::levels::Holder;
use crate::private_pool::Pool;
use crate::wire::Message;
use memscope_ledger::report::SnapshotReport;
use std::io::{self, Write};

/// `BUILTIN_CLOCK_REALTIME` and `BUILTIN_CLOCK_BOOTTIME`.
const REALTIME: u64 = 1;
const BOOTTIME: u64 = 6;
/// Any number: there is one sequence.
const SEQUENCE: u64 = 1;
const TYPE_COUNTER: u64 = 4;
const UNIT_SIZE_BYTES: u64 = 3;
const ORDER_EXPLICIT: u64 = 3;

/// Kinds of track event, in the order in which they may come at one moment on one track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    End,
    Instant,
    Begin,
}

impl Kind {
    fn number(self) -> u64 {
        match self {
            Kind::Begin => 1,
            Kind::End => 2,
            Kind::Instant => 3,
        }
    }
}

/// Fields of the messages used, by their names in Perfetto's `protos/perfetto/trace`.
mod trace {
    pub(super) const PACKET: u32 = 1;
}
mod packet {
    pub(super) const CLOCK_SNAPSHOT: u32 = 6;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const TRUSTED_PACKET_SEQUENCE_ID: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const TIMESTAMP_CLOCK_ID: u32 = 58;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
}
mod clock_snapshot {
    pub(super) const CLOCKS: u32 = 1;
    pub(super) const PRIMARY_TRACE_CLOCK: u32 = 2;
}
mod clock {
    pub(super) const CLOCK_ID: u32 = 1;
    pub(super) const TIMESTAMP: u32 = 2;
}
mod track_descriptor {
    pub(super) const UUID: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const PROCESS: u32 = 3;
    pub(super) const PARENT_UUID: u32 = 5;
    pub(super) const COUNTER: u32 = 8;
    pub(super) const CHILD_ORDERING: u32 = 11;
    pub(super) const SIBLING_ORDER_RANK: u32 = 12;
}
mod process_descriptor {
    pub(super) const PID: u32 = 1;
    pub(super) const CMDLINE: u32 = 2;
    pub(super) const PROCESS_NAME: u32 = 6;
}
mod counter_descriptor {
    pub(super) const UNIT: u32 = 3;
}
mod track_event {
    pub(super) const DEBUG_ANNOTATIONS: u32 = 4;
    pub(super) const TYPE: u32 = 9;
    pub(super) const TRACK_UUID: u32 = 11;
    pub(super) const CATEGORIES: u32 = 22;
    pub(super) const NAME: u32 = 23;
    pub(super) const COUNTER_VALUE: u32 = 30;
}
mod debug_annotation {
    pub(super) const UINT_VALUE: u32 = 3;
    pub(super) const STRING_VALUE: u32 = 6;
    pub(super) const POINTER_VALUE: u32 = 7;
    pub(super) const NAME: u32 = 10;
}

/// Writes packets.
pub(super) struct Packets<'a, W> {
    pub(super) report: &'a SnapshotReport,
    out: &'a mut W,
    /// Where packets are put together.
    packet: Message,
    process: u64,
    /// Tracks made so far.
    tracks: u64,
}

impl<'a, W: Write> Packets<'a, W> {
    pub(super) fn new(report: &'a SnapshotReport, out: &'a mut W) -> Self {
        // Tracks are told apart in all traces that are opened together.
        let facts = &report.process.facts;
        let image = (u64::from(facts.pid) << 32) ^ (u64::from(facts.generation) << 56);
        let process = (image ^ facts.start_ticks).wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xff_ffff;
        Self {
            report,
            out,
            packet: Message::default(),
            process: process | 1,
            tracks: 0,
        }
    }

    fn packet(&mut self, write: impl FnOnce(&mut Message)) -> io::Result<()> {
        self.packet.clear();
        self.packet.nested(trace::PACKET, |packet| {
            packet.uint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
            write(packet);
        });
        self.out.write_all(self.packet.bytes())
    }

    /// Ties boot time to real time, where both are known.
    pub(super) fn clocks(&mut self) -> io::Result<()> {
        let as_of = self.report.as_of;
        self.packet(|packet| {
            packet.nested(packet::CLOCK_SNAPSHOT, |snapshot| {
                for (id, time) in [(BOOTTIME, as_of.boot_ns), (REALTIME, as_of.unix_ns)] {
                    if id == REALTIME && time == 0 {
                        continue;
                    }
                    snapshot.nested(clock_snapshot::CLOCKS, |clock| {
                        clock.uint(clock::CLOCK_ID, id);
                        clock.uint(clock::TIMESTAMP, time);
                    });
                }
                snapshot.uint(clock_snapshot::PRIMARY_TRACE_CLOCK, BOOTTIME);
            });
        })
    }

    /// The process's own track, above all others.
    pub(super) fn process(&mut self) -> io::Result<()> {
        let (uuid, facts) = (self.process, &self.report.process.facts);
        self.packet(|packet| {
            packet.nested(packet::TRACK_DESCRIPTOR, |track| {
                track.uint(track_descriptor::UUID, uuid);
                track.nested(track_descriptor::PROCESS, |process| {
                    process.uint(process_descriptor::PID, u64::from(facts.pid));
                    for word in &facts.cmdline {
                        process.text(process_descriptor::CMDLINE, word);
                    }
                    process.text(process_descriptor::PROCESS_NAME, &facts.comm);
                });
                track.uint(track_descriptor::CHILD_ORDERING, ORDER_EXPLICIT);
            });
        })
    }

    pub(super) fn process_track(&self) -> u64 {
        self.process
    }

    fn describe(
        &mut self,
        parent: u64,
        name: &str,
        more: impl FnOnce(&mut Message),
    ) -> io::Result<u64> {
        self.tracks += 1;
        let (uuid, rank) = (self.process.wrapping_add(self.tracks), self.tracks);
        self.packet(|packet| {
            packet.nested(packet::TRACK_DESCRIPTOR, |track| {
                track.uint(track_descriptor::UUID, uuid);
                track.uint(track_descriptor::PARENT_UUID, parent);
                track.text(track_descriptor::NAME, name);
                track.uint(track_descriptor::SIBLING_ORDER_RANK, rank);
                more(track);
            });
        })?;
        Ok(uuid)
    }

    /// A device's group.
    pub(super) fn group(&mut self, device: i32) -> io::Result<u64> {
        self.describe(self.process, &format!("device {device}"), |track| {
            track.uint(track_descriptor::CHILD_ORDERING, ORDER_EXPLICIT);
        })
    }

    /// A track of slices or instants. The page draws tracks of one name in one group as one.
    pub(super) fn track(&mut self, group: u64, name: &str) -> io::Result<u64> {
        self.describe(group, name, |_| {})
    }

    /// A track of bytes.
    pub(super) fn counter(&mut self, group: u64, of: &Holder, what: &str) -> io::Result<u64> {
        let device = of.device;
        let name = match of.pool {
            None => format!("device {device} {what}"),
            Some((high, low)) => format!("device {device} pool ({high}, {low}) {what}"),
        };
        self.describe(group, &name, |track| {
            track.nested(track_descriptor::COUNTER, |counter| {
                counter.uint(counter_descriptor::UNIT, UNIT_SIZE_BYTES);
            });
        })
    }

    fn track_event(
        &mut self,
        time_ns: u64,
        kind: u64,
        track: u64,
        write: impl FnOnce(&mut Message),
    ) -> io::Result<()> {
        self.packet(|packet| {
            packet.uint(packet::TIMESTAMP, time_ns);
            packet.uint(packet::TIMESTAMP_CLOCK_ID, BOOTTIME);
            packet.nested(packet::TRACK_EVENT, |event| {
                event.uint(track_event::TYPE, kind);
                event.uint(track_event::TRACK_UUID, track);
                write(event);
            });
        })
    }

    /// A counter's value from now on.
    pub(super) fn level(&mut self, time_ns: u64, track: u64, bytes: u64) -> io::Result<()> {
        self.track_event(time_ns, TYPE_COUNTER, track, |event| {
            event.uint(track_event::COUNTER_VALUE, bytes);
        })
    }

    /// A slice begins or ends, or something happens at a moment.
    pub(super) fn event(
        &mut self,
        time_ns: u64,
        kind: Kind,
        track: u64,
        write: impl FnOnce(&mut Annotated<'_>),
    ) -> io::Result<()> {
        self.track_event(time_ns, kind.number(), track, |event| {
            write(&mut Annotated { event });
        })
    }
}

/// An event with what is known about it.
pub(super) struct Annotated<'a> {
    event: &'a mut Message,
}

impl Annotated<'_> {
    pub(super) fn name(&mut self, name: &str) {
        self.event.text(track_event::NAME, name);
    }

    pub(super) fn category(&mut self, category: &str) {
        self.event.text(track_event::CATEGORIES, category);
    }

    fn annotate(&mut self, name: &str, value: impl FnOnce(&mut Message)) {
        self.event
            .nested(track_event::DEBUG_ANNOTATIONS, |annotation| {
                annotation.text(debug_annotation::NAME, name);
                value(annotation);
            });
    }

    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.annotate(name, |a| a.uint(debug_annotation::UINT_VALUE, value));
    }

    pub(super) fn pointer(&mut self, name: &str, value: u64) {
        self.annotate(name, |a| a.uint(debug_annotation::POINTER_VALUE, value));
    }

    pub(super) fn note(&mut self, name: &str, text: &str) {
        self.annotate(name, |a| a.text(debug_annotation::STRING_VALUE, text));
    }

    pub(super) fn pool(&mut self, (high, low): Pool) {
        self.note("pool", &format!("({high}, {low})"));
    }
}
