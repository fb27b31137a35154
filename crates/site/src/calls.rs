//! Finds the calls of PyTorch's `record_trace`, and of `free_block`, which calls it when a free completes.
//!
//! A probe on the entry of `record_trace` runs three times for an allocation and its free. Probes on the calls need not run for
//! the third ([`TraceCalls`]). All code of the library is disassembled for this, function by function, from the first
//! instruction that each symbol names; so a call that is found is an instruction, and no call is missed.
//!
//! Nothing is guessed: where the code is not as in every PyTorch that we know, the result says why.

use crate::elf::{Elf, ElfError, ReadAt, SymbolTable};
use crate::place::Machine;
use crate::stripped::{Flow, decoder};
use memscope_vendors::pytorch;
use object::elf::STT_FUNC;

/// Most bytes of code that are disassembled. PyTorch's library of the allocator has a few hundred thousand.
pub(crate) const MOST_CODE: u64 = 16 << 20;

/// Where PyTorch's allocator calls the functions that tell of a free. All are offsets in the file, of call instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceCalls {
    /// Calls of `record_trace`, except for the one in `free_block`.
    pub record_trace: Vec<u64>,
    /// The call of `record_trace` in `free_block`: a free completes.
    pub completed: u64,
    /// Calls of `free_block`, except for the one in `free`: a free completes that had to wait.
    pub waited: Vec<u64>,
}

/// Why the calls cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoCalls {
    /// The file has more code than is disassembled.
    #[error(
        "its file has {bytes} bytes of code, more than the {MOST_CODE} that are searched for calls"
    )]
    TooMuch {
        /// Number of bytes of its functions.
        bytes: u64,
    },
    /// The file is for a machine whose code cannot be searched.
    #[error("code of this machine cannot be searched for calls")]
    Machine,
    /// A function has bytes that are no instruction.
    #[error("the function at {address:#x} of its file cannot be disassembled to its end")]
    Undecoded {
        /// Address of the function in the file's own numbering.
        address: u64,
    },
    /// A function is not called as often as it must be.
    #[error("{function} calls {called} {times} times, where there should be one call")]
    Times {
        /// The function that calls.
        function: &'static str,
        /// The function that is called.
        called: &'static str,
        /// Number of calls that were found.
        times: usize,
    },
    /// Another function ends with a jump to one of the functions, instead of a call.
    #[error("a function ends with a jump to {0}")]
    Jump(&'static str),
}

/// A function's code in the file.
struct Function {
    address: u64,
    size: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Free,
    FreeBlock,
    Other,
}

/// Finds the calls, given the address of `record_trace` in the file's own numbering. The inner result says why they cannot be used.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub(crate) fn find<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
    tables: &[&SymbolTable],
    record_trace: u64,
) -> Result<Result<TraceCalls, NoCalls>, ElfError> {
    let Some(decode) = decoder(Machine::from_elf(elf.machine)) else {
        return Ok(Err(NoCalls::Machine));
    };
    // A file may have this function thousands of times, and each time all of this is done again.
    let bytes = tables.iter().map(|table| table.bytes()).sum();
    if elf.look_at(bytes).is_err() {
        // The function itself is found: only its calls are not looked for.
        return Ok(Err(NoCalls::TooMuch { bytes }));
    }
    let functions = functions(tables);
    // Sizes are what the file says: their sum may be larger than any number.
    let bytes = functions
        .iter()
        .fold(0, |sum: u64, function| sum.saturating_add(function.size));
    if bytes > MOST_CODE {
        return Ok(Err(NoCalls::TooMuch { bytes }));
    }
    if elf.look_at(bytes).is_err() {
        return Ok(Err(NoCalls::TooMuch { bytes }));
    }
    let of_kind = |kind| functions.iter().filter(move |one| one.kind == kind);
    // The compiler puts pieces of a function elsewhere, which have its name as well; its entry is in the piece that comes back to it.
    // They are in the order of their addresses, as the functions are.
    let entries: Vec<u64> = of_kind(Kind::FreeBlock).map(|one| one.address).collect();
    let is_entry = |target: &u64| entries.binary_search(target).is_ok();
    let mut traces = Vec::new();
    let mut frees = Vec::new();
    for function in &functions {
        let Some((offset, available)) = elf.code_offset_of(function.address) else {
            continue;
        };
        let size = function.size.min(available);
        let code = elf.bytes_at(offset, size, "the code of a function")?;
        let mut at = 0;
        while let Some(step) = decode(
            code.get(at..).unwrap_or(&[]),
            function.address.wrapping_add(at as u64),
        ) {
            let inside = |target: u64| target.wrapping_sub(function.address) < function.size;
            match step.flow {
                Flow::Call(target) if target == record_trace => {
                    traces.push((function.kind, offset + at as u64));
                }
                Flow::Call(target) if is_entry(&target) => {
                    frees.push((function.kind, offset + at as u64));
                }
                Flow::Jump(target) | Flow::MayJump(target) if !inside(target) => {
                    if target == record_trace {
                        return Ok(Err(NoCalls::Jump("record_trace")));
                    }
                    if is_entry(&target) && function.kind != Kind::FreeBlock {
                        return Ok(Err(NoCalls::Jump("free_block")));
                    }
                }
                _ => {}
            }
            at += step.bytes;
        }
        if at < code.len() {
            let address = function.address;
            return Ok(Err(NoCalls::Undecoded { address }));
        }
    }
    Ok(sorted(&traces, &frees))
}

