//! An empty BPF program on uprobes, for `cargo xtask bench`: measures what the traps alone cost.
//! `empty_probe PID LIBRARY PART…` attaches it, for each of these parts, to the first function that has the part in
//! its name (all symbols count, since the allocator's trace is not exported). It prints `ready`, and detaches when
//! standard input ends.

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use memscope_daemon::probe::multi::{Point, attach};
use memscope_site::elf::{Elf, FileBytes};

const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;

/// `union bpf_attr` for `BPF_PROG_LOAD` up to `expected_attach_type`.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log: [u32; 2],
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

fn load() -> Result<OwnedFd> {
    // r0 = 0; exit
    let instructions: [u64; 2] = [0xb7, 0x95];
    let mut attr = LoadAttr {
        prog_type: BPF_PROG_TYPE_KPROBE,
        insn_cnt: 2,
        insns: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        expected_attach_type: BPF_TRACE_UPROBE_MULTI,
        ..LoadAttr::default()
    };
    // SAFETY: `attr` is a plain structure, and its size is passed with it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_LOAD,
            &raw mut attr,
            size_of::<LoadAttr>(),
        )
    };
    if fd < 0 {
        bail!(
            "the empty program was refused: {}",
            std::io::Error::last_os_error()
        );
    }
    // SAFETY: the kernel returned a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn main() -> Result<()> {
    let mut words = std::env::args_os().skip(1);
    let pid: u32 = words
        .next()
        .and_then(|pid| pid.to_str()?.parse().ok())
        .context("PID LIBRARY PART…")?;
    let library = PathBuf::from(words.next().context("PID LIBRARY PART…")?);
    let bytes = FileBytes::new(File::open(&library)?)?;
    let elf = Elf::read(&bytes)?;
    let table = elf.all_symbols()?.context("the library has no symbols")?;
    let mut points = Vec::new();
    for part in words {
        let symbol = table
            .defined()
            .find(|symbol| String::from_utf8_lossy(symbol.name).contains(&*part.to_string_lossy()))
            .with_context(|| format!("no function with {} in its name", part.display()))?;
        let (offset, _) = elf
            .code_offset_of(symbol.address)
            .context("a symbol outside of the code")?;
        points.push(Point { offset, cookie: 0 });
    }
    let program = load()?;
    let program: BorrowedFd<'_> = program.as_fd();
    let path = CString::new(library.as_os_str().as_bytes())?;
    let link = attach(program, &path, pid, &points, false).context("the probes were refused")?;
    println!("ready {}", link.as_raw_fd());
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest)?;
    drop(link);
    Ok(())
}
