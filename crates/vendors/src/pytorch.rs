//! PyTorch's functions, recognised by their mangled names.
//!
//! They are C++ and may be left by an exception, so none of them has a return probe. The encoding
//! of the parameters in the symbol says which variant a file has. An unknown variant is refused
//! with a reason, since its arguments would be read from the wrong places.

use memscope_common::{MarkForm, TorchAbi};

pub use crate::reading::Reading;
use crate::{Layer, Purpose, Row, Variant, Vendor, torch_npu};

const REPORT: &str = "_ZN3c1027reportMemoryUsageToProfilerE";
const OOM: &str = "_ZN3c1027reportOutOfMemoryToProfilerE";
const TRACE: &str =
    "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator12record_traceE";

/// Beginnings of the symbol of the function that requests a free: `DeviceCachingAllocator::free`, and since 2.13 `free_locked`,
/// which `free` calls.
pub const FREES: [&str; 2] = [
    "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator4freeE",
    "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator11free_lockedE",
];

/// Beginning of the symbol of `DeviceCachingAllocator::free_block`, by which a free completes.
pub const FREE_BLOCK: &str =
    "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator10free_blockE";

/// Symbol of `c10::cuda::CUDACachingAllocator::allocator`, the pointer to the allocator in use.
pub const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";

/// Symbol of PyTorch's cached number of devices (`c10::cuda::device_count()::count`), a 32-bit number. It is 0 until
/// the program has asked for it.
pub const DEVICE_COUNT: &str = "_ZZN3c104cuda12device_countEvE5count";

/// Symbol of the allocator's settings since PyTorch 2.10: an object.
pub const SETTINGS: &str =
    "_ZZN3c1016CachingAllocator26AcceleratorAllocatorConfig8instanceEvE8instance";

/// Symbol of the allocator's settings in versions before 2.10: a pointer to them. Each library that uses the settings
/// has such a pointer, and one of these is not null.
pub const SETTINGS_POINTER: &str =
    "_ZZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig8instanceEvE10s_instance";

const fn pool(
    name: &'static str,
    library: &'static str,
    purpose: Purpose,
    prefix: &'static str,
) -> Row {
    Row::new(name, Some(Vendor::Cuda), Layer::Pool, library, purpose).mangled(prefix)
}

pub(crate) const ROWS: &[Row] = &[
    pool(
        "c10::reportMemoryUsageToProfiler",
        "libc10.so",
        Purpose::Report,
        REPORT,
    )
    .essential(),
    pool(
        "c10::reportOutOfMemoryToProfiler",
        "libc10.so",
        Purpose::Oom,
        OOM,
    )
    .essential(),
    pool(
        "DeviceCachingAllocator::record_trace",
        "libc10_cuda.so",
        Purpose::Trace,
        TRACE,
    )
    .essential(),
];

