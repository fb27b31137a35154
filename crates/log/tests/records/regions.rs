//! Records of pools that report their memory through mstx.

use crate::common::{as_bytes, header};
use memscope_common::*;
use memscope_ledger::event::*;
use memscope_log::records::*;

fn body(record: &[u8]) -> Body {
    match Decoder::new(1).decode(record) {
        Outcome::Decoded(event) => event.body,
        other => panic!("{other:?}"),
    }
}

fn skipped(record: &[u8]) -> Skipped {
    match Decoder::new(1).decode(record) {
        Outcome::Skipped(why) => why,
        other => panic!("{other:?}"),
    }
}

fn region(what: u16) -> RegionRecord {
    RegionRecord {
        header: header::<RegionRecord>(KIND_REGION),
        domain: 0x700,
        ptr: 0x1000,
        size: 4096,
        handle: 6,
        heap: 7,
        device: 1,
        what,
        reserved: 0,
        untold: 3,
        reserved_too: 0,
    }
}

fn domain(name: &[u8]) -> DomainRecord {
    let mut record = DomainRecord {
        header: header::<DomainRecord>(KIND_DOMAIN),
        handle: 0x700,
        name_len: name.len() as u32,
        reserved: 0,
        name: [0; DOMAIN_NAME],
    };
    record.name[..name.len()].copy_from_slice(name);
    record
}

#[test]
fn what_each_record_says() {
    let (device, ptr, size, handle) = (Some(1), 0x1000, 4096, 6);
    for (what, change) in [
        (
            HEAP_CAME,
            RegionChange::HeapCame {
                device,
                ptr,
                size,
                handle,
            },
        ),
        (HEAP_WENT, RegionChange::HeapWent { handle }),
        (
            REGION_CAME,
            RegionChange::Came {
                device,
                ptr,
                size,
                handle,
                heap: 7,
            },
        ),
        (REGION_WENT, RegionChange::Went { ptr }),
        (REGION_WENT_BY_HANDLE, RegionChange::WentByHandle { handle }),
    ] {
        let expected = Region {
            domain: 0x700,
            change,
            untold: 3,
        };
        assert_eq!(body(as_bytes(&region(what))), Body::Region(expected));
    }
    let expected = Domain {
        handle: 0x700,
        name: "atb".into(),
    };
    assert_eq!(body(as_bytes(&domain(b"atb"))), Body::Domain(expected));
}

#[test]
fn what_is_not_known_or_makes_no_sense_is_skipped() {
    assert!(matches!(
        skipped(as_bytes(&region(9))),
        Skipped::UnknownRegion(9)
    ));
    let mut less = region(REGION_CAME);
    less.size = (-1i64) as u64;
    assert!(matches!(skipped(as_bytes(&less)), Skipped::NoSize));
    let mut nobody = region(REGION_CAME);
    nobody.header.process = 0;
    assert!(matches!(skipped(as_bytes(&nobody)), Skipped::NoProcess));
    let mut nowhere = region(REGION_CAME);
    nowhere.device = -1;
    let Body::Region(said) = body(as_bytes(&nowhere)) else {
        panic!();
    };
    assert!(matches!(
        said.change,
        RegionChange::Came { device: None, .. }
    ));
}

#[test]
fn names_that_are_long_or_no_text() {
    let name = |record: &DomainRecord| match body(as_bytes(record)) {
        Body::Domain(domain) => domain.name.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(name(&domain(b"")), "");
    assert_eq!(name(&domain(b"a\xffb")), "a\u{fffd}b");
    // An incomplete character at the cut is left out.
    let mut long = vec![b'x'; DOMAIN_NAME - 2];
    long.push(0xc3);
    assert_eq!(name(&domain(&long)), "x".repeat(DOMAIN_NAME - 2));
    let mut lies = domain(b"atb");
    lies.name_len = u32::MAX;
    assert!(name(&lies).starts_with("atb"));
}

#[test]
fn shorter_records_are_refused() {
    for (record, kind) in [
        (as_bytes(&region(REGION_CAME)).to_vec(), KIND_REGION),
        (as_bytes(&domain(b"atb")).to_vec(), KIND_DOMAIN),
    ] {
        let length = record.len() - 8;
        let mut other = record[..length].to_vec();
        other[..2].copy_from_slice(&(length as u16).to_ne_bytes());
        match Decoder::new(1).decode(&other) {
            Outcome::Malformed(Malformed::Size { kind: said, .. }) => assert_eq!(said, kind),
            other => panic!("{other:?}"),
        }
    }
}
