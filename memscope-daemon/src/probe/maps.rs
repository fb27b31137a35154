//! Helpers for the maps of the BPF object: access to a map's data, and the error for an operation that failed.

use aya::maps::{Map, MapData};

use super::ProbeError;

pub(super) fn map_error(
    map: &'static str,
    action: &'static str,
) -> impl Fn(aya::maps::MapError) -> ProbeError {
    move |source| ProbeError::Map {
        map,
        action,
        source: Box::new(source),
    }
}

/// The data of a map, whichever of the kinds in this object it is.
pub(super) fn map_data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(d)
        | Map::HashMap(d)
        | Map::LruHashMap(d)
        | Map::PerCpuArray(d)
        | Map::RingBuf(d) => Some(d),
        _ => None,
    }
}
