//! Pools that tell of themselves through mstx: records as events, and back.

use crate::records::begun::{begun, put};
use crate::records::bytes::{Bytes, Header};
use crate::records::outcome::{Malformed, Skipped};
use crate::records::said::{Said, ended_by_nul};
use core::mem::offset_of;
use memscope_common::{
    DEVICE_UNKNOWN, DOMAIN_NAME, DomainRecord, HEAP_CAME, HEAP_WENT, KIND_DOMAIN, KIND_REGION,
    REGION_CAME, REGION_WENT, REGION_WENT_BY_HANDLE, RegionRecord,
};
use memscope_ledger::event::{Body, Domain, Event, Region, RegionChange};
use std::sync::Arc;

pub(crate) fn domain(header: &Header, raw: Bytes, record: &[u8]) -> Result<Said, Malformed> {
    if header.process == 0 {
        return Ok(Said::Skip(Skipped::NoProcess));
    }
    let told = raw.u32(offset_of!(DomainRecord, name_len))? as usize;
    let from = offset_of!(DomainRecord, name);
    let bytes = record
        .get(from..from + told.min(DOMAIN_NAME))
        .unwrap_or_default();
    Ok(Said::Event(Body::Domain(Domain {
        handle: raw.u64(offset_of!(DomainRecord, handle))?,
        name: Arc::from(ended_by_nul(bytes, told >= DOMAIN_NAME - 1)),
    })))
}

pub(crate) fn region(header: &Header, raw: Bytes) -> Result<Said, Malformed> {
    if header.process == 0 {
        return Ok(Said::Skip(Skipped::NoProcess));
    }
    let device = raw.i32(offset_of!(RegionRecord, device))?;
    let device = (device >= 0).then_some(device);
    let ptr = raw.u64(offset_of!(RegionRecord, ptr))?;
    let size = raw.u64(offset_of!(RegionRecord, size))?;
    let handle = raw.u64(offset_of!(RegionRecord, handle))?;
    // The library's own headers do not agree whether it has a sign; less than nothing is nobody's size.
    if i64::try_from(size).is_err() {
        return Ok(Said::Skip(Skipped::NoSize));
    }
    let number = raw.u16(offset_of!(RegionRecord, what))?;
    let change = match number {
        HEAP_CAME => RegionChange::HeapCame {
            device,
            ptr,
            size,
            handle,
        },
        HEAP_WENT => RegionChange::HeapWent { handle },
        REGION_CAME => RegionChange::Came {
            device,
            ptr,
            size,
            handle,
            heap: raw.u64(offset_of!(RegionRecord, heap))?,
        },
        REGION_WENT => RegionChange::Went { ptr },
        REGION_WENT_BY_HANDLE => RegionChange::WentByHandle { handle },
        other => return Ok(Said::Skip(Skipped::UnknownRegion(other))),
    };
    Ok(Said::Event(Body::Region(Region {
        domain: raw.u64(offset_of!(RegionRecord, domain))?,
        change,
        untold: raw.u32(offset_of!(RegionRecord, untold))?,
    })))
}

pub(crate) fn domain_record(event: &Event, domain: &Domain) -> Vec<u8> {
    let mut record = begun::<DomainRecord>(event, KIND_DOMAIN, 0);
    put(
        &mut record,
        offset_of!(DomainRecord, handle),
        &domain.handle.to_ne_bytes(),
    );
    // One byte stays for the NUL that a program's name ends with.
    let mut len = domain.name.len().min(DOMAIN_NAME - 1);
    while !domain.name.is_char_boundary(len) {
        len -= 1;
    }
    let kept = domain.name.as_bytes().get(..len).unwrap_or_default();
    put(&mut record, offset_of!(DomainRecord, name), kept);
    // At most DOMAIN_NAME.
    let len = len as u32;
    put(
        &mut record,
        offset_of!(DomainRecord, name_len),
        &len.to_ne_bytes(),
    );
    record
}

pub(crate) fn region_record(event: &Event, region: &Region) -> Vec<u8> {
    let mut record = begun::<RegionRecord>(event, KIND_REGION, 0);
    let (what, device, numbers) = match region.change {
        RegionChange::HeapCame {
            device,
            ptr,
            size,
            handle,
        } => (HEAP_CAME, device, [ptr, size, handle, 0]),
        RegionChange::HeapWent { handle } => (HEAP_WENT, None, [0, 0, handle, 0]),
        RegionChange::Came {
            device,
            ptr,
            size,
            handle,
            heap,
        } => (REGION_CAME, device, [ptr, size, handle, heap]),
        RegionChange::Went { ptr } => (REGION_WENT, None, [ptr, 0, 0, 0]),
        RegionChange::WentByHandle { handle } => (REGION_WENT_BY_HANDLE, None, [0, 0, handle, 0]),
    };
    let [ptr, size, handle, heap] = numbers;
    for (at, number) in [
        (offset_of!(RegionRecord, domain), region.domain),
        (offset_of!(RegionRecord, ptr), ptr),
        (offset_of!(RegionRecord, size), size),
        (offset_of!(RegionRecord, handle), handle),
        (offset_of!(RegionRecord, heap), heap),
    ] {
        put(&mut record, at, &number.to_ne_bytes());
    }
    put(
        &mut record,
        offset_of!(RegionRecord, device),
        &device.unwrap_or(DEVICE_UNKNOWN).to_ne_bytes(),
    );
    put(
        &mut record,
        offset_of!(RegionRecord, what),
        &what.to_ne_bytes(),
    );
    put(
        &mut record,
        offset_of!(RegionRecord, untold),
        &region.untold.to_ne_bytes(),
    );
    record
}
