//! The simulated NPU's log: what the HAL really gave and took.
//!
//! Only calls of the HAL count: it is the one through which all memory comes. The layers above are in the
//! log as well, with another depth.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::path::Path;

use serde_json::Value;

use crate::calllog::{CallLog, hexadecimal};

/// A log file that simulated NPUs write (`SIMCANN_LOG`).
pub struct NpuLog {
    log: CallLog,
}

/// Count and bytes.
pub type Sum = (u64, u64);

/// What the driver has given to a process and not taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NpuHeld {
    /// Device memory of both kinds, by device, as the program counts devices.
    pub devices: BTreeMap<u64, Sum>,
    /// halMemCreate, on devices, as long as a handle or a mapping is left.
    pub physical: Sum,
    /// halMemAlloc and halMemCreate, of the host.
    pub host: Sum,
    /// halHostRegister, where it locks the pages.
    pub registered: Sum,
    /// halMemAddressReserve.
    pub reserved: Sum,
    /// Memory of other processes: halShmemOpenHandle, and halMemImportFromShareableHandle as long as a handle or a
    /// mapping is left.
    pub imported: u64,
    /// By device (`None`: the host) and the number of the module that owns it.
    pub components: BTreeMap<(Option<u64>, u64), Sum>,
}

impl NpuHeld {
    /// Device memory of both kinds.
    pub fn device(&self) -> Sum {
        self.devices
            .values()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Bytes that a module has on devices.
    pub fn bytes_of(&self, module: u8) -> u64 {
        let owners = self.components.iter();
        owners
            .filter(|((device, number), _)| device.is_some() && *number == u64::from(module))
            .map(|(_, sum)| sum.1)
            .sum()
    }
}

/// The facts in the flag of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpuFlag {
    /// The device, as the HAL counts devices.
    pub physical: u32,
    /// Host memory.
    pub host: bool,
    /// In huge pages (2 MiB), or giant ones (1 GiB).
    pub huge: bool,
    /// In giant pages.
    pub giant: bool,
    /// The module that owns it.
    pub module: u8,
}

impl NpuFlag {
    /// Of a line of the log.
    pub fn of(call: &Value) -> NpuFlag {
        let text = call["flag"].as_str().expect("a line with a flag");
        let flag = hexadecimal(text);
        NpuFlag {
            physical: (flag & 0x3ff) as u32,
            host: flag >> 10 & 0xf == 2,
            huge: flag >> 17 & 1 == 1,
            giant: flag >> 31 & 1 == 1,
            module: (flag >> 56) as u8,
        }
    }
}

/// `ACL_HOST_REG_PINNED`; the older function, which has no flags, locks as well.
const PINNED: u64 = 0x1000_0000;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Memory,
    Registered,
    Reserved,
    Imported,
}

struct Given {
    size: u64,
    /// On the host: none.
    device: Option<u64>,
    /// Of memory that is this process's own.
    module: Option<u64>,
}

impl NpuLog {
    /// A log in this folder.
    pub fn inside(folder: &Path) -> NpuLog {
        NpuLog {
            log: CallLog::inside(folder, "simcann.jsonl"),
        }
    }

    /// What the driver has given to a process and not taken back.
    pub fn held(&self, pid: u32) -> NpuHeld {
        self.held_since(pid, 0)
    }

