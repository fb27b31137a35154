//! Compares rules and unwinding with the unwinder of this process itself, and tries damaged stacks and files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::arch::asm;
use std::ffi::c_void;

use memscope_common::{MOST_NATIVE, RULE_END, RULE_STOP};
use memscope_native::{Image, Piece, ProcessCode, Shared, Symbols};
use memscope_site::elf::FileBytes;
use proptest::prelude::*;

const COPIED: usize = 64 << 10;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> i32,
        to: *mut c_void,
    ) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> u64;
}

extern "C" fn note(context: *mut c_void, to: *mut c_void) -> i32 {
    // SAFETY: the unwinder calls this with its own context and the pointer to the vector that it was given.
    unsafe { (*to.cast::<Vec<u64>>()).push(_Unwind_GetIP(context)) };
    0
}

/// Registers of a thread, its stack from the stack pointer on, and the frames that this process's own unwinder finds.
struct Stood {
    pc: u64,
    sp: u64,
    bp: u64,
    bytes: Vec<u8>,
    own: Vec<u64>,
}

#[inline(never)]
fn stand() -> Stood {
    let (pc, sp, bp): (u64, u64, u64);
    // SAFETY: the instructions only read registers.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) pc, out(reg) sp, out(reg) bp);
    }
    let mut own = Vec::new();
    // SAFETY: the function is called with a callback and the vector that the callback expects.
    unsafe { _Unwind_Backtrace(note, (&raw mut own).cast()) };
    // The unwinder's list ends with the address 0.
    own.retain(|address| *address != 0);
    let maps = std::fs::read("/proc/self/maps").unwrap();
    let (mappings, _) = memscope_site::maps::parse(&maps);
    let stack = mappings
        .iter()
        .find(|mapping| (mapping.start..mapping.end).contains(&sp))
        .unwrap();
    let len = COPIED.min((stack.end - sp) as usize);
    // SAFETY: the range is mapped and readable. It is this thread's stack, whose outer frames do not change meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(sp as *const u8, len) }.to_vec();
    Stood {
        pc,
        sp,
        bp,
        bytes,
        own,
    }
}

#[inline(never)]
fn deeper(depth: u32, keep: &mut Vec<u8>) -> Stood {
    // This makes frames of several sizes.
    let here = vec![depth as u8; depth as usize + 1];
    let found = if depth == 0 {
        stand()
    } else {
        deeper(depth - 1, keep)
    };
    keep.extend(here);
    found
}

fn unwound(stood: &Stood) -> (Vec<u64>, bool) {
    let mut shared = Shared::default();
    let mut process = ProcessCode::new(std::process::id());
    let found = process.unwind(
        &Piece {
            pc: stood.pc,
            sp: stood.sp,
            bp: stood.bp,
            base: stood.sp,
            bytes: &stood.bytes,
        },
        &mut shared,
    );
    (found.frames, found.whole)
}

#[test]
fn the_frames_are_those_of_the_process_own_unwinder() {
    for depth in [0, 1, 7, 40] {
        let stood = std::thread::spawn(move || deeper(depth, &mut Vec::new()))
            .join()
            .unwrap();
        let (frames, whole) = unwound(&stood);
        assert!(whole, "{frames:x?}");
        // The unwinder's own list begins in `stand` itself, so it may have more frames at its inner end.
        let theirs = &stood.own[stood.own.len() - frames.len()..];
        assert_eq!(frames, theirs, "{:x?}", stood.own);
        assert!(frames.len() > depth as usize);
    }
}

#[test]
fn names_are_found() {
    let stood = std::thread::spawn(|| deeper(3, &mut Vec::new()))
        .join()
        .unwrap();
    let (frames, _) = unwound(&stood);
    let mut shared = Shared::default();
    let mut process = ProcessCode::new(std::process::id());
    let mut symbols = Symbols::default();
    let mut names = Vec::new();
    for frame in frames {
        let (_, image, offset) = process.place(frame - 1, &mut shared).unwrap();
        let named = symbols.name(&image.unwrap(), &[offset]).remove(0);
        names.extend(named.functions);
    }
    let own = |name: &str| {
        let mut names = names.iter();
        names.any(|f| f.name.contains(name) && f.file.ends_with("unwind.rs") && f.line > 0)
    };
    assert!(own("deeper"), "{names:#?}");
    assert!(own("names_are_found"), "{names:#?}");
}

#[test]
fn what_is_no_code_has_no_rule() {
    let mut shared = Shared::default();
    let mut process = ProcessCode::new(std::process::id());
    let data = Box::new(0u64);
    let address = &raw const *data as u64;
    for address in [0, 1, u64::MAX, address] {
        let rule = process.rule(address, &mut shared);
        assert_eq!(rule.kind(), RULE_STOP, "{address:#x}");
    }
    // There is no such process.
    let mut gone = ProcessCode::new(u32::MAX >> 1);
    assert!(gone.read(&mut shared).is_err());
    assert_eq!(gone.rule(address, &mut shared).kind(), RULE_STOP);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the stack holds, the walk goes outwards and ends.
    #[test]
    fn any_stack_ends(
        seed in any::<u64>(),
        sp in 0x7000_0000_0000u64..0x7000_0001_0000,
        bp in any::<u64>(),
        own in any::<prop::sample::Index>(),
    ) {
        let stood = stand();
        let mut bytes = stood.bytes;
        // Real return addresses at wrong places.
        let mut state = seed;
        for word in bytes.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = match state >> 62 {
                0 => stood.own[(state >> 8) as usize % stood.own.len()],
                1 => sp + (state >> 40),
                2 => sp.wrapping_sub(state >> 50),
                _ => state,
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
        let mut shared = Shared::default();
        let mut process = ProcessCode::new(std::process::id());
        let pc = *own.get(&stood.own);
        let found = process.unwind(&Piece { pc, sp, bp, base: sp & !7, bytes: &bytes }, &mut shared);
        prop_assert!(found.frames.len() <= MOST_NATIVE);
        prop_assert!(found.rules.len() <= MOST_NATIVE + 1);
        prop_assert!(!found.whole || found.rules.last().unwrap().1.kind() == RULE_END);
    }

    /// A damaged file leads to errors or other rules, but to nothing worse.
    #[test]
    fn any_file_is_read(at in any::<prop::sample::Index>(), with in any::<[u8; 8]>(), cut in any::<prop::sample::Index>()) {
        let whole = small_library();
        let mut bytes = whole.clone();
        let place = at.index(bytes.len() - 8);
        bytes[place..place + 8].copy_from_slice(&with);
        bytes.truncate(cut.index(bytes.len()).max(64));
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        if let Ok(image) = Image::new("damaged.so".as_ref(), FileBytes::new(file).unwrap()) {
            for address in (0..whole.len() as u64).step_by(977) {
                let _ = image.rule(address);
            }
        }
    }
}

/// The bytes of libgcc_s, a library that every test process has mapped.
fn small_library() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("libgcc_s")).unwrap();
    let path = &line[line.find('/').unwrap()..];
    std::fs::read(path).unwrap()
}
