//! The simulated NPU's log: what the HAL really gave and took.
//!
//! Only calls of the HAL count: it is the one through which all memory comes. The layers above are in the
//! log as well, with another depth.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A log file that simulated NPUs write (`SIMCANN_LOG`).
pub struct NpuLog {
    file: PathBuf,
}

/// What a process holds, by kind of memory: (count, bytes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NpuHeld {
    /// halMemAlloc, on a device.
    pub plain: (u64, u64),
    /// halMemCreate, on a device, as long as a handle or a mapping is left.
    pub physical: (u64, u64),
    /// halMemAlloc and halMemCreate, of the host.
    pub host: (u64, u64),
    /// halHostRegister.
    pub registered: (u64, u64),
    /// halMemAddressReserve.
    pub reserved: (u64, u64),
    /// halShmemOpenHandle, and halMemImportFromShareableHandle as long as a handle or a mapping is left.
    pub imported: (u64, u64),
    /// Bytes of the first two by device, as the program counts devices.
    pub devices: BTreeMap<i64, u64>,
    /// Bytes of the first two by the module that owns them.
    pub modules: BTreeMap<u8, u64>,
}

impl NpuHeld {
    /// Device memory of both kinds.
    pub fn device(&self) -> (u64, u64) {
        (
            self.plain.0 + self.physical.0,
            self.plain.1 + self.physical.1,
        )
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
        let flag = u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number");
        NpuFlag {
            physical: (flag & 0x3ff) as u32,
            host: flag >> 10 & 0xf == 2,
            huge: flag >> 17 & 1 == 1,
            giant: flag >> 31 & 1 == 1,
            module: (flag >> 56) as u8,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Memory,
    Registered,
    Reserved,
    Imported,
}

struct Given {
    size: u64,
    device: i64,
    flag: Option<NpuFlag>,
}

impl NpuLog {
    /// A log in this folder.
    pub fn inside(folder: &Path) -> NpuLog {
        NpuLog {
            file: folder.join("simcann.jsonl"),
        }
    }

    /// The value of `SIMCANN_LOG`.
    pub fn path(&self) -> &str {
        self.file.to_str().expect("a path in UTF-8")
    }

    /// Every call of a process, in order.
    pub fn calls(&self, pid: u32) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let calls = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("a line of the log"));
        calls.filter(|call| call["pid"] == pid).collect()
    }

    /// What the HAL has given to a process and not taken back.
    pub fn held(&self, pid: u32) -> NpuHeld {
        let mut live: HashMap<(Kind, String), Given> = HashMap::new();
        let mut physical = Physical::default();
        for call in self.calls(pid) {
            if call["result"] != 0 {
                continue;
            }
            let pointer = call["pointer"].as_str().unwrap_or_default().to_owned();
            let given = || Given {
                size: call["size"].as_u64().unwrap_or_default(),
                device: call["device"].as_i64().unwrap_or(-1),
                flag: None,
            };
            let mut come = |kind, given| {
                live.insert((kind, pointer.clone()), given);
            };
            match call["function"].as_str().unwrap_or_default() {
                "halMemAlloc" => {
                    let flag = Some(NpuFlag::of(&call));
                    come(Kind::Memory, Given { flag, ..given() });
                }
                "halHostRegister" => come(Kind::Registered, given()),
                "halMemAddressReserve" => come(Kind::Reserved, given()),
                "halShmemOpenHandle" => come(Kind::Imported, given()),
                "halMemFree" => {
                    live.remove(&(Kind::Memory, pointer));
                }
                "halHostUnregister" | "halHostUnregisterEx" => {
                    live.remove(&(Kind::Registered, pointer));
                }
                "halMemAddressFree" => {
                    live.remove(&(Kind::Reserved, pointer));
                }
                "halShmemCloseHandle" => {
                    live.remove(&(Kind::Imported, pointer));
                }
                "halMemImportFromShareableHandle" => physical.create(pointer, given()),
                "halMemCreate" => {
                    let flag = Some(NpuFlag::of(&call));
                    physical.create(pointer, Given { flag, ..given() });
                }
                "halMemMap" => physical.map(pointer),
                "halMemUnmap" => physical.unmap(&pointer),
                "halMemRelease" => physical.release(&pointer),
                _ => {}
            }
        }
        let mut held = NpuHeld::default();
        for ((kind, _), given) in live {
            let sum = match kind {
                Kind::Registered => &mut held.registered,
                Kind::Reserved => &mut held.reserved,
                Kind::Imported => &mut held.imported,
                Kind::Memory if given.flag.is_some_and(|flag| flag.host) => &mut held.host,
                Kind::Memory => {
                    held.count_owner(&given);
                    &mut held.plain
                }
            };
            *sum = (sum.0 + 1, sum.1 + given.size);
        }
        for given in physical.left() {
            let sum = match given.flag {
                None => &mut held.imported,
                Some(flag) if flag.host => &mut held.host,
                Some(_) => {
                    held.count_owner(&given);
                    &mut held.physical
                }
            };
            *sum = (sum.0 + 1, sum.1 + given.size);
        }
        held
    }
}

impl NpuHeld {
    fn count_owner(&mut self, given: &Given) {
        *self.devices.entry(given.device).or_default() += given.size;
        if let Some(flag) = given.flag {
            *self.modules.entry(flag.module).or_default() += given.size;
        }
    }
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

    fn map(&mut self, address: String) {
        let number = if self.waiting.is_empty() {
            self.made.len().checked_sub(1).expect("memory to map")
        } else {
            self.waiting.remove(0)
        };
        self.mapped.insert(address, number);
    }

    fn unmap(&mut self, address: &str) {
        self.mapped.remove(address);
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
