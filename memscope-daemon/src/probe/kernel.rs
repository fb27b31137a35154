//! Whether the running kernel has what every probe needs, and offsets in its structures, from its type information (BTF).

use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};

use super::ProbeError;

const KIND_STRUCT: u32 = 4;
const KIND_CONST: u32 = 10;

/// A view of the kernel's BTF (Documentation/bpf/btf.rst), enough to find members of structs.
struct Btf<'a> {
    bytes: &'a [u8],
    types: std::ops::Range<usize>,
    strings: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes([four[0], four[1], four[2], four[3]]))
}

impl<'a> Btf<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Btf<'a>> {
        let header = word(bytes, 4)? as usize;
        let types = header + word(bytes, 8)? as usize;
        let types_len = word(bytes, 12)? as usize;
        let strings = header + word(bytes, 16)? as usize;
        Some(Btf {
            bytes,
            types: types..types + types_len,
            strings,
        })
    }

    fn name_is(&self, offset: u32, name: &str) -> bool {
        let start = self.strings + offset as usize;
        let end = start + name.len();
        self.bytes.get(start..end) == Some(name.as_bytes()) && self.bytes.get(end) == Some(&0)
    }

    /// Byte offset of a member of a struct. If `path` has several names, each is a member of the struct type that the
    /// name before it has.
    fn member(&self, structure: &str, path: &[&str]) -> Option<u64> {
        let mut at = self.find(|_, name| self.name_is(name, structure))?;
        let mut offset = 0;
        for (step, name) in path.iter().enumerate() {
            let (inside, kind) = self.member_of(at, name)?;
            offset += inside;
            if step + 1 < path.len() {
                at = self.find(|id, _| id == kind)?;
            }
        }
        Some(offset)
    }

    /// Position of the first struct for which `wanted` holds. `wanted` gets the struct's type id and the offset of
    /// its name.
    fn find(&self, wanted: impl Fn(u32, u32) -> bool) -> Option<usize> {
        let mut at = self.types.start;
        let mut id = 1;
        while at < self.types.end {
            let name = word(self.bytes, at)?;
            let info = word(self.bytes, at + 4)?;
            let kind = (info >> 24) & 0x1f;
            let count = (info & 0xffff) as usize;
            let body = at + 12;
            if kind == KIND_STRUCT && wanted(id, name) {
                return Some(at);
            }
            id += 1;
            // Sizes of what follows each kind, from the BTF documentation.
            at = body
                + match kind {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    4 | 5 | 15 | 19 => 12 * count,
                    6 | 13 => 8 * count,
                    2 | 7..=9 | KIND_CONST | 11 | 12 | 16 | 18 => 0,
                    _ => return None,
                };
        }
        None
    }

    /// Byte offset and type id of a direct member of the struct at this position.
    fn member_of(&self, structure: usize, name: &str) -> Option<(u64, u32)> {
        let info = word(self.bytes, structure + 4)?;
        let bitfields = info >> 31 == 1;
        for index in 0..(info & 0xffff) as usize {
            let at = structure + 12 + 12 * index;
            if self.name_is(word(self.bytes, at)?, name) {
                let bits = word(self.bytes, at + 8)?;
                let bits = if bitfields { bits & 0xff_ffff } else { bits };
                return Some((bits as u64 / 8, word(self.bytes, at + 4)?));
            }
        }
        None
    }
}

/// Refuses a kernel that cannot tell a program at which probe it runs. The kernel itself is asked, with a program of two
/// instructions: distributions have such features in kernels of lower numbers, too.
pub fn check() -> Result<(), ProbeError> {
    let cookie = BpfHelper::BPF_FUNC_get_attach_cookie;
    match is_helper_supported(ProgramType::KProbe, cookie) {
        Ok(false) => Err(ProbeError::Kernel {
            release: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
        }),
        Ok(true) => Ok(()),
        Err(error) => {
            // Such as a privilege that is missing: then loading the programs says so.
            tracing::debug!(%error, "the kernel cannot be asked for attach cookies");
            Ok(())
        }
    }
}

/// Offsets in structures of the running kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskOffsets {
    /// Byte offset of `task_struct.tgid`.
    pub tgid: u64,
    /// Byte offset in `task_struct` of the thread pointer, which points to the thread's own (thread-local) variables.
    pub thread_pointer: u64,
}

/// Path from `thread_struct` to the thread pointer. On aarch64 the field has the value that the register had when the
/// thread was last switched out.
#[cfg(target_arch = "aarch64")]
const THREAD_POINTER: [&str; 2] = ["uw", "tp_value"];
#[cfg(not(target_arch = "aarch64"))]
const THREAD_POINTER: [&str; 1] = ["fsbase"];

/// Reads the offsets in `struct task_struct` from the BTF of the running kernel.
pub fn task_offsets() -> Result<TaskOffsets, ProbeError> {
    let bytes = std::fs::read("/sys/kernel/btf/vmlinux").map_err(|source| ProbeError::Btf {
        what: "could not be read".to_owned(),
        source: Some(source),
    })?;
    let btf = Btf::parse(&bytes);
    let member = |structure: &str, path: &[&str]| {
        btf.as_ref()
            .and_then(|btf| btf.member(structure, path))
            .ok_or_else(|| ProbeError::Btf {
                what: format!("does not describe {structure}.{}", path.join(".")),
                source: None,
            })
    };
    Ok(TaskOffsets {
        tgid: member("task_struct", &["tgid"])?,
        thread_pointer: member("task_struct", &["thread"])?
            + member("thread_struct", &THREAD_POINTER)?,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    /// A BTF blob with one int, one struct of two members, and one struct whose only member is the first struct.
    fn blob() -> Vec<u8> {
        let strings = b"\0int\0thing\0first\0second\0outer\0";
        let mut types = Vec::new();
        let put = |types: &mut Vec<u8>, words: &[u32]| {
            for w in words {
                types.extend_from_slice(&w.to_ne_bytes());
            }
        };
        put(&mut types, &[1, 1 << 24, 4, 32]);
        put(&mut types, &[5, (4 << 24) | 2, 16]);
        put(&mut types, &[11, 1, 0]);
        put(&mut types, &[17, 1, 64]);
        put(&mut types, &[24, (4 << 24) | 1, 32]);
        put(&mut types, &[5, 2, 128]);
        let mut out = vec![0x9f, 0xeb, 1, 0];
        let lens = [
            24,
            0,
            types.len() as u32,
            types.len() as u32,
            strings.len() as u32,
        ];
        put(&mut out, &lens);
        out.extend_from_slice(&types);
        out.extend_from_slice(strings);
        out
    }

    #[test]
    fn finds_members_and_survives_truncation() {
        let bytes = blob();
        let btf = Btf::parse(&bytes).expect("header");
        assert_eq!(btf.member("thing", &["first"]), Some(0));
        assert_eq!(btf.member("thing", &["second"]), Some(8));
        assert_eq!(btf.member("thing", &["third"]), None);
        assert_eq!(btf.member("other", &["first"]), None);
        assert_eq!(btf.member("outer", &["thing", "second"]), Some(24));
        assert_eq!(btf.member("thing", &["second", "first"]), None);
        for cut in 0..bytes.len() {
            if let Some(btf) = Btf::parse(&bytes[..cut]) {
                let _ = btf.member("outer", &["thing", "second"]);
            }
        }
    }
}
