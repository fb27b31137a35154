//! Checks which rows get probes at which level.
#![allow(missing_docs, clippy::unwrap_used)]

use memscope_site::{Level, at_level};
use memscope_vendors::{Layer, Vendor, row, rows};

#[test]
fn levels() {
    let at = |level: Level, vendor: Vendor| {
        rows()
            .iter()
            .filter(|row| {
                at_level(row, level) && row.layer == Layer::Pool && row.vendor == Some(vendor)
            })
            .count()
    };
    let all = [Level::Segments, Level::Blocks, Level::Trace];
    assert_eq!(all.map(|level| at(level, Vendor::Cuda)), [0, 2, 3]);
    // Workspaces are taken from the runtime, so their reports get probes at each of these levels.
    assert_eq!(all.map(|level| at(level, Vendor::Ascend)), [1, 2, 3]);
    assert!(at_level(row("cudaMalloc").unwrap(), Level::Segments));
}
