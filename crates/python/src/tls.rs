//! Finds the thread-local variable that `PyGILState_GetThisThreadState` returns, from 3.15 on.
//!
//! The variable has no exported name, but the function that returns it has one, and it reads the variable in one of the
//! four ways that the x86-64 ABI defines. So the function's code is read (not on aarch64). Where a file's variables lie
//! is read from the running process, from the tables that its loader has filled in.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};
use memscope_memory::Memory;

use crate::slot::{ThreadStateAt, Trial, attempt};
use crate::thread::{Thread, is_thread};

/// Distance from `fsbase` of glibc's pointer to the thread's vector of thread-local variables, in bytes.
const VECTOR: i64 = 8;
/// Size of an entry of the vector in bytes.
const ENTRY: u64 = 16;
/// Number of instructions that are read at most; the function has only a few.
const INSTRUCTIONS: usize = 24;
/// A module number from this on is taken for damaged memory.
const MODULES: u64 = 1 << 16;

/// A thread-local variable: at the same distance from `fsbase` in every thread, or at an offset among the variables of
/// a module, which the loader numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    Near(i64),
    Module { module: u64, offset: u64 },
}

/// Finds the way to the variable that a function (with this code, at this address) returns, and proves it with the
/// threads that the interpreter lists.
pub(crate) fn by_function<M: Memory + ?Sized>(
    memory: &M,
    code: &[u8],
    address: u64,
    threads: &[Thread],
) -> Result<(ThreadStateAt, Trial), String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("its thread-local variable is found by reading x86-64 code only".to_owned());
    }
    let variable = variable(memory, code, address)
        .ok_or("PyGILState_GetThisThreadState reads no thread-local variable that we recognise")?;
    let mut tried = Vec::new();
    for way in ways(memory, variable, threads) {
        let trial = attempt(memory, &way, threads);
        if trial.proves() {
            return Ok((way, trial));
        }
        tried.push(format!(
            "{way}: right for {}, empty for {}, wrong for {} threads",
            trial.right, trial.empty, trial.wrong
        ));
    }
    Err(format!(
        "its thread-local variable leads to no thread state ({})",
        tried.join("; ")
    ))
}

/// Reads the function's instructions up to its first return, and follows how the returned register gets its value.
fn variable<M: Memory + ?Sized>(memory: &M, code: &[u8], address: u64) -> Option<Variable> {
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    // The addresses of table entries that RDI and RAX hold.
    let (mut argument, mut result) = (None, None);
    let mut base: Option<Variable> = None;
    for instruction in decoder.into_iter().take(INSTRUCTIONS) {
        if instruction.is_invalid() {
            return None;
        }
        match instruction.code() {
            // `lea rdi, [rip + entry]` comes before a call of __tls_get_addr; `lea rax, [rip + entry]` before a call of
            // a descriptor's function.
            Code::Lea_r64_m if instruction.is_ip_rel_memory_operand() => {
                match instruction.op0_register() {
                    Register::RDI => argument = Some(instruction.ip_rel_memory_address()),
                    Register::RAX => result = Some(instruction.ip_rel_memory_address()),
                    _ => {}
                }
            }
            Code::Call_rel32_64 => base = Some(module_entry(memory, argument?)?),
            Code::Call_rm64 if instruction.is_ip_rel_memory_operand() => {
                base = Some(module_entry(memory, argument?)?);
            }
            Code::Call_rm64 if memory_base(&instruction) == Some(Register::RAX) => {
                base = Some(descriptor(memory, result?)?);
            }
            Code::Mov_r64_rm64 if instruction.op1_kind() == OpKind::Memory => {
                let displacement = instruction.memory_displacement64();
                let returned = instruction.op0_register() == Register::RAX;
                let near = instruction.segment_prefix() == Register::FS;
                match (instruction.memory_base(), near) {
                    (Register::None, true) if returned => {
                        // The displacement has 32 bits. Processor and decoder both extend its sign.
                        return Some(Variable::Near(displacement as i64));
                    }
                    (Register::RIP, false) => {
                        base = Some(Variable::Near(memory.read_u64(displacement).ok()? as i64));
                    }
                    (Register::RAX, _) if returned => return Some(moved(base?, displacement)),
                    _ => {}
                }
            }
            Code::Retnq => return None,
            _ => {}
        }
    }
    None
}

