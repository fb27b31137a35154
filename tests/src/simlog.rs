//! The simulated device's log: what the driver really gave and took.
//!
//! Only calls of the driver count: it is the one through which all memory comes. Its layers above are
//! in the log as well, with another depth.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::path::Path;

use crate::calllog::{CallLog, hexadecimal};

/// A log file that simulated devices write (`SIMCUDA_LOG`).
pub struct SimLog {
    log: CallLog,
}

impl Deref for SimLog {
    type Target = CallLog;
    fn deref(&self) -> &CallLog {
        &self.log
    }
}

/// What a process holds, by kind of memory: (count, bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// cuMemAlloc, cuMemAllocPitch.
    pub plain: (u64, u64),
    /// cuMemAllocAsync, cuMemAllocFromPoolAsync.
    pub stream_ordered: (u64, u64),
    /// cuMemAllocManaged.
    pub managed: (u64, u64),
    /// cuMemCreate.
    pub physical: (u64, u64),
    /// cuMemHostAlloc, cuMemAllocHost; cuMemCreate and cuMemAllocFromPoolAsync of the host.
    pub host: (u64, u64),
    /// cuMemHostRegister.
    pub registered: (u64, u64),
    /// cuMemAddressReserve.
    pub reserved: (u64, u64),
    /// cuIpcOpenMemHandle.
    pub imported: u64,
}

impl Held {
    /// Device memory of all kinds.
    pub fn device(&self) -> (u64, u64) {
        let kinds = [self.plain, self.stream_ordered, self.managed, self.physical];
        kinds
            .iter()
            .fold((0, 0), |sum, kind| (sum.0 + kind.0, sum.1 + kind.1))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Plain,
    Async,
    Managed,
    Host,
    Registered,
    Reserved,
    Imported,
}

struct Physical {
    /// It is the host's.
    of_host: bool,
    size: u64,
    handles: u32,
    mappings: u32,
}

impl SimLog {
    /// A log in this folder.
    pub fn inside(folder: &Path) -> SimLog {
        SimLog {
            log: CallLog::inside(folder, "simcuda.jsonl"),
        }
    }

    /// What the driver has given to a process and not taken back.
    pub fn held(&self, pid: u32) -> Held {
        let mut live: HashMap<(bool, String), (Kind, u64)> = HashMap::new();
        let mut physical: HashMap<String, Vec<Physical>> = HashMap::new();
        let mut mapped: HashMap<u64, (u64, String, usize)> = HashMap::new();
        // A map names no handle in the log. It is taken to be of the oldest memory that was never
        // mapped, else of the memory made last: so do PyTorch and the tests.
        let mut waiting: VecDeque<(String, usize)> = VecDeque::new();
        let mut newest = (String::new(), 0);
        for call in self.calls(pid) {
            let function = call["function"].as_str().unwrap_or_default();
            if call["result"] != 0 || !function.starts_with("cu") || function.starts_with("cuda") {
                continue;
            }
            let pointer = call["pointer"].as_str().unwrap_or_default().to_owned();
            let size = call["size"].as_u64().unwrap_or_default();
            let space = function.starts_with("cuMemAddress");
            let of_host = call["device"] == -1;
            let mut come = |kind| {
                live.insert((space, pointer.clone()), (kind, size));
            };
            match function {
                "cuMemAlloc_v2" | "cuMemAllocPitch_v2" => come(Kind::Plain),
                "cuMemAllocManaged" => come(Kind::Managed),
                "cuMemHostAlloc" | "cuMemAllocHost_v2" => come(Kind::Host),
                "cuMemHostRegister_v2" => come(Kind::Registered),
                "cuMemAddressReserve" => come(Kind::Reserved),
                "cuIpcOpenMemHandle_v2" => come(Kind::Imported),
                _ if function.starts_with("cuMemAllocAsync")
                    || function.starts_with("cuMemAllocFromPool") =>
                {
                    come(if of_host { Kind::Host } else { Kind::Async });
                }
                "cuMemCreate" => {
                    let list = physical.entry(pointer.clone()).or_default();
                    list.push(Physical {
                        of_host,
                        size,
                        handles: 1,
                        mappings: 0,
                    });
                    newest = (pointer, list.len() - 1);
                    waiting.push_back(newest.clone());
                }
                "cuMemMap" => {
                    let (handle, at) = waiting.pop_front().unwrap_or_else(|| newest.clone());
                    physical
                        .get_mut(&handle)
                        .expect("a map of memory that was made")[at]
                        .mappings += 1;
                    mapped.insert(hexadecimal(&pointer), (size, handle, at));
                }
                "cuMemUnmap" => {
                    let from = hexadecimal(&pointer);
                    mapped.retain(|start, (_, handle, at)| {
                        let stays = *start < from || *start >= from + size;
                        if !stays {
                            physical.get_mut(handle).unwrap()[*at].mappings -= 1;
                        }
                        stays
                    });
                }
                "cuMemRelease" => {
                    let memory = physical
                        .get_mut(&pointer)
                        .and_then(|list| list.iter_mut().find(|m| m.handles > 0));
                    memory.expect("a handle that was made").handles -= 1;
                    waiting.retain(|(handle, at)| physical[handle][*at].handles > 0);
                }
                "cuMemFree_v2"
                | "cuMemFreeAsync"
                | "cuMemFreeAsync_ptsz"
                | "cuMemFreeHost"
                | "cuMemHostUnregister"
                | "cuMemAddressFree"
                | "cuIpcCloseMemHandle" => {
                    live.remove(&(space, pointer));
                }
                _ => {}
            }
        }
        let mut held = Held::default();
        for (kind, size) in live.into_values() {
            let sum = match kind {
                Kind::Plain => &mut held.plain,
                Kind::Async => &mut held.stream_ordered,
                Kind::Managed => &mut held.managed,
                Kind::Host => &mut held.host,
                Kind::Registered => &mut held.registered,
                Kind::Reserved => &mut held.reserved,
                Kind::Imported => {
                    held.imported += 1;
                    continue;
                }
            };
            *sum = (sum.0 + 1, sum.1 + size);
        }
        for memory in physical
            .into_values()
            .flatten()
            .filter(|m| m.handles + m.mappings > 0)
        {
            let sum = if memory.of_host {
                &mut held.host
            } else {
                &mut held.physical
            };
            *sum = (sum.0 + 1, sum.1 + memory.size);
        }
        held
    }
}
