//! Pools that report their memory through mstx: decodes and encodes their records.

use crate::records::begun::header;
use crate::records::bytes::Header;
use crate::records::outcome::Skipped;
use crate::records::said::{Said, ended_by_nul};
use memscope_common::{
    DEVICE_UNKNOWN, DOMAIN_NAME, DomainRecord, HEAP_CAME, HEAP_WENT, REGION_CAME, REGION_WENT,
    REGION_WENT_BY_HANDLE, RegionRecord,
};
use memscope_ledger::event::{Body, Domain, Event, Region, RegionChange};
use std::sync::Arc;

pub(crate) fn domain(header: &Header, record: &DomainRecord) -> Said {
    if header.process == 0 {
        return Said::Skip(Skipped::NoProcess);
    }
    let told = record.name_len as usize;
    let kept = record.name.get(..told.min(DOMAIN_NAME)).unwrap_or_default();
    Said::Event(Body::Domain(Domain {
        handle: record.handle,
        name: Arc::from(ended_by_nul(kept, told >= DOMAIN_NAME - 1)),
    }))
}

pub(crate) fn region(header: &Header, record: &RegionRecord) -> Said {
    if header.process == 0 {
        return Said::Skip(Skipped::NoProcess);
    }
    let RegionRecord {
        domain,
        ptr,
        size,
        handle,
        heap,
        device,
        what,
        untold,
        ..
    } = *record;
    let device = (device >= 0).then_some(device);
    // The headers of mstx do not agree on whether a size is signed. A negative size cannot be right.
    if i64::try_from(size).is_err() {
        return Said::Skip(Skipped::NoSize);
    }
    let change = match what {
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
            heap,
        },
        REGION_WENT => RegionChange::Went { ptr },
        REGION_WENT_BY_HANDLE => RegionChange::WentByHandle { handle },
        other => return Said::Skip(Skipped::UnknownRegion(other)),
    };
    Said::Event(Body::Region(Region {
        domain,
        change,
        untold,
    }))
}

pub(crate) fn domain_record(event: &Event, domain: &Domain) -> DomainRecord {
    // One byte is left for the NUL that ends a program's name.
    let mut len = domain.name.len().min(DOMAIN_NAME - 1);
    while !domain.name.is_char_boundary(len) {
        len -= 1;
    }
    let mut name = [0; DOMAIN_NAME];
    for (to, from) in name.iter_mut().zip(domain.name.bytes().take(len)) {
        *to = from;
    }
    DomainRecord {
        header: header::<DomainRecord>(event, 0),
        handle: domain.handle,
        // At most `DOMAIN_NAME`.
        name_len: len as u32,
        reserved: 0,
        name,
    }
}

pub(crate) fn region_record(event: &Event, region: &Region) -> RegionRecord {
    let (what, device, [ptr, size, handle, heap]) = match region.change {
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
    RegionRecord {
        header: header::<RegionRecord>(event, 0),
        domain: region.domain,
        ptr,
        size,
        handle,
        heap,
        device: device.unwrap_or(DEVICE_UNKNOWN),
        what,
        reserved: 0,
        untold: region.untold,
        reserved_too: 0,
    }
}
