//! How a record's bytes are put together.

use core::mem::{offset_of, size_of};
use memscope_common::{
    RECORD_VERSION, RecordHeader, STACK_BITS, STACK_BUSY, STACK_MASK, STACK_NO_FRAMES, STACK_NONE,
    STACK_NOT_SAMPLED, STACK_UNREADABLE,
};
use memscope_ledger::event::{Event, StackRef};

pub(crate) fn put(record: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = record.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// The stack of an event as a record has it.
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

/// An empty record with its header. The records that are made here have a few dozen bytes.
pub(crate) fn begun<T>(event: &Event, kind: u16, flags: u8) -> Vec<u8> {
    let mut record = vec![0; size_of::<T>()];
    let len = size_of::<T>() as u16;
    put(
        &mut record,
        offset_of!(RecordHeader, len),
        &len.to_ne_bytes(),
    );
    put(
        &mut record,
        offset_of!(RecordHeader, kind),
        &kind.to_ne_bytes(),
    );
    put(
        &mut record,
        offset_of!(RecordHeader, version),
        &[RECORD_VERSION],
    );
    put(&mut record, offset_of!(RecordHeader, flags), &[flags]);
    put(
        &mut record,
        offset_of!(RecordHeader, process),
        &event.process.0.to_ne_bytes(),
    );
    put(
        &mut record,
        offset_of!(RecordHeader, tid),
        &event.tid.to_ne_bytes(),
    );
    for (at, number) in [
        (offset_of!(RecordHeader, time_ns), event.time_ns),
        (offset_of!(RecordHeader, sequence), event.id.sequence),
        (offset_of!(RecordHeader, lost_before), event.lost_before),
        (offset_of!(RecordHeader, stack), stack(event)),
    ] {
        put(&mut record, at, &number.to_ne_bytes());
    }
    record
}
