//! Compares the rows with the prototypes of the real headers.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeSet, HashMap};

use memscope_common::{AscendExtra, NO_ARG, Op, PtrMode, SizeMode, TorchAbi};
use memscope_vendors::{Abi, Layer, Match, Purpose, Variant, Vendor, row, rows};

/// What the tables of prototypes say about one function.
struct Prototype {
    abi: Abi,
    narrow: bool,
}

fn prototypes() -> HashMap<String, Prototype> {
    let tables = [
        include_str!("facts/cuda_prototypes.txt"),
        include_str!("facts/hip_prototypes.txt"),
    ];
    tables
        .iter()
        .flat_map(|table| table.lines())
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let mut words = line.split_whitespace();
            let function = words.next().unwrap();
            let words: Vec<&str> = words.collect();
            (function.to_owned(), prototype(function, &words))
        })
        .collect()
}

/// The prototypes of Ascend's functions, whose table names the arguments by their roles.
fn ascend_prototypes() -> HashMap<String, Prototype> {
    include_str!("facts/ascend_prototypes.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let mut words = line.split_whitespace();
            let function = words.next().unwrap();
            let mut abi = Abi {
                apart: true,
                ..Abi::default()
            };
            for (position, word) in (0..).zip(words) {
                let (word, result) = match word.strip_suffix('^') {
                    Some(word) => (word, true),
                    None => (word, false),
                };
                let mode = if result { PtrMode::Out } else { PtrMode::Value };
                match word {
                    "ptr" => abi.ptr = Some((position, mode)),
                    "size" => abi.size = Some((position, SizeMode::Value)),
                    "total" => abi.size = Some((position, SizeMode::Out)),
                    "free" | "extra" => abi.extra = Some(position),
                    "handle" => abi.handle = Some((position, result)),
                    "word" => {
                        abi.extra = Some(position);
                        abi.told = AscendExtra::Flags;
                    }
                    // The program reads these from argument 2.
                    "properties" | "location" => {
                        assert_eq!(position, 2, "{function}");
                        abi.told = match word {
                            "properties" => AscendExtra::Properties,
                            _ => AscendExtra::Location,
                        };
                    }
                    _ => assert!(!result, "{function}: {word}"),
                }
            }
            let narrow = false;
            (function.to_owned(), Prototype { abi, narrow })
        })
        .collect()
}

/// Finds the roles of the arguments by the names that the headers give them.
fn prototype(function: &str, words: &[&str]) -> Prototype {
    let mut abi = Abi::default();
    let mut narrow = false;
    let mut position = 0;
    let pitched = words
        .iter()
        .any(|word| word.to_lowercase().contains("pitch^"));
    for word in words {
        let (bits32, word) = match word.strip_prefix("32:") {
            Some(rest) => (true, rest),
            None => (false, *word),
        };
        let (result, word) = match word.strip_suffix('^') {
            Some(rest) => (true, rest),
            None => (false, word),
        };
        let mode = if result { PtrMode::Out } else { PtrMode::Value };
        let mut used = true;
        match word {
            "devPtr" | "pHost" | "ptr" | "p" | "pp" | "dptr" | "pdptr" | "ptr_out" | "dev_ptr"
            | "hostPtr" => {
                abi.ptr = Some((position, mode));
            }
            "pitchedDevPtr" => {
                abi.ptr = Some((position, PtrMode::Out));
                abi.size = Some((position, SizeMode::Extent));
            }
            "addr" if function.contains("Retain") => abi.ptr = Some((position, mode)),
            "size" | "bytesize" | "sizeBytes" | "dev" | "device" | "deviceId" => {
                abi.size = Some((position, SizeMode::Value))
            }
            "height" | "Height" if pitched => abi.size = Some((position, SizeMode::Pitch)),
            "total" => abi.size = Some((position, SizeMode::Out)),
            "free" | "pitch" | "pPitch" | "offset" => abi.extra = Some(position),
            "pStream" | "phStream" | "stream" | "pool_out" if result => {
                abi.handle = Some((position, true))
            }
            "poolProps" | "pool_props" => abi.extra = Some(position),
            "location" => abi.ptr = Some((position, mode)),
            "hStream" | "stream" => abi.stream = Some(position),
            "handle" | "pool" | "memPool" | "mem_pool" | "array" | "mipmappedArray" | "pHandle"
            | "hArray" | "hMipmappedArray" | "pctx" | "ctx" => {
                abi.handle = Some((position, result))
            }
            "[extent]" => abi.stack = abi.size.is_some(),
            _ => used = false,
        }
        narrow |= used && bits32;
        if !word.starts_with('[') {
            position += 1;
        }
    }
    Prototype { abi, narrow }
}

#[test]
fn every_row_is_as_its_prototype() {
    let mut prototypes = prototypes();
    prototypes.extend(ascend_prototypes());
    let mut checked = BTreeSet::new();
    for row in rows() {
        let Purpose::Call(_) = row.purpose else {
            continue;
        };
        let plain = row.name.strip_suffix("_ptsz").unwrap_or(row.name);
        let known = prototypes
            .get(plain)
            .unwrap_or_else(|| panic!("no prototype of {}", row.name));
        assert_eq!(row.abi, known.abi, "{}", row.name);
        assert_eq!(row.narrow, known.narrow, "{}", row.name);
        assert_eq!(row.per_thread_stream, plain != row.name, "{}", row.name);
        assert!(
            row.returns,
            "{}: its status is known at its return",
            row.name
        );
        checked.insert(plain);
    }
    let listed: BTreeSet<&str> = prototypes.keys().map(String::as_str).collect();
    assert_eq!(checked, listed, "prototypes without a row");
}

