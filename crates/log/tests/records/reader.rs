//! Reading consecutive records.

use crate::common::{as_bytes, header, site};
use memscope_common::*;
use memscope_log::records::*;

fn three() -> (Vec<u8>, Vec<usize>) {
    let mappings = MappingsRecord {
        header: header::<MappingsRecord>(KIND_MAPPINGS),
    };
    let mut bytes = as_bytes(&mappings).to_vec();
    let mut ends = vec![bytes.len()];
    bytes.extend(site(1, "cudaFree", None));
    ends.push(bytes.len());
    bytes.extend(as_bytes(&mappings));
    ends.push(bytes.len());
    (bytes, ends)
}

#[test]
fn records_come_one_by_one() {
    let (bytes, ends) = three();
    let mut reader = RecordReader::new(&bytes);
    let mut start = 0;
    for end in ends {
        assert_eq!(reader.next().unwrap().unwrap(), &bytes[start..end]);
        assert_eq!(reader.offset(), end);
        start = end;
    }
    assert!(reader.next().is_none());
    assert!(RecordReader::new(&[]).next().is_none());
}

#[test]
fn a_cut_gives_the_whole_ones_and_one_error() {
    let (bytes, ends) = three();
    for len in 0..=bytes.len() {
        let whole = ends.iter().filter(|end| **end <= len).count();
        let outcomes: Vec<bool> = RecordReader::new(&bytes[..len])
            .map(|r| r.is_ok())
            .collect();
        let clean = len == 0 || ends.contains(&len);
        assert_eq!(outcomes.len(), whole + usize::from(!clean), "{len}");
        assert_eq!(outcomes.iter().filter(|ok| **ok).count(), whole);
    }
}

#[test]
fn a_length_that_is_none_ends_the_reading() {
    let (mut bytes, _) = three();
    for len in [0u16, 8, 39, 41] {
        bytes[0..2].copy_from_slice(&len.to_ne_bytes());
        let mut reader = RecordReader::new(&bytes);
        assert!(matches!(
            reader.next(),
            Some(Err(Malformed::LengthField { .. }))
        ));
        assert!(reader.next().is_none());
    }
}