fn memory_base(instruction: &Instruction) -> Option<Register> {
    (instruction.op0_kind() == OpKind::Memory).then(|| instruction.memory_base())
}

fn moved(variable: Variable, by: u64) -> Variable {
    match variable {
        Variable::Near(offset) => Variable::Near(offset.wrapping_add(by as i64)),
        Variable::Module { module, offset } => Variable::Module {
            module,
            offset: offset.wrapping_add(by),
        },
    }
}

/// Reads a table entry {module, offset}, which the loader has filled in.
fn module_entry<M: Memory + ?Sized>(memory: &M, entry: u64) -> Option<Variable> {
    let module = memory.read_u64(entry).ok()?;
    let offset = memory.read_u64(entry.wrapping_add(8)).ok()?;
    (1..MODULES)
        .contains(&module)
        .then_some(Variable::Module { module, offset })
}

/// Reads a descriptor {function, argument}. The argument is the distance from `fsbase`, or the address of
/// {module, offset, …}.
fn descriptor<M: Memory + ?Sized>(memory: &M, entry: u64) -> Option<Variable> {
    let argument = memory.read_u64(entry.wrapping_add(8)).ok()?;
    match argument as i64 {
        near @ ..0 => Some(Variable::Near(near)),
        _ => module_entry(memory, argument),
    }
}

