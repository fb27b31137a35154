//! The header of a record that is encoded from an event.

use core::mem::size_of;
use memscope_common::{
    RECORD_VERSION, Record, RecordHeader, STACK_BITS, STACK_BUSY, STACK_MASK, STACK_NO_FRAMES,
    STACK_NONE, STACK_NOT_SAMPLED, STACK_UNREADABLE,
};
use memscope_ledger::event::{Event, StackRef};

/// The stack of an event in the form of a record's header.
pub(crate) fn stack(event: &Event) -> u64 {
    let stack = match event.stack {
        StackRef::NotTaken => STACK_NONE,
        StackRef::NoPython => STACK_NO_FRAMES,
        StackRef::Unreadable => STACK_UNREADABLE,
        StackRef::Busy => STACK_BUSY,
        StackRef::NotSampled => STACK_NOT_SAMPLED,
        StackRef::Id(id) => id & STACK_MASK,
    };
    stack | u64::from(event.sampling) << STACK_BITS
}

/// The header of a record that is encoded from an event.
pub(crate) fn header<R: Record>(event: &Event, flags: u8) -> RecordHeader {
    RecordHeader {
        // The records that are encoded here have at most a few hundred bytes.
        len: size_of::<R>() as u16,
        kind: R::KIND,
        version: RECORD_VERSION,
        flags,
        reserved: 0,
        process: event.process.0,
        tid: event.tid,
        time_ns: event.time_ns,
        sequence: event.id.sequence,
        lost_before: event.lost_before,
        stack: stack(event),
    }
}
