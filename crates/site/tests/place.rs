//! Checks the rules for the places of probes one by one, on small pieces of code.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use memscope_site::place::{Code, Emulation, Machine, PlaceError, Placement, Wants, place};

const NEW: Emulation = Emulation::of_kernel(6, 18);
const OLD: Emulation = Emulation::of_kernel(5, 15);
const ENTRY: Wants = Wants {
    returns: false,
    stack: false,
};
const BOTH: Wants = Wants {
    returns: true,
    stack: false,
};
const STACK: Wants = Wants {
    returns: false,
    stack: true,
};

fn at(bytes: &[u8], wants: Wants, emulation: Emulation) -> Placement {
    let code = Code {
        bytes,
        whole: true,
        address: 0x1000,
        entries: &[],
    };
    place(Machine::X86_64, &code, wants, emulation).unwrap()
}

/// Offset of the entry probe, and whether the kernel emulates the instruction there.
fn where_(bytes: &[u8], wants: Wants) -> (u64, bool) {
    let found = at(bytes, wants, NEW);
    assert_eq!(
        found.return_offset,
        wants.returns.then_some(found.entry_offset),
        "the two probes share a trap"
    );
    (found.entry_offset, found.emulated)
}

#[test]
fn the_first_instruction_if_emulated() {
    for first in [
        &[0x55][..],                           // push rbp
        &[0x41, 0x57],                         // push r15
        &[0x90],                               // nop
        &[0x66, 0x90],                         // xchg ax,ax
        &[0x0f, 0x1f, 0x44, 0x00, 0x00],       // nop, 5 bytes
        &[0xe9, 0x00, 0x10, 0x00, 0x00],       // jmp, a thunk
        &[0xeb, 0x10],                         // jmp, short
        &[0xe8, 0x00, 0x10, 0x00, 0x00],       // call
        &[0x74, 0x10],                         // je
        &[0x0f, 0x84, 0x00, 0x01, 0x00, 0x00], // je, near
    ] {
        let mut bytes = first.to_vec();
        bytes.push(0xc3);
        assert_eq!(where_(&bytes, BOTH), (0, true), "{first:x?}");
    }
}

#[test]
fn what_this_kernel_does_not_emulate() {
    // nop of 5 bytes; ret
    let nop5 = [0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3];
    assert!(at(&nop5, BOTH, NEW).emulated);
    assert!(!at(&nop5, BOTH, OLD).emulated);
    assert!(!at(&[0x55, 0xc3], BOTH, Emulation::of_kernel(4, 15)).emulated);
    // xchg r8,rax has the opcode of nop but is no nop
    assert!(!at(&[0x41, 0x90, 0xc3], BOTH, NEW).emulated);
    // push with an operand-size prefix, push of memory
    assert!(!at(&[0x66, 0x50, 0xc3], BOTH, NEW).emulated);
    assert!(!at(&[0xff, 0x37, 0xc3], BOTH, NEW).emulated);
}

#[test]
fn past_endbr64_and_moves() {
    // endbr64; push rbp
    assert_eq!(
        where_(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3], BOTH),
        (4, true)
    );
    // mov r13d,esi; push r12 (arguments are read, not written)
    assert_eq!(
        where_(&[0x41, 0x89, 0xf5, 0x41, 0x54, 0xc3], BOTH),
        (3, true)
    );
    // xor eax,eax; nop
    assert_eq!(where_(&[0x31, 0xc0, 0x90, 0xc3], BOTH), (2, true));
}

#[test]
fn not_past_a_changed_argument() {
    for first in [
        &[0x31, 0xff][..],      // xor edi,edi
        &[0x40, 0xb7, 0x01],    // mov dil,1
        &[0x48, 0x89, 0xc6],    // mov rsi,rax
        &[0x8b, 0x17],          // mov edx,[rdi]
        &[0xff, 0xc1],          // inc ecx
        &[0x4c, 0x8d, 0x47, 8], // lea r8,[rdi+8]
        &[0x4d, 0x87, 0xd1],    // xchg r9,r10
        &[0x0f, 0xa2],          // cpuid (writes ecx, edx)
        &[0x48, 0xf7, 0xe0],    // mul rax (writes rdx)
        &[0x0f, 0x05],          // syscall (writes rcx, r11)
    ] {
        let mut bytes = first.to_vec();
        bytes.extend([0x55, 0xc3]);
        assert_eq!(where_(&bytes, ENTRY), (0, false), "{first:x?}");
    }
}