    /// The same of what it gave after so many calls.
    pub fn held_since(&self, pid: u32, before: usize) -> NpuHeld {
        let mut live: HashMap<(Kind, String), Given> = HashMap::new();
        let mut physical = Physical::default();
        for call in self.calls(pid).into_iter().skip(before) {
            if call["result"] != 0 {
                continue;
            }
            let pointer = call["pointer"].as_str().unwrap_or_default().to_owned();
            let flag = call["flag"].as_str().map_or(0, hexadecimal);
            let given = Given {
                size: call["size"].as_u64().unwrap_or_default(),
                device: call["device"].as_i64().and_then(|d| u64::try_from(d).ok()),
                module: Some(flag >> 56),
            };
            match call["function"].as_str().unwrap_or_default() {
                "halMemAlloc" => drop(live.insert((Kind::Memory, pointer), given)),
                "halMemFree" => drop(live.remove(&(Kind::Memory, pointer))),
                "halHostRegister" if flag == 0 || flag & PINNED != 0 => {
                    live.insert((Kind::Registered, pointer), given);
                }
                "halHostUnregister" | "halHostUnregisterEx" => {
                    live.remove(&(Kind::Registered, pointer));
                }
                "halMemAddressReserve" => drop(live.insert((Kind::Reserved, pointer), given)),
                "halMemAddressFree" => drop(live.remove(&(Kind::Reserved, pointer))),
                "halShmemOpenHandle" => drop(live.insert((Kind::Imported, pointer), given)),
                "halShmemCloseHandle" => drop(live.remove(&(Kind::Imported, pointer))),
                "halMemImportFromShareableHandle" => {
                    let module = None;
                    physical.create(pointer, Given { module, ..given });
                }
                "halMemCreate" => physical.create(pointer, given),
                "halMemMap" => physical.map(pointer),
                "halMemUnmap" => drop(physical.mapped.remove(&pointer)),
                "halMemRelease" => physical.release(&pointer),
                _ => {}
            }
        }
        let mut held = NpuHeld::default();
        for ((kind, _), given) in live {
            match kind {
                Kind::Registered => add(&mut held.registered, given.size),
                Kind::Reserved => add(&mut held.reserved, given.size),
                Kind::Imported => held.imported += 1,
                Kind::Memory => held.own(&given),
            }
        }
        for given in physical.left() {
            if given.module.is_none() {
                held.imported += 1;
                continue;
            }
            held.own(&given);
            if given.device.is_some() {
                add(&mut held.physical, given.size);
            }
        }
        held
    }
}

impl Deref for NpuLog {
    type Target = CallLog;
    fn deref(&self) -> &CallLog {
        &self.log
    }
}

impl NpuHeld {
    fn own(&mut self, given: &Given) {
        match given.device {
            Some(device) => add(self.devices.entry(device).or_default(), given.size),
            None => add(&mut self.host, given.size),
        }
        let owner = (given.device, given.module.unwrap_or_default());
        add(self.components.entry(owner).or_default(), given.size);
    }
}

fn add(sum: &mut Sum, size: u64) {
    *sum = (sum.0 + 1, sum.1 + size);
}

/// Physical memory: a handle and each mapping keep it.
#[derive(Default)]
struct Physical {
    /// By number, in the order in which it was made. An address of a handle may come again.
    made: Vec<Given>,
    handles: HashMap<String, usize>,
    /// Address of a mapping to what is mapped there.
    mapped: HashMap<String, usize>,
    /// A map names no handle in the log. It is taken to be of the oldest memory that was never mapped, else
    /// of the memory made last: so do torch_npu and the tests.
    waiting: Vec<usize>,
}

impl Physical {
    fn create(&mut self, handle: String, given: Given) {
        let number = self.made.len();
        self.made.push(given);
        self.handles.insert(handle, number);
        self.waiting.push(number);
    }

    /// Of memory from before the log was read on, there is nothing to keep.
    fn map(&mut self, address: String) {
        let number = if self.waiting.is_empty() {
            self.made.len().checked_sub(1)
        } else {
            Some(self.waiting.remove(0))
        };
        if let Some(number) = number {
            self.mapped.insert(address, number);
        }
    }

    fn release(&mut self, handle: &str) {
        if let Some(number) = self.handles.remove(handle) {
            self.waiting.retain(|waiting| *waiting != number);
        }
    }

    fn left(self) -> Vec<Given> {
        let kept: HashSet<usize> = self
            .handles
            .into_values()
            .chain(self.mapped.into_values())
            .collect();
        let made = self.made.into_iter().enumerate();
        made.filter(|(number, _)| kept.contains(number))
            .map(|(_, given)| given)
            .collect()
    }
}
