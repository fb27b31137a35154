//! End-to-end tests of memscope: what the test binaries share.
//!
//! Owns: starting daemons, clients and workloads, waiting for them, and ending them. Refuses: any use
//! of memscope's own crates; the tests see what users see: two programs, a socket and JSON.
//!
//! Every wait has a deadline and every wait is for a condition. Every program runs in a process group
//! that ends with the value that owns it, and with this process. Nothing is shared between tests: each
//! daemon has a socket and a state directory of its own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod book;
mod bpf;
mod bpffs;
mod build;
mod calllog;
mod calls;
pub mod certificates;
mod ctl;
mod daemon;
mod disk;
mod dumps;
mod group;
mod kept;
pub mod limits;
mod memory;
mod npu;
mod npulog;
pub mod nvml;
mod page;
mod piped;
mod places;
mod program;
mod scrape;
mod sim;
mod simlog;
mod terminal;
mod torch;
mod wait;
mod xtask;

pub use bpf::{Kind as BpfKind, Objects, entries as bpf_entries, exists as bpf_exists};
pub use bpffs::BpfFs;
pub use build::{Library, NOBODY, copy_program, executable, library, public, strip};
pub use calllog::CallLog;
pub use calls::Calls;
pub use ctl::{Asking, Said};
pub use daemon::Daemon;
pub use disk::SmallDisk;
pub use dumps::dumped;
pub use group::Group;
pub use kept::{NO_PAUSE, about, assert_pytorchs};
pub use memory::{changed_bytes, text_of};
pub use npu::{npu, npu_by_tail_calls};
pub use npulog::{NpuFlag, NpuHeld, NpuLog};
pub use page::{Listening, Page, Reply, read};
pub use piped::piped;
pub use places::{root, scratch, tool, workload, workload_line};
pub use program::Program;
pub use scrape::{get, metrics_address, metrics_of};
pub use sim::{Device, Sim, sim, sim_of};
pub use simlog::{Held, SimLog};
pub use terminal::Terminal;
pub use torch::{Torch, assert_histories, assert_totals, claims_to_know, compared};
pub use wait::{LONG, SHORT, eventually, until};
pub use xtask::xtask;

pub use serde_json::{Value, json};
pub use tempfile::TempDir;

/// A MiB.
pub const MIB: u64 = 1 << 20;

/// An unsigned number in a JSON document.
#[track_caller]
pub fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("not an unsigned number: {value}"))
}

/// The element of a JSON list with this value under this key.
pub fn find<'a>(list: &'a Value, key: &str, wanted: impl Into<Value>) -> Option<&'a Value> {
    let wanted = wanted.into();
    list.as_array()?
        .iter()
        .find(|element| element[key] == wanted)
}

/// The one device of an answer to `stats` that has this ordinal.
#[track_caller]
pub fn device(stats: &Value, ordinal: i64) -> &Value {
    find(&stats["devices"], "device", ordinal)
        .unwrap_or_else(|| panic!("no device {ordinal} in {stats:#}"))
}

/// The codes of an answer's coverage notes.
pub fn coverage(answer: &Value) -> Vec<&str> {
    let notes = answer["coverage"].as_array();
    notes
        .into_iter()
        .flatten()
        .filter_map(|note| note["code"].as_str())
        .collect()
}

/// Fails unless this test may load BPF programs: a test that cannot run has not passed.
pub fn need_root() {
    // SAFETY: no arguments, no memory.
    let user = unsafe { libc::geteuid() };
    assert!(
        user == 0,
        "this test needs root (user 0) to load BPF programs, and runs as user {user}"
    );
}

/// Count and bytes of what a process holds from the driver, on all devices.
#[track_caller]
pub fn held(stats: &Value) -> (u64, u64) {
    let devices = stats["devices"].as_array().unwrap();
    devices.iter().fold((0, 0), |sum, device| {
        (
            sum.0 + number(&device["driver"]["count"]),
            sum.1 + number(&device["driver"]["bytes"]),
        )
    })
}
