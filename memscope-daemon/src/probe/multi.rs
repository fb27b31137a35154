//! The kernel's multi-uprobe link (6.6 and later): many sites of one file and one process in one link, each with its
//! cookie. They are attached and removed together. aya 0.14 has no such link, so the system calls are made here.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_PROG_LOAD: i32 = 5;
const BPF_BTF_LOAD: i32 = 18;
const BPF_LINK_CREATE: i32 = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;

/// `union bpf_attr` for `BPF_PROG_LOAD`, as far as it is used.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
}

/// `union bpf_attr` for `BPF_BTF_LOAD`, as far as it is used.
#[repr(C)]
#[derive(Default)]
struct BtfAttr {
    btf: u64,
    btf_log_buf: u64,
    btf_size: u32,
    btf_log_size: u32,
    btf_log_level: u32,
}

/// `union bpf_attr` for `BPF_LINK_CREATE` with `uprobe_multi`.
#[repr(C)]
#[derive(Default)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    multi_flags: u32,
    pid: u32,
    reserved: u32,
}

fn call<T>(command: i32, attr: &mut T) -> io::Result<i32> {
    // SAFETY: `attr` is a plain structure of the size that is passed with it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as i32)
}

/// A command of `bpf(2)` that gives a new descriptor.
pub(super) fn bpf<T>(command: i32, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the kernel returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A command of `bpf(2)` that gives nothing.
pub(super) fn bpf_done<T>(command: i32, attr: &mut T) -> io::Result<()> {
    call(command, attr).map(drop)
}

/// Loads an object's type information (BTF). Programs with callbacks cannot be loaded without it.
pub fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = BtfAttr {
        btf: bytes.as_ptr() as u64,
        btf_size: bytes.len() as u32,
        ..BtfAttr::default()
    };
    bpf(BPF_BTF_LOAD, &mut attr)
}

/// Loads a program for multi-uprobe links. `btf` is the type information of its object. If the kernel refuses the
/// program, the last lines of the verifier's log are returned beside the error.
pub fn load_program(
    name: &str,
    function: &aya_obj::Function,
    btf: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, (io::Error, String)> {
    let instructions = &function.instructions;
    let functions = function.func_info.func_info_bytes();
    let mut attr = LoadAttr {
        prog_type: BPF_PROG_TYPE_KPROBE,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        expected_attach_type: BPF_TRACE_UPROBE_MULTI,
        ..LoadAttr::default()
    };
    if let (Some(btf), false) = (btf, functions.is_empty()) {
        attr.prog_btf_fd = btf.as_raw_fd() as u32;
        attr.func_info = functions.as_ptr() as u64;
        attr.func_info_cnt = function.func_info.func_info.len() as u32;
        attr.func_info_rec_size = function.func_info_rec_size as u32;
    }
    for (slot, byte) in attr.prog_name.iter_mut().zip(name.bytes().take(15)) {
        *slot = byte;
    }
    match bpf(BPF_PROG_LOAD, &mut attr) {
        Ok(fd) => Ok(fd),
        Err(first) => {
            // Try again with a log. The log is expensive, so it is requested only after a refusal.
            let mut log = vec![0u8; 1 << 20];
            attr.log_level = 1;
            attr.log_size = log.len() as u32;
            attr.log_buf = log.as_mut_ptr() as u64;
            match bpf(BPF_PROG_LOAD, &mut attr) {
                Ok(fd) => Ok(fd),
                Err(_) => {
                    let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
                    let text = String::from_utf8_lossy(&log[..end]).into_owned();
                    let tail: Vec<&str> = text.lines().rev().take(25).collect();
                    let tail: Vec<&str> = tail.into_iter().rev().collect();
                    Err((first, tail.join("\n")))
                }
            }
        }
    }
}

/// One place in a file at which a probe stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Attach cookie that the program sees at this place.
    pub cookie: u64,
}

/// Attaches a program to places of one file in one process. Dropping the descriptor detaches it.
pub fn attach(
    program: BorrowedFd<'_>,
    path: &CString,
    pid: u32,
    points: &[Point],
    on_return: bool,
) -> io::Result<OwnedFd> {
    let offsets: Vec<u64> = points.iter().map(|p| p.offset).collect();
    let cookies: Vec<u64> = points.iter().map(|p| p.cookie).collect();
    let mut attr = LinkAttr {
        prog_fd: program.as_raw_fd() as u32,
        attach_type: BPF_TRACE_UPROBE_MULTI,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        cookies: cookies.as_ptr() as u64,
        cnt: points.len() as u32,
        multi_flags: if on_return {
            BPF_F_UPROBE_MULTI_RETURN
        } else {
            0
        },
        pid,
        ..LinkAttr::default()
    };
    bpf(BPF_LINK_CREATE, &mut attr)
}
