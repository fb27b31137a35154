//! Maps of the BPF object: their data, and what is told where one fails.

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

/// The data of a map, whatever its kind in this object.
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