/// Reads the rest of a symbol, after `prefix`, which belongs to the row of a function with this purpose.
pub fn read(prefix: &str, purpose: Purpose, rest: &str) -> Reading {
    // A clone made by the compiler has the name of the original, but its parameters may be others.
    let (parameters, clone) = match rest.split_once('.') {
        Some((parameters, clone)) => (parameters, Some(clone)),
        None => (rest, None),
    };
    match clone {
        None => {}
        Some(clone) if clone.starts_with("cold") => return Reading::Piece,
        Some(clone) if clone.starts_with("localalias") || clone.starts_with("lto_priv") => {}
        Some(clone) => {
            return Reading::Refused(format!(
                "the compiler made a clone of it (.{clone}), whose arguments may lie elsewhere"
            ));
        }
    }
    if let Some(reading) = torch_npu::read(prefix, parameters) {
        return reading;
    }
    match purpose {
        Purpose::Report => match parameters {
            "PvlmmNS_6DeviceE" | "PvlllNS_6DeviceE" => Reading::Is(Variant::Only),
            "PvlNS_6DeviceE" => Reading::Refused(
                "this PyTorch is too old: its reporting function has no totals".to_owned(),
            ),
            _ => unknown(parameters),
        },
        Purpose::Oom => match parameters {
            "lmmNS_6DeviceE" | "lllNS_6DeviceE" => Reading::Is(Variant::Only),
            _ => unknown(parameters),
        },
        Purpose::Trace => match trace_abi(parameters) {
            Some(abi) => Reading::Is(Variant::Trace(abi)),
            None => unknown(parameters),
        },
        Purpose::Mark(abi) => match (abi.form, parameters) {
            (MarkForm::String, "RKSsRKSt8optionalISsE") => Reading::Is(Variant::OldString),
            (
                MarkForm::String,
                "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8optionalIS7_E",
            )
            // No argument of such a function is read.
            | (MarkForm::Bare, _) => Reading::Is(Variant::Only),
            _ => unknown(parameters),
        },
        Purpose::Call(_)
        | Purpose::Loader
        | Purpose::Launch
        | Purpose::Region(_)
        | Purpose::Workspace => Reading::Is(Variant::Only),
    }
}

fn unknown(parameters: &str) -> Reading {
    Reading::Refused(format!(
        "its parameters ({parameters}) are not those of a PyTorch that we know"
    ))
}