#[test]
fn the_stack_pointer() {
    // sub rsp,8; nop; ret
    let sub = [0x48, 0x83, 0xec, 0x08, 0x90, 0xc3];
    let found = at(&sub, ENTRY, NEW);
    assert_eq!((found.entry_offset, found.pushed), (4, 8));
    assert_eq!(where_(&sub, BOTH), (0, false));
    assert_eq!(where_(&sub, STACK), (0, false));
    // and rsp,-64; nop: by how much is not known
    let and = [0x48, 0x83, 0xe4, 0xc0, 0x90, 0xc3];
    assert_eq!(where_(&and, ENTRY), (0, false));
    // push [rdi] (not emulated); nop
    let push = [0xff, 0x37, 0x90, 0xc3];
    let found = at(&push, ENTRY, NEW);
    assert_eq!((found.entry_offset, found.pushed), (2, 8));
    assert_eq!(where_(&push, BOTH), (0, false));
    // mov [rsp+8],rdi; push: the stack was written
    let store = [0x48, 0x89, 0x7c, 0x24, 0x08, 0x55, 0xc3];
    assert_eq!(where_(&store, STACK), (0, false));
    assert_eq!(where_(&store, BOTH), (0, false));
    assert_eq!(where_(&store, ENTRY), (5, true));
}

#[test]
fn not_past_the_entry_block() {
    // ret; push
    assert_eq!(where_(&[0xc3, 0x55], ENTRY), (0, false));
    // test edi,edi; je +1; push: the jump is emulated itself
    assert_eq!(
        where_(&[0x85, 0xff, 0x74, 0x01, 0x55, 0xc3], BOTH),
        (2, true)
    );
    // jmp rax; push
    assert_eq!(where_(&[0xff, 0xe0, 0x55], ENTRY), (0, false));
    // jrcxz +0; push: not emulated, ends the block
    assert_eq!(where_(&[0xe3, 0x00, 0x55, 0xc3], ENTRY), (0, false));
}

#[test]
fn a_jump_back_into_the_entry_block() {
    // 0: mov eax,edi; 2: push rbp; 3: pop rbp; 4: dec eax; 6: jne 2; 8: ret
    let to_push = [0x89, 0xf8, 0x55, 0x5d, 0xff, 0xc8, 0x75, 0xfa, 0xc3];
    let found = at(&to_push, BOTH, NEW);
    assert_eq!((found.entry_offset, found.emulated), (0, false));
    assert!(found.reason.contains("jumps back"), "{}", found.reason);
    // a jump back to the entry itself: each pass counts as a call of its own
    let to_entry = [0x89, 0xf8, 0x55, 0x5d, 0xff, 0xc8, 0x75, 0xf8, 0xc3];
    assert_eq!(where_(&to_entry, BOTH), (2, true));
    // a jump to code behind the place does not matter
    let behind = [0x89, 0xf8, 0x55, 0x5d, 0xff, 0xc8, 0x75, 0xfb, 0xc3];
    assert_eq!(where_(&behind, BOTH), (2, true));
    // the first instruction needs no proof
    let loop_ = [0x55, 0x5d, 0xff, 0xc8, 0x75, 0xfa, 0xc3];
    assert_eq!(where_(&loop_, BOTH), (0, true));
}

#[test]
fn tables_of_jumps() {
    // mov eax,edi; nop; jmp rax
    let nop = [0x89, 0xf8, 0x90, 0xff, 0xe0];
    assert_eq!(where_(&nop, BOTH), (0, false));
    // mov eax,edi; push rbp; jmp rax
    let push = [0x89, 0xf8, 0x55, 0xff, 0xe0];
    assert_eq!(where_(&push, BOTH), (2, true));
}

#[test]
fn an_end_that_is_not_known_and_other_entries() {
    let bytes = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3];
    let mut code = Code {
        bytes: &bytes,
        whole: false,
        address: 0x1000,
        entries: &[],
    };
    let found = place(Machine::X86_64, &code, BOTH, NEW).unwrap();
    assert_eq!((found.entry_offset, found.emulated), (0, false));
    code.whole = true;
    let entries = [0x0ff0, 0x1004, 0x2000];
    code.entries = &entries;
    let found = place(Machine::X86_64, &code, BOTH, NEW).unwrap();
    assert_eq!(found.entry_offset, 0);
    code.entries = &entries[..1];
    let found = place(Machine::X86_64, &code, BOTH, NEW).unwrap();
    assert_eq!(found.entry_offset, 4);
    // bytes that cannot be read to the end: jumps could hide there
    let bytes = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3, 0x06, 0x06];
    assert_eq!(where_(&bytes, BOTH), (0, false));
}

