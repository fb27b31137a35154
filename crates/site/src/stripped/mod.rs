//! Finds functions of torch_npu in a library that was stripped of its symbol table, by how they are called.
//!
//! The wheels of torch_npu export a pointer to the allocator and hardly any of its functions. This module uses what is
//! left in such a file:
//!
//! 1. the name of the allocator's class, which the compiler stores for `typeid`; from it the relocations lead to the
//!    class's table of virtual functions ([`rtti`]);
//! 2. the code that these functions call ([`walk`]). We need two functions in it, and recognise each by its calls:
//!    `reportMemoryDataToNpuProfiler` gets a structure that the caller writes on its stack, field by field, beginning
//!    with the number 20 (`c10::DeviceType::PrivateUse1`); `record_trace` gets an action, which is a small constant,
//!    and different actions are passed at different places. One function calls both: the allocator's `malloc`.
//!
//! Nothing is guessed: if several functions fit, or none, the function counts as not found, and the result says so.
//! What a probe on these functions reads is proven again while it runs (`memscope-daemon`'s calibration), with the
//! sizes and totals of real calls.
//!
//! Owns: the search, on x86-64 and 64-bit Arm. Refuses: other machines.

mod rtti;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use crate::elf::{Elf, ElfError, ReadAt};
use crate::place::Machine;

pub(crate) use walk::{Flow, decoder};

/// Mangled name of the class of torch_npu's caching allocator (2.1 to 2.14).
const CLASS: &[u8] = b"N7c10_npu19NPUCachingAllocator19NpuCachingAllocatorE";
/// Actions with which every version calls `record_trace`: alloc, free requested, segment allocated, segment freed.
const ACTIONS: [u32; 4] = [0, 1, 3, 4];
/// Highest number that is accepted as an action.
const LAST_ACTION: u32 = 15;
/// Smallest number of calls that the reporting function must have. (Real ones are called in malloc, in free, and where
/// a block goes out of use.)
const REPORTS: usize = 2;

/// The functions that were found. Addresses are in the file's own numbering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Functions {
    /// Address of `torch_npu::profiler::reportMemoryDataToNpuProfiler`.
    pub report: u64,
    /// Whether the structure passed to it says which allocator reports, in one more byte before the data's type.
    pub component: bool,
    /// Address of `DeviceCachingAllocator::record_trace`.
    pub trace: u64,
    /// Addresses of the instructions outside the caching allocator that call the reporting function. They belong to
    /// other allocators, mainly to that of workspaces.
    pub others: Vec<u64>,
}

/// Why the functions were not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotFound {
    /// The allocator's class is not in the file.
    #[error("the file is stripped, and has no class {0}")]
    Class(String),
    /// The class is in the file, but its table of virtual functions was not found.
    #[error("the file is stripped, and its class {0} has no table of functions that could be read")]
    Table(String),
    /// Not exactly one function is called as the reporting function is.
    #[error(
        "the file is stripped, and among the {functions} functions that its allocator calls {found} are called as \
         reportMemoryDataToNpuProfiler is, where there should be one: this torch_npu is not known"
    )]
    Report {
        /// Number of functions whose code was read.
        functions: usize,
        /// Number of functions that fit.
        found: usize,
    },
    /// Not exactly one function is called as `record_trace` is.
    #[error(
        "the file is stripped, and among the {functions} functions that its allocator calls {found} are called as \
         record_trace is, where there should be one: this torch_npu is not known"
    )]
    Trace {
        /// Number of functions whose code was read.
        functions: usize,
        /// Number of functions that fit.
        found: usize,
    },
    /// The allocator's functions make more calls than are followed.
    #[error(
        "the file is stripped, and the {functions} functions of its allocator that were read make too many calls: this \
         torch_npu is not known"
    )]
    Calls {
        /// Number of functions whose code was read.
        functions: usize,
    },
    /// The file is for a machine whose code cannot be searched.
    #[error("the file is stripped, and code of this machine cannot be searched yet")]
    Machine,
}

/// Searches the file for both functions. The inner result says why they were not found.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn find<R: ReadAt + ?Sized>(elf: &Elf<'_, R>) -> Result<Result<Functions, NotFound>, ElfError> {
    if matches!(Machine::from_elf(elf.machine), Machine::Other(_)) {
        return Ok(Err(NotFound::Machine));
    }
    let words = rtti::Words::read(elf)?;
    let Some(name) = rtti::name_of(elf, CLASS)? else {
        return Ok(Err(NotFound::Class(class())));
    };
    let slots = words.functions_of(elf, name);
    if slots.is_empty() {
        return Ok(Err(NotFound::Table(class())));
    }
    let seen = walk::calls(elf, &slots)?;
    let mut found = match choose(&seen) {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    let known: BTreeSet<u64> = seen.calls.iter().map(|call| call.at).collect();
    found.others = report_calls(elf, found.report)?;
    found.others.retain(|at| !known.contains(at));
    Ok(Ok(found))
}

/// Addresses of all instructions that call the reporting function directly.
pub(crate) fn report_calls<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
    report: u64,
) -> Result<Vec<u64>, ElfError> {
    walk::callers(elf, report)
}