/// Sorts the calls by what their probes tell.
fn sorted(traces: &[(Kind, u64)], frees: &[(Kind, u64)]) -> Result<TraceCalls, NoCalls> {
    let of = |calls: &[(Kind, u64)], kind| -> Vec<u64> {
        let calls = calls.iter().filter(|(of, _)| *of == kind);
        calls.map(|(_, at)| *at).collect()
    };
    let once = |function, called, calls: &[u64]| match calls {
        [one] => Ok(*one),
        calls => Err(NoCalls::Times {
            function,
            called,
            times: calls.len(),
        }),
    };
    let completed = once("free_block", "record_trace", &of(traces, Kind::FreeBlock))?;
    let requested = once("free", "record_trace", &of(traces, Kind::Free))?;
    once("free", "free_block", &of(frees, Kind::Free))?;
    let mut record_trace = of(traces, Kind::Other);
    record_trace.push(requested);
    record_trace.sort_unstable();
    let mut waited = of(frees, Kind::Other);
    waited.extend(of(frees, Kind::FreeBlock));
    waited.sort_unstable();
    Ok(TraceCalls {
        record_trace,
        completed,
        waited,
    })
}

/// The functions that have a symbol with a size, each once, in the order of their addresses.
fn functions(tables: &[&SymbolTable]) -> Vec<Function> {
    let all = tables.iter().flat_map(|table| table.defined());
    let mut functions: Vec<Function> = all
        .filter(|symbol| symbol.kind == STT_FUNC.0 && symbol.size > 0)
        .map(|symbol| Function {
            address: symbol.address,
            size: symbol.size,
            kind: match symbol.name {
                name if pytorch::FREES
                    .iter()
                    .any(|free| name.starts_with(free.as_bytes())) =>
                {
                    Kind::Free
                }
                name if name.starts_with(pytorch::FREE_BLOCK.as_bytes()) => Kind::FreeBlock,
                _ => Kind::Other,
            },
        })
        .collect();
    functions.sort_by_key(|one| (one.address, one.kind == Kind::Other, one.size));
    functions.dedup_by_key(|one| one.address);
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_sorted_by_what_they_tell() {
        use Kind::{Free, FreeBlock, Other};
        let traces = [(Other, 9), (FreeBlock, 1), (Free, 5), (Other, 3)];
        let frees = [(Other, 20), (Free, 21), (Other, 12)];
        let expected = TraceCalls {
            record_trace: vec![3, 5, 9],
            completed: 1,
            waited: vec![12, 20],
        };
        assert_eq!(sorted(&traces, &frees), Ok(expected));
        for lacking in [1, 2] {
            let mut traces = traces.to_vec();
            traces.remove(lacking);
            assert!(sorted(&traces, &frees).is_err(), "without {lacking}");
            traces.extend([(FreeBlock, 1), (FreeBlock, 2), (Free, 5), (Free, 6)]);
            assert!(sorted(&traces, &frees).is_err(), "twice {lacking}");
        }
        let none = NoCalls::Times {
            function: "free",
            called: "free_block",
            times: 0,
        };
        assert_eq!(sorted(&traces, &frees[..1]), Err(none));
    }
}
