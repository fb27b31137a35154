//! Native processes that use an NPU (`workloads/ascend.c`, `tail.c`), and whose memory is whose by the simulated one's log.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::process::Command;

use crate::build::{Library, executable, executable_with};
use crate::npulog::NpuLog;
use crate::program::Program;

/// Starts a process that makes the Ascend calls that it is told to make, with these environment variables.
pub fn npu(variables: &[(&str, &str)]) -> Program {
    let mut command = Command::new(executable("ascend.c", Library::Acl));
    command.envs(variables.iter().copied());
    let mut program = Program::start("the process on the NPU", command);
    let ready = program.hear();
    assert_eq!(ready["ready"], true, "{ready}");
    program
}

/// Starts a process whose functions are named as Ascend's and jump from one to the next (`workloads/tail.c`).
pub fn npu_by_tail_calls() -> Program {
    let command = Command::new(executable_with("tail.c", &["-O2"]));
    let mut program = Program::start("the process with tail calls", command);
    let ready = program.hear();
    assert_eq!(ready["ready"], true, "{ready}");
    program
}

/// Count and bytes.
pub type Sum = (u64, u64);

/// What the driver has given to a process and not taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// Device memory of all kinds, by device.
    pub devices: BTreeMap<u64, Sum>,
    /// `halMemCreate` on devices.
    pub physical: Sum,
    /// Host memory that was allocated.
    pub host: Sum,
    /// Host memory that was page-locked.
    pub registered: Sum,
    /// Address space.
    pub reserved: Sum,
    /// Memory of other processes.
    pub imported: u64,
    /// By device (`None`: the host) and the component's number.
    pub components: BTreeMap<(Option<u64>, u64), Sum>,
}

/// `ACL_HOST_REG_PINNED`; the older function, which has no flags, locks as well.
const PINNED: u64 = 0x1000_0000;

#[derive(Clone)]
struct Memory {
    size: u64,
    device: Option<u64>,
    module: u64,
    created: bool,
    references: u32,
}

fn add(sum: &mut Sum, size: u64) {
    *sum = (sum.0 + 1, sum.1 + size);
}

/// What the driver has given to a process and not taken back. A map names no handle in the log: it is taken to be
/// of the oldest memory that was never mapped, else of the memory made last.
pub fn owned(log: &NpuLog, pid: u32) -> Owned {
    owned_since(log, pid, 0)
}

/// The same of what it gave after so many calls.
pub fn owned_since(log: &NpuLog, pid: u32, before: usize) -> Owned {
    let mut live: HashMap<String, Memory> = HashMap::new();
    let mut mapped: HashMap<String, String> = HashMap::new();
    let mut registered: HashMap<String, u64> = HashMap::new();
    let mut reserved: HashMap<String, u64> = HashMap::new();
    let mut imported: HashMap<String, ()> = HashMap::new();
    let mut waiting: VecDeque<String> = VecDeque::new();
    let mut newest = String::new();
    for call in log.calls(pid).into_iter().skip(before) {
        if call["result"] != 0 {
            continue;
        }
        let pointer = call["pointer"].as_str().unwrap_or_default().to_owned();
        let size = call["size"].as_u64().unwrap_or_default();
        let flag = call["flag"].as_str().map_or(0, number);
        let made = Memory {
            size,
            device: call["device"].as_i64().and_then(|d| u64::try_from(d).ok()),
            module: flag >> 56,
            created: false,
            references: 1,
        };
        match call["function"].as_str().unwrap_or_default() {
            "halMemAlloc" => drop(live.insert(pointer, made)),
            "halMemFree" => drop(live.remove(&pointer)),
            "halMemCreate" => {
                waiting.push_back(pointer.clone());
                newest.clone_from(&pointer);
                let created = true;
                live.insert(pointer, Memory { created, ..made });
            }
            "halMemMap" => {
                let handle = waiting.pop_front().unwrap_or_else(|| newest.clone());
                if let Some(memory) = live.get_mut(&handle) {
                    memory.references += 1;
                }
                mapped.insert(pointer, handle);
            }
            "halMemUnmap" => {
                if let Some(handle) = mapped.remove(&pointer) {
                    less(&mut live, &handle);
                }
            }
            "halMemRelease" => {
                waiting.retain(|handle| *handle != pointer);
                imported.remove(&pointer);
                less(&mut live, &pointer);
            }
            "halMemAddressReserve" => drop(reserved.insert(pointer, size)),
            "halMemAddressFree" => drop(reserved.remove(&pointer)),
            "halHostRegister" if flag == 0 || flag & PINNED != 0 => {
                registered.insert(pointer, size);
            }
            "halHostUnregister" => drop(registered.remove(&pointer)),
            "halShmemOpenHandle" | "halMemImportFromShareableHandle" => {
                imported.insert(pointer, ());
            }
            "halShmemCloseHandle" => drop(imported.remove(&pointer)),
            _ => {}
        }
    }
    let mut held = Owned {
        imported: imported.len() as u64,
        ..Owned::default()
    };
    for memory in live.into_values() {
        match memory.device {
            Some(device) => add(held.devices.entry(device).or_default(), memory.size),
            None => add(&mut held.host, memory.size),
        }
        if memory.created && memory.device.is_some() {
            add(&mut held.physical, memory.size);
        }
        let owner = (memory.device, memory.module);
        add(held.components.entry(owner).or_default(), memory.size);
    }
    for size in registered.into_values() {
        add(&mut held.registered, size);
    }
    for size in reserved.into_values() {
        add(&mut held.reserved, size);
    }
    held
}

/// The user's handle and every mapping hold a reference; an import's memory is not ours.
fn less(live: &mut HashMap<String, Memory>, handle: &str) {
    let Some(memory) = live.get_mut(handle) else {
        return;
    };
    memory.references -= 1;
    if memory.references == 0 {
        live.remove(handle);
    }
}

fn number(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number in hexadecimal")
}