fn class() -> String {
    let mangled = format!("_ZTI{}", String::from_utf8_lossy(CLASS));
    cpp_demangle::Symbol::new(&mangled)
        .ok()
        .and_then(|symbol| symbol.demangle().ok())
        .map_or(mangled, |text| {
            text.trim_start_matches("typeinfo for ").to_owned()
        })
}

/// Chooses the two functions by how they are called.
fn choose(seen: &walk::Seen) -> Result<Functions, NotFound> {
    if seen.too_many {
        let functions = seen.functions;
        return Err(NotFound::Calls { functions });
    }
    let mut reports: BTreeMap<u64, Vec<bool>> = BTreeMap::new();
    let mut actions: BTreeMap<u64, (BTreeSet<u32>, bool)> = BTreeMap::new();
    for call in &seen.calls {
        if let Some(usage) = call.usage {
            reports
                .entry(call.target)
                .or_default()
                .push(usage.component);
        }
        let (numbers, all_small) = actions
            .entry(call.target)
            .or_insert_with(|| (BTreeSet::new(), true));
        if let Some(number) = call.second {
            numbers.insert(number);
            *all_small &= number <= LAST_ACTION;
        }
    }
    reports.retain(|_, layouts| {
        layouts.len() >= REPORTS && layouts.windows(2).all(|two| two[0] == two[1])
    });
    let functions = seen.functions;
    let (Some((report, layouts)), 1) = (reports.first_key_value(), reports.len()) else {
        let found = reports.len();
        return Err(NotFound::Report { functions, found });
    };
    let (report, component) = (*report, layouts.first().copied().unwrap_or_default());
    let reporting: BTreeSet<u64> = seen
        .calls
        .iter()
        .filter(|call| call.target == report)
        .map(|call| call.caller)
        .collect();
    // `record_trace` is called for an allocation (action 0) in a function that also reports the allocation.
    let beside: BTreeSet<u64> = seen
        .calls
        .iter()
        .filter(|call| call.second == Some(0) && reporting.contains(&call.caller))
        .map(|call| call.target)
        .collect();
    let traces: Vec<u64> = actions
        .iter()
        .filter(|(target, (numbers, all_small))| {
            **target != report
                && *all_small
                && ACTIONS.iter().all(|action| numbers.contains(action))
                && beside.contains(*target)
        })
        .map(|(target, _)| *target)
        .collect();
    match traces.as_slice() {
        [trace] => Ok(Functions {
            report,
            component,
            trace: *trace,
            others: Vec::new(),
        }),
        other => Err(NotFound::Trace {
            functions,
            found: other.len(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::walk::{Call, Seen, Usage};
    use super::*;

    fn call(caller: u64, target: u64, second: Option<u32>, usage: bool) -> Call {
        Call {
            at: 0,
            caller,
            target,
            second,
            usage: usage.then_some(Usage { component: true }),
        }
    }

    /// Calls of an allocator whose malloc is function 1, free 2 and release 3. Function 100 is the reporting function,
    /// and 200 is `record_trace`.
    fn allocator() -> Vec<Call> {
        vec![
            call(1, 200, Some(3), false),
            call(1, 200, Some(0), false),
            call(1, 100, None, true),
            call(2, 200, Some(1), false),
            call(2, 100, None, true),
            call(3, 200, Some(4), false),
            call(3, 300, Some(0), false),
        ]
    }

    fn seen(calls: Vec<Call>) -> Seen {
        Seen {
            calls,
            functions: 3,
            too_many: false,
        }
    }

    #[test]
    fn one_of_each_is_found() {
        let found = choose(&seen(allocator())).unwrap();
        let expected = Functions {
            report: 100,
            component: true,
            trace: 200,
            others: Vec::new(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn two_that_fit_are_none() {
        let mut calls = allocator();
        calls.extend([call(5, 101, None, true), call(6, 101, None, true)]);
        let none = choose(&seen(calls)).unwrap_err();
        assert_eq!(
            none,
            NotFound::Report {
                functions: 3,
                found: 2
            }
        );
        let mut calls = allocator();
        calls.extend(ACTIONS.map(|action| call(1, 201, Some(action), false)));
        assert!(matches!(
            choose(&seen(calls)),
            Err(NotFound::Trace { found: 2, .. })
        ));
    }

    #[test]
    fn what_differs_is_none() {
        for lacking in 0..6 {
            let mut calls = allocator();
            calls.remove(lacking);
            let found = choose(&seen(calls));
            assert!(found.is_err(), "without {lacking}: {found:?}");
        }
        // A number that is no action; then a call whose structure has other fields.
        let mut calls = allocator();
        calls.push(call(4, 200, Some(900), false));
        assert!(choose(&seen(calls)).is_err());
        let mut calls = allocator();
        calls[4].usage = Some(Usage { component: false });
        assert!(choose(&seen(calls)).is_err());
        assert!(choose(&seen(Vec::new())).is_err());
    }

    #[test]
    fn too_many_calls_are_none() {
        let mut many = seen(allocator());
        many.too_many = true;
        assert_eq!(choose(&many), Err(NotFound::Calls { functions: 3 }));
    }

    #[test]
    fn words() {
        assert_eq!(class(), "c10_npu::NPUCachingAllocator::NpuCachingAllocator");
    }
}
