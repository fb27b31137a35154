//! Which functions of which vendors exist, and how they pass arguments: data, not code.
//!
//! Owns: one table for each vendor of devices (`cuda`, `ascend`, `hip`), one for each framework ([`pytorch`],
//! [`torch_npu`]), and tables for marks, for pools that programs report themselves, and for ranks ([`launchers`]).
//! Everything that differs between vendors and is known before a process is examined comes from here: the probes, the
//! names of libraries, the device's name in answers, and the environment variable that chooses devices. Refuses: to read
//! files and processes.
//!
//! A new vendor is a file with its [`Facts`], and a line in [`VENDORS`].

mod ascend;
mod cuda;
mod facts;
mod hip;
pub mod launchers;
mod marks;
mod mstx_memory;
pub mod pytorch;
mod reading;
mod row;
pub mod torch_npu;
mod vendor;

pub use facts::{Facts, Library};
pub use row::{Abi, Layer, Match, Purpose, Row, Variant};
pub use vendor::Vendor;

use std::sync::LazyLock;

/// Every vendor. If a process has libraries of several vendors, it uses the devices of the one that comes first here:
/// PyTorch for CUDA loads CUDA's libraries even where CUDA is not used, while the libraries of the other vendors are
/// loaded only by programs that use them.
pub const VENDORS: [&Facts; 3] = [&ascend::FACTS, &hip::FACTS, &cuda::FACTS];

impl Vendor {
    /// What is known of the vendor.
    pub fn facts(self) -> &'static Facts {
        let found = VENDORS.into_iter().find(|facts| facts.vendor == self);
        found.unwrap_or(&cuda::FACTS)
    }

    /// Name of the vendor's devices in answers: `cuda`, `npu`, `hip`.
    pub fn device_kind(self) -> &'static str {
        self.facts().device_kind
    }

    /// The vendor whose devices a process uses, by the paths or names of the libraries that it has mapped. `None` if
    /// none of them belongs to a vendor.
    pub fn of_libraries<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> Option<Vendor> {
        let has = |facts: &&&Facts| {
            paths.clone().any(|path| {
                let name = path.rsplit('/').next().unwrap_or(path);
                facts
                    .libraries
                    .iter()
                    .any(|library| library.is(name.as_bytes()))
            })
        };
        VENDORS.iter().find(has).map(|facts| facts.vendor)
    }
}

/// The vendor's library that a file with this name (without its folder) is; `None` if it is none.
pub fn library(file_name: &[u8]) -> Option<&'static Library> {
    let mut all = VENDORS.into_iter().flat_map(|facts| facts.libraries);
    all.find(|library| library.is(file_name))
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let vendors = VENDORS.into_iter().flat_map(|facts| facts.rows);
    let frameworks = [pytorch::ROWS, torch_npu::ROWS];
    let others = [marks::ROWS, mstx_memory::ROWS, &[LINKER]];
    let all = vendors.copied().chain(frameworks).chain(others);
    all.flatten().copied().collect()
});

/// The dynamic linker's hook, which it calls when objects were mapped or unmapped.
const LINKER: Row = Row::new(
    "_dl_debug_state",
    None,
    Layer::Loader,
    "ld-",
    Purpose::Loader,
)
.essential();

/// Every function that may get a probe: of the vendors, the frameworks, the libraries for marks and pools, and the
/// linker.
pub fn rows() -> &'static [Row] {
    &ROWS
}

/// The row with this name.
pub fn row(name: &str) -> Option<&'static Row> {
    rows().iter().find(|row| row.name == name)
}

/// Whether the row with this name is a report of blocks and totals.
pub fn is_report(name: &str) -> bool {
    row(name).is_some_and(|row| row.purpose == Purpose::Report)
}

/// Whether the row with this name tells of allocations that failed because memory ran out.
pub fn tells_oom(name: &str) -> bool {
    row(name).is_some_and(|row| matches!(row.purpose, Purpose::Oom | Purpose::Trace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vendor_has_its_facts_once() {
        for vendor in [Vendor::Cuda, Vendor::Ascend, Vendor::Hip] {
            let own = VENDORS.iter().filter(|facts| facts.vendor == vendor);
            assert_eq!(own.count(), 1, "{vendor:?}");
            assert_eq!(vendor.facts().vendor, vendor);
            let rows = vendor.facts().rows.iter().copied().flatten();
            assert!(rows.clone().count() > 20, "{vendor:?}");
            for row in rows {
                assert_eq!(row.vendor, Some(vendor), "{}", row.name);
            }
        }
    }

    #[test]
    fn names_are_used_once() {
        let mut names: Vec<&str> = rows().iter().map(|row| row.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn libraries_are_known_by_their_files() {
        let is = |name: &str| library(name.as_bytes()).map(|library| library.name);
        assert_eq!(is("libcudart.so.13"), Some("libcudart"));
        assert_eq!(is("libcudart-0d7a4d33.so.12"), Some("libcudart"));
        assert_eq!(is("libcuda.so.1"), Some("libcuda"));
        assert_eq!(is("libcudadebugger.so.1"), None);
        assert_eq!(is("libamdhip64.so.6"), Some("libamdhip64"));
        assert_eq!(is("libc10_cuda.so"), Some("libc10_cuda"));
        assert_eq!(is("libc10.so"), None);
    }

    #[test]
    fn whose_devices_a_process_uses() {
        let of = |paths: &[&str]| Vendor::of_libraries(paths.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["/x/libc10_cuda.so"]), Some(Vendor::Cuda));
        let both = ["/x/libc10_cuda.so", "/y/libascendcl.so"];
        assert_eq!(of(&both), Some(Vendor::Ascend));
        assert_eq!(of(&["/opt/rocm/lib/libamdhip64.so.6"]), Some(Vendor::Hip));
    }
}