#[test]
fn where_no_probe_may_stand() {
    let refuse = |bytes: &[u8], machine| {
        let code = Code {
            bytes,
            whole: true,
            address: 0,
            entries: &[],
        };
        place(machine, &code, BOTH, NEW).unwrap_err()
    };
    assert_eq!(refuse(&[], Machine::X86_64), PlaceError::NotCode);
    assert_eq!(refuse(&[0x06], Machine::X86_64), PlaceError::NotCode);
    assert_eq!(refuse(&[0xcc], Machine::X86_64), PlaceError::Breakpoint);
    // lock inc [rdi]; notrack jmp rax; hlt
    for bytes in [&[0xf0, 0xff, 0x07][..], &[0x3e, 0xff, 0xe0], &[0xf4]] {
        assert!(
            matches!(refuse(bytes, Machine::X86_64), PlaceError::Forbidden(_)),
            "{bytes:x?}"
        );
    }
    assert!(matches!(
        refuse(&[0x55], Machine::Other(8)),
        PlaceError::Unsupported(_)
    ));
}

/// Places a probe on this instruction of aarch64 at an address. The result says whether Linux 6.1 emulates it, and
/// whether 6.18 does.
fn on_arm(word: u32, address: u64) -> Result<(bool, bool), PlaceError> {
    let bytes = word.to_le_bytes();
    let code = Code {
        bytes: &bytes,
        whole: true,
        address,
        entries: &[],
    };
    let emulated = |emulation| {
        let found = place(Machine::Aarch64, &code, BOTH, emulation)?;
        assert_eq!((found.entry_offset, found.return_offset), (0, Some(0)));
        assert_eq!(found.reason.contains("emulated"), found.emulated);
        Ok(found.emulated)
    };
    Ok((emulated(Emulation::of_kernel(6, 1))?, emulated(NEW)?))
}

#[test]
fn aarch64_stands_on_the_first_instruction() {
    let stepped = [
        (0xa9bf_7bfd, "stp x29, x30, [sp, #-16]!"),
        (0xd100_83ff, "sub sp, sp, #32"),
        (0xd503_233f, "paciasp"),
        (0xd503_245f, "bti c"),
        (0x5280_0000, "mov w0, #0"),
        (0xd53b_d042, "mrs x2, tpidr_el0"),
    ];
    for (word, name) in stepped {
        assert_eq!(on_arm(word, 0x1000), Ok((false, false)), "{name}");
    }
    let emulated = [
        (0x1400_0040, "b"),
        (0x9400_0040, "bl"),
        (0x5400_0040, "b.eq"),
        (0xb400_0040, "cbz x0"),
        (0x3500_0040, "cbnz w0"),
        (0x3600_0040, "tbz w0, #0"),
        (0xb700_0040, "tbnz x0, #32"),
        (0x9000_0008, "adrp x8"),
        (0xd61f_0100, "br x8"),
        (0xd65f_03c0, "ret"),
    ];
    for (word, name) in emulated {
        assert_eq!(on_arm(word, 0x1000), Ok((true, true)), "{name}");
    }
    assert_eq!(on_arm(0xd503_201f, 0x1000), Ok((false, true)), "nop");
}

#[test]
fn aarch64_refuses_what_the_kernel_refuses() {
    assert_eq!(on_arm(0xd420_0000, 0x1000), Err(PlaceError::Breakpoint));
    assert_eq!(on_arm(0, 0x1000), Err(PlaceError::NotCode));
    for (word, name) in [
        (0xd400_0001, "svc #0"),
        (0xd65f_0bff, "retaa"),
        (0xd503_203f, "yield"),
        (0xd51b_d040, "msr tpidr_el0, x0"),
        (0x5800_0040, "ldr x0, literal"),
        (0xc85f_7c00, "ldxr x0, [x0]"),
    ] {
        let refused = on_arm(word, 0x1000);
        assert!(matches!(refused, Err(PlaceError::Forbidden(_))), "{name}");
    }
    assert!(on_arm(0xa9bf_7bfd, 0x1002).is_err());
    let short = Code {
        bytes: &[0xfd, 0x7b, 0xbf],
        whole: true,
        address: 0,
        entries: &[],
    };
    assert_eq!(
        place(Machine::Aarch64, &short, ENTRY, NEW),
        Err(PlaceError::NotCode)
    );
}

/// The first bytes of real functions.
#[test]
fn real_prologues() {
    // torch 2.4.1 record_trace: push r13; mov r13,rdi; …
    assert_eq!(
        where_(&[0x41, 0x55, 0x49, 0x89, 0xfd, 0xc3], STACK),
        (0, true)
    );
    // libcudart 13 cudaMalloc: push rbp; mov rbp,rsp; push r15; …
    assert_eq!(
        where_(&[0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0xc3], BOTH),
        (0, true)
    );
    // torch 2.13 and 2.15 reportMemoryUsageToProfiler: mov rax,[rip+…]; push r14; …
    assert_eq!(
        where_(
            &[
                0x48, 0x8b, 0x05, 0x29, 0xba, 0x0e, 0x00, 0x41, 0x56, 0x45, 0x89, 0xc6, 0xc3
            ],
            BOTH
        ),
        (7, true)
    );
    // glibc _dl_debug_state: ret
    assert_eq!(where_(&[0xc3], ENTRY), (0, false));
}