/// Reads parameters of the form `(Action, addr, size, stream [, device] [, pool], context [, …])`. Parameters after the
/// context do not change the places of those before it.
fn trace_abi(parameters: &str) -> Option<TorchAbi> {
    let rest = parameters.strip_prefix('N')?;
    const ACTION: &str = "10TraceEntry6ActionE";
    let at = rest.find(ACTION)?;
    // The scope of TraceEntry is a substitution, then perhaps a class.
    let scope = &rest[..at];
    if !matches!(
        scope,
        "S1_" | "S2_" | "S_22CachingDeviceAllocator" | "S0_22CachingDeviceAllocator"
    ) {
        return None;
    }
    let rest = &rest[at + ACTION.len()..];
    let rest = rest.strip_prefix('l').or_else(|| rest.strip_prefix('m'))?;
    let rest = rest.strip_prefix('m')?;
    let rest = rest.strip_prefix("P11CUstream_st")?;
    let (device, rest) = match rest.strip_prefix('a') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let pair = rest
        .strip_prefix("St4pairIyyE")
        .or_else(|| rest.strip_prefix("St4pairImmE"));
    let (pool, rest) = match pair {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let rest = rest.strip_prefix("St10shared_ptrIN")?;
    if !rest.contains("GatheredContextE") {
        return None;
    }
    // A pool without a device before it is an unknown variant: the pool would not lie where we read it.
    if pool && !device {
        return None;
    }
    Some(TorchAbi { device, pool })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// PyTorch's version, parameters of `record_trace`, whether there is a device, whether there is a pool. Seen with
    /// readelf in the wheels of PyPI (cp311).
    const SEEN: &[(&str, &str, bool, bool)] = &[
        (
            "2.1.2",
            "NS1_10TraceEntry6ActionElmP11CUstream_stSt10shared_ptrINS_15GatheredContextEE",
            false,
            false,
        ),
        (
            "2.4.1",
            "NS1_10TraceEntry6ActionEmmP11CUstream_staSt10shared_ptrINS_15GatheredContextEE",
            true,
            false,
        ),
        (
            "2.6.0",
            "NS1_10TraceEntry6ActionEmmP11CUstream_staSt10shared_ptrINS_15GatheredContextEE",
            true,
            false,
        ),
        (
            "2.8.0",
            "NS1_10TraceEntry6ActionEmmP11CUstream_staSt4pairIyyESt10shared_ptrINS_15GatheredContextEE",
            true,
            true,
        ),
        (
            "2.9.1",
            "NS1_10TraceEntry6ActionEmmP11CUstream_staSt4pairIyyESt10shared_ptrINS_15GatheredContextEE",
            true,
            true,
        ),
        (
            "2.11.0",
            "NS_22CachingDeviceAllocator10TraceEntry6ActionEmmP11CUstream_staSt4pairIyyESt10shared_ptrINS_15GatheredContextEE",
            true,
            true,
        ),
        (
            "2.13.0",
            "NS_22CachingDeviceAllocator10TraceEntry6ActionEmmP11CUstream_staSt4pairIyyESt10shared_ptrINS_15GatheredContextEE",
            true,
            true,
        ),
        (
            "2.15.0",
            "NS_22CachingDeviceAllocator10TraceEntry6ActionEmmP11CUstream_staSt4pairIyyESt10shared_ptrINS_15GatheredContextEESt8optionalINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEE",
            true,
            true,
        ),
    ];

    #[test]
    fn every_version_seen() {
        for (version, rest, device, pool) in SEEN {
            assert_eq!(
                read(TRACE, Purpose::Trace, rest),
                Reading::Is(Variant::Trace(TorchAbi {
                    device: *device,
                    pool: *pool
                })),
                "{version}"
            );
        }
    }

    #[test]
    fn demangles_to_what_it_is() {
        for (_, rest, _, _) in SEEN {
            let symbol = format!("{TRACE}{rest}");
            let name = cpp_demangle::Symbol::new(&symbol)
                .unwrap()
                .demangle()
                .unwrap();
            assert!(
                name.starts_with(
                    "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::record_trace("
                ),
                "{name}"
            );
        }
    }

    #[test]
    fn unknown_parameters_are_refused() {
        for rest in [
            "",
            "v",
            // a wider device index
            "NS1_10TraceEntry6ActionEmmP11CUstream_stsSt10shared_ptrINS_15GatheredContextEE",
            // the size before the address, or another type
            "NS1_10TraceEntry6ActionEmjP11CUstream_staSt10shared_ptrINS_15GatheredContextEE",
            // a pool without a device
            "NS1_10TraceEntry6ActionEmmP11CUstream_stSt4pairIyyESt10shared_ptrINS_15GatheredContextEE",
            // a reference to the pool
            "NS1_10TraceEntry6ActionEmmP11CUstream_staRKSt4pairIyyESt10shared_ptrINS_15GatheredContextEE",
            "NS1_10TraceEntry6ActionEmmP11CUstream_sta",
        ] {
            assert!(
                matches!(read(TRACE, Purpose::Trace, rest), Reading::Refused(_)),
                "{rest}"
            );
        }
    }

    #[test]
    fn clones() {
        let rest = SEEN[5].1;
        for suffix in [".isra.0", ".constprop.1", ".part.0"] {
            assert!(matches!(
                read(TRACE, Purpose::Trace, &format!("{rest}{suffix}")),
                Reading::Refused(_)
            ));
        }
        assert_eq!(
            read(TRACE, Purpose::Trace, &format!("{rest}.cold")),
            Reading::Piece
        );
        assert!(matches!(
            read(TRACE, Purpose::Trace, &format!("{rest}.lto_priv.0")),
            Reading::Is(_)
        ));
    }

    #[test]
    fn reports() {
        assert_eq!(
            read(REPORT, Purpose::Report, "PvlmmNS_6DeviceE"),
            Reading::Is(Variant::Only)
        );
        assert_eq!(
            read(REPORT, Purpose::Report, "PvlllNS_6DeviceE"),
            Reading::Is(Variant::Only)
        );
        assert!(matches!(
            read(REPORT, Purpose::Report, "PvlNS_6DeviceE"),
            Reading::Refused(why) if why.contains("too old")
        ));
        assert_eq!(
            read(OOM, Purpose::Oom, "lmmNS_6DeviceE"),
            Reading::Is(Variant::Only)
        );
        assert!(matches!(
            read(OOM, Purpose::Oom, "lNS_6DeviceE"),
            Reading::Refused(_)
        ));
    }
}