/// The ways to a variable, shortest first. A module that was loaded at the start lies at the same distance from every
/// thread's `fsbase`.
fn ways<M: Memory + ?Sized>(
    memory: &M,
    variable: Variable,
    threads: &[Thread],
) -> Vec<ThreadStateAt> {
    let (module, offset) = match variable {
        Variable::Near(offset) => return vec![ThreadStateAt::Slot { offset }],
        Variable::Module { module, offset } => (module, offset),
    };
    let entry = module * ENTRY;
    let mut distances: Vec<i64> = threads
        .iter()
        .filter(|thread| is_thread(memory, thread.fsbase))
        .filter_map(|thread| {
            let vector = memory
                .read_u64(thread.fsbase.wrapping_add_signed(VECTOR))
                .ok()?;
            let variables = memory.read_u64(vector.wrapping_add(entry)).ok()?;
            // The second word is the pointer that will be freed. If it is not 0, the thread's variables of this module
            // are in allocated memory. That is not at the same distance from `fsbase` in every thread, even if it is in
            // those that we see.
            let own = memory.read_u64(vector.wrapping_add(entry + 8)).ok()?;
            (variables != u64::MAX && own == 0)
                .then(|| variables.wrapping_sub(thread.fsbase) as i64)
        })
        .collect();
    distances.sort_unstable();
    distances.dedup();
    let mut ways = Vec::new();
    if let [distance @ ..0] = distances[..] {
        ways.push(ThreadStateAt::Slot {
            offset: distance.wrapping_add(offset as i64),
        });
    }
    ways.push(ThreadStateAt::Dynamic {
        vector: VECTOR,
        entry,
        offset,
    });
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bytes;

    const CODE: u64 = 0x5000;
    const TABLE: u64 = 0x6000;

    /// Reads a function at [`CODE`] that is put together from these parts. Behind each part that is marked `true`
    /// stands a reference to [`TABLE`].
    fn read(memory: &Bytes, parts: &[(&[u8], bool)]) -> Option<Variable> {
        let mut code = Vec::new();
        for (bytes, refers) in parts {
            code.extend_from_slice(bytes);
            if *refers {
                let next = CODE + code.len() as u64 + 4;
                code.extend_from_slice(&((TABLE - next) as u32).to_le_bytes());
            }
        }
        variable(memory, &code, CODE)
    }

    const ENDBR: (&[u8], bool) = (&[0xf3, 0x0f, 0x1e, 0xfa], false);
    const RET: (&[u8], bool) = (&[0xc3], false);
    const CALL: (&[u8], bool) = (&[0xe8, 1, 2, 3, 0], false);

    #[test]
    fn in_a_program() {
        let load = (
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0xd8, 0xff, 0xff, 0xff][..],
            false,
        );
        let found = read(&Bytes::default(), &[ENDBR, load, RET]);
        assert_eq!(found, Some(Variable::Near(-40)));
    }

    #[test]
    fn by_its_distance_in_a_table() {
        let mut memory = Bytes::default();
        memory.word(TABLE, -72_i64 as u64);
        let load = (&[0x48, 0x8b, 0x05][..], true);
        let variable = (&[0x64, 0x48, 0x8b, 0x00][..], false);
        let found = read(&memory, &[ENDBR, load, variable, RET]);
        assert_eq!(found, Some(Variable::Near(-72)));
    }

    #[test]
    fn by_its_module() {
        let mut memory = Bytes::default();
        memory.word(TABLE, 4);
        memory.word(TABLE + 8, 16);
        let module = Some(Variable::Module {
            module: 4,
            offset: 16,
        });
        let push = (&[0x55, 0x48, 0x89, 0xe5][..], false);
        let argument = (&[0x48, 0x8d, 0x3d][..], true);
        let padded = (&[0x66, 0x48, 0x8d, 0x3d][..], true);
        let load = (&[0x48, 0x8b, 0x00][..], false);
        assert_eq!(
            read(&memory, &[ENDBR, push, argument, CALL, load, RET]),
            module
        );
        let padded_call = (&[0x66, 0x66, 0x48, 0xe8, 1, 2, 3, 0][..], false);
        assert_eq!(read(&memory, &[padded, padded_call, load, RET]), module);
        let call_by_table = (&[0x66, 0x48, 0xff, 0x15][..], true);
        assert_eq!(read(&memory, &[padded, call_by_table, load, RET]), module);
        // The compiler's code asks for the beginning of the module's variables and adds the offset itself.
        let load = (&[0x48, 0x8b, 0x80, 0x28, 0, 0, 0][..], false);
        assert_eq!(
            read(&memory, &[argument, CALL, load, RET]),
            Some(Variable::Module {
                module: 4,
                offset: 56
            })
        );
    }

    #[test]
    fn by_a_descriptor() {
        let mut memory = Bytes::default();
        memory.word(TABLE, 0x7777);
        memory.word(TABLE + 8, -24_i64 as u64);
        let load = (&[0x48, 0x8d, 0x05][..], true);
        let call = (&[0xff, 0x10][..], false);
        let variable = (&[0x64, 0x48, 0x8b, 0x00][..], false);
        let parts = [load, call, variable, RET];
        assert_eq!(read(&memory, &parts), Some(Variable::Near(-24)));
        memory.word(TABLE + 8, 0x9000);
        memory.word(0x9000, 5);
        memory.word(0x9008, 8);
        assert_eq!(
            read(&memory, &parts),
            Some(Variable::Module {
                module: 5,
                offset: 8
            })
        );
    }

    #[test]
    fn what_is_none_of_these() {
        let memory = Bytes::default();
        let load = (&[0x48, 0x8b, 0x00][..], false);
        for parts in [
            &[RET][..],
            &[CALL, load, RET],
            &[load, RET],
            &[(&[0x06][..], false)],
            &[],
        ] {
            assert_eq!(read(&memory, parts), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_code(code in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..96)) {
            let _ = variable(&Bytes::default(), &code, CODE);
        }
    }
}
