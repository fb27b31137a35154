//! Entries of traced processes in the programs' own tables, by handle: calls in flight, operators, devices of threads, contexts,
//! code objects.
//!
//! The programs remove an entry when what it describes ends. Entries that are left when a process is no longer traced
//! are removed here. Otherwise the tables would fill up, until there is no room for any process.

use std::collections::BTreeSet;

use aya::Ebpf;
use aya::maps::{HashMap as BpfHashMap, MapData};
use memscope_common::{InflightThread, OperatorCall, RegionCall, name, process_of_thread};

use super::ProbeError;
use super::maps::map_error;

/// A table whose key is a thread: [`memscope_common::thread_key`].
type ByThread<const VALUE: usize> = BpfHashMap<MapData, u64, [u8; VALUE]>;

/// Size in bytes of an entry of `THREAD_DEVICE`: how many contexts the thread has pushed, and a word for each that is followed.
const THREAD_DEVICE: usize = 40;

/// The tables of the BPF programs whose entries belong to single processes. The entries of a process are removed at
/// its end.
pub(super) struct Tables {
    inflight: ByThread<{ size_of::<InflightThread>() }>,
    devices: ByThread<THREAD_DEVICE>,
    regions: ByThread<{ size_of::<RegionCall>() }>,
    operators: ByThread<{ size_of::<OperatorCall>() }>,
    /// Keys are context and process handle.
    contexts: BpfHashMap<MapData, [u64; 2], i32>,
    /// Keys are process handle and code object.
    codes: BpfHashMap<MapData, [u64; 2], u64>,
}

fn open<K: aya::Pod, V: aya::Pod>(
    bpf: &mut Ebpf,
    table: &'static str,
) -> Result<BpfHashMap<MapData, K, V>, ProbeError> {
    let map = bpf
        .take_map(table)
        .ok_or_else(|| ProbeError::Missing(table.to_owned()))?;
    BpfHashMap::try_from(map).map_err(map_error(table, "opened"))
}

impl Tables {
    pub(super) fn open(bpf: &mut Ebpf) -> Result<Tables, ProbeError> {
        Ok(Tables {
            inflight: open(bpf, name::INFLIGHT)?,
            devices: open(bpf, name::THREAD_DEVICE)?,
            regions: open(bpf, name::REGION_CALLS)?,
            operators: open(bpf, name::OPERATOR_CALLS)?,
            contexts: open(bpf, name::CONTEXTS)?,
            codes: open(bpf, name::CODES)?,
        })
    }

    /// Removes the entries that belong to none of these processes. Returns whether code objects were among them.
    pub(super) fn keep_only(&mut self, processes: &BTreeSet<u32>) -> Result<bool, ProbeError> {
        let thread = |key: &u64| process_of_thread(*key);
        keep(&mut self.inflight, name::INFLIGHT, processes, thread)?;
        keep(&mut self.devices, name::THREAD_DEVICE, processes, thread)?;
        keep(&mut self.regions, name::REGION_CALLS, processes, thread)?;
        keep(&mut self.operators, name::OPERATOR_CALLS, processes, thread)?;
        keep(&mut self.contexts, name::CONTEXTS, processes, |key| {
            key[1] as u32
        })?;
        let removed = keep(&mut self.codes, name::CODES, processes, |key| key[0] as u32)?;
        Ok(removed > 0)
    }
}

/// Most keys that one pass visits. A limit is needed because the kernel begins with the first key again when a
/// program removes an entry during the pass. The largest table has half as many entries.
const MOST_KEYS: usize = 1 << 17;

fn keep<K: aya::Pod, V: aya::Pod>(
    map: &mut BpfHashMap<MapData, K, V>,
    table: &'static str,
    processes: &BTreeSet<u32>,
    process: impl Fn(&K) -> u32,
) -> Result<usize, ProbeError> {
    let mut gone = Vec::new();
    for key in map.keys().take(MOST_KEYS) {
        let key = key.map_err(map_error(table, "read"))?;
        if !processes.contains(&process(&key)) {
            gone.push(key);
        }
    }
    for key in &gone {
        // A program may have removed it in the meantime.
        let _ = map.remove(key);
    }
    Ok(gone.len())
}