#[test]
fn operations_go_with_what_the_call_passes() {
    for row in rows() {
        let Purpose::Call(op) = row.purpose else {
            continue;
        };
        let (ptr, size, handle) = (row.abi.ptr, row.abi.size, row.abi.handle);
        let out = ptr.is_some_and(|(_, mode)| mode == PtrMode::Out);
        let result = handle.is_some_and(|(_, result)| result);
        let fine = match op {
            Op::Alloc | Op::ManagedAlloc | Op::HostAlloc | Op::Reserve => out && size.is_some(),
            Op::AsyncAlloc => out && size.is_some() && row.abi.stream.is_some(),
            Op::AsyncFree => ptr.is_some() && !out && row.abi.stream.is_some(),
            Op::Free | Op::HostFree | Op::HostUnregister | Op::IpcClose => ptr.is_some() && !out,
            // Ascend's functions are given no size: the vendor's software knows what is reserved or mapped at an
            // address.
            Op::ReserveFree | Op::Unmap => {
                ptr.is_some() && !out && (size.is_some() || row.vendor == Some(Vendor::Ascend))
            }
            Op::HostRegister => ptr.is_some() && !out && size.is_some(),
            Op::Map => ptr.is_some() && !out && size.is_some() && handle.is_some() && !result,
            Op::Create => result && size.is_some(),
            Op::PopContext => result || row.vendor == Some(Vendor::Ascend),
            Op::Import | Op::ArrayAlloc => result,
            Op::Retain => result && ptr.is_some(),
            Op::Release | Op::ArrayFree => handle.is_some() && !result,
            Op::SetContext => handle.is_some() && result == size.is_some(),
            Op::PushContext => handle.is_some() && result == size.is_some(),
            Op::PrimaryContext => result && size.is_some(),
            Op::IpcOpen => out && size.is_none(),
            Op::MemInfo => row.abi.extra.is_some() && size.is_some(),
            Op::SetDevice => size.is_some(),
            Op::Reset => !out,
            Op::NewStream => result,
            Op::PoolOf => result && (ptr.is_some() || size.is_some() || row.abi.extra.is_some()),
        };
        assert!(fine, "{}", row.name);
    }
}

#[test]
fn names_and_symbols_are_unique() {
    let names: BTreeSet<&str> = rows().iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows().len());
    for row in rows() {
        match row.symbol {
            Match::Exact(symbol) => assert_eq!(symbol, row.name),
            Match::Mangled(prefix) => assert!(
                [
                    "_ZN3c10",
                    "_ZNO3c106IValue",
                    "_ZN5torch8autograd",
                    "_ZN7c10_npu",
                    "_ZN9torch_npu"
                ]
                .iter()
                .any(|known| prefix.starts_with(known)),
                "{}",
                row.name
            ),
            Match::Calls(other) => assert!(memscope_vendors::row(other).is_some()),
        }
        // Only functions through which no exception can pass have return probes.
        assert_eq!(
            row.returns,
            matches!(row.layer, Layer::Runtime | Layer::Driver)
                || matches!(row.purpose, Purpose::Region(_)),
            "{}",
            row.name
        );
    }
}

#[test]
fn cookies_say_the_same_as_rows() {
    for row in rows() {
        let cookie = row.cookie(77, Variant::Only);
        if let Purpose::Mark(abi) = row.purpose {
            assert_eq!(cookie.site(), 77);
            assert_eq!(cookie.mark_form(), abi.form as u8);
            assert_eq!(cookie.mark_arg(), abi.arg);
            assert_eq!(cookie.mark_kind(), abi.kind);
            assert_eq!(cookie.mark_source(), abi.source as u16);
            continue;
        }
        assert_eq!((cookie.site(), cookie.op()), (77, row.op()), "{}", row.name);
        let arg = |value: Option<u8>| value.unwrap_or(NO_ARG);
        assert_eq!(cookie.ptr(), arg(row.abi.ptr.map(|p| p.0)));
        assert_eq!(cookie.ptr_mode(), row.abi.ptr.map_or(0, |p| p.1 as u8));
        assert_eq!(cookie.size(), arg(row.abi.size.map(|s| s.0)));
        assert_eq!(cookie.size_mode(), row.abi.size.map_or(0, |s| s.1 as u8));
        assert_eq!(cookie.stream(), arg(row.abi.stream));
        assert_eq!(cookie.handle(), arg(row.abi.handle.map(|h| h.0)));
        assert_eq!(
            cookie.handle_is_result(),
            row.abi.handle.is_some_and(|h| h.1)
        );
        assert_eq!(cookie.extra(), arg(row.abi.extra));
        assert_eq!(cookie.told(), row.abi.told as u8);
        assert_eq!(cookie.apart(), row.abi.apart);
        let is_call = matches!(row.purpose, Purpose::Call(_));
        assert_eq!(row.abi.apart, is_call && row.vendor == Some(Vendor::Ascend));
    }
    let trace = row("DeviceCachingAllocator::record_trace").unwrap();
    let cookie = trace.cookie(
        1,
        Variant::Trace(TorchAbi {
            device: true,
            pool: false,
        }),
    );
    assert!(cookie.torch_device() && !cookie.torch_pool());
}
