//! Finds which allocator hands out PyTorch's device memory. It is read from the process's memory: the pointer
//! `c10::cuda::CUDACachingAllocator::allocator` (torch_npu: `c10_npu::NPUCachingAllocator::allocator`), the object that
//! it points to, and the name of the object's class.

use memscope_units::demangle;
use std::io;

use memscope_ledger::event::Backend;

use memscope_memory::Memory;

/// Longest class name that is read.
const MAX_NAME: usize = 4096;
/// Range in which addresses of user memory can lie.
const USER: std::ops::Range<u64> = 0x1000..1 << 56;

/// Environment variables that switch caching off if they are set, whatever their value is.
const UNCACHED: [&str; 2] = [
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_NO_NPU_MEMORY_CACHING",
];

/// Classes that only others are made from. An object has one of them for a moment while it is built, and from when its destructor has run
/// until the process ends: then this says nothing of which allocator the process used.
const ABSTRACT: [&str; 4] = [
    "N3c104cuda20CUDACachingAllocator13CUDAAllocatorE",
    "N7c10_npu19NPUCachingAllocator12NPUAllocatorE",
    "N3c1015DeviceAllocatorE",
    "N3c109AllocatorE",
];

/// Why the class could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Memory that a pointer points to cannot be read.
    #[error("{what} at {address:#x} cannot be read")]
    Unreadable {
        /// Thing that was to be read, in words for the message.
        what: &'static str,
        /// Address of it in the process.
        address: u64,
        /// Error that the kernel returned.
        #[source]
        source: io::Error,
    },
    /// A value cannot be a pointer, so this is not the layout that we know.
    #[error("{what} holds {value:#x}, which is no pointer")]
    NoPointer {
        /// Thing that should hold the pointer, in words for the message.
        what: &'static str,
        /// Value that was found.
        value: u64,
    },
    /// The object is being built, or was destroyed as the process ends.
    #[error("the allocator is being built or destroyed")]
    Passing,
    /// There is no name of a class where it should be.
    #[error("the class of the allocator has no readable name")]
    NoName,
}

/// Reads the allocator in use from the pointer at the address `slot`
/// ([`crate::Resolved::allocator_address`]). `None` while the pointer is null: PyTorch has not
/// chosen one yet. Fails if the memory does not have the known layout or cannot be read.
///
/// Whether a native allocator caches at all depends on the environment: see
/// [`with_environment`].
pub fn read(memory: &impl Memory, slot: u64) -> Result<Option<Backend>, BackendError> {
    let object = word(memory, slot, "the allocator pointer")?;
    if object == 0 {
        return Ok(None);
    }
    if !USER.contains(&object) {
        return Err(BackendError::NoPointer {
            what: "the allocator pointer",
            value: object,
        });
    }
    // By the Itanium C++ ABI an object begins with the pointer to its class's table of virtual functions. The word
    // before that table is the pointer to the class's type_info, whose second word points to the name.
    let table = pointer(memory, object, "the allocator object")?;
    let type_info = pointer(memory, table.wrapping_sub(8), "the class table")?;
    let name = pointer(memory, type_info.wrapping_add(8), "the type")?;
    let name = memory
        .read_string(name, MAX_NAME)
        .map_err(|source| BackendError::Unreadable {
            what: "the class name",
            address: name,
            source,
        })?;
    classify(&name).map(Some)
}

/// The allocator in use when the process's environment is considered: `PYTORCH_NO_CUDA_MEMORY_CACHING` makes the native
/// allocator pass every request on to the runtime, and `PYTORCH_NO_NPU_MEMORY_CACHING` does the same to torch_npu's.
pub fn with_environment(backend: Backend, environment: &[(String, String)]) -> Backend {
    let uncached = environment
        .iter()
        .any(|(name, _)| UNCACHED.contains(&name.as_str()));
    match backend {
        Backend::Native if uncached => Backend::Uncached,
        other => other,
    }
}

fn word(memory: &impl Memory, address: u64, what: &'static str) -> Result<u64, BackendError> {
    memory
        .read_u64(address)
        .map_err(|source| BackendError::Unreadable {
            what,
            address,
            source,
        })
}

fn pointer(memory: &impl Memory, address: u64, what: &'static str) -> Result<u64, BackendError> {
    let value = word(memory, address, what)?;
    if USER.contains(&value) {
        Ok(value)
    } else {
        Err(BackendError::NoPointer { what, value })
    }
}

fn classify(name: &[u8]) -> Result<Backend, BackendError> {
    // GCC puts a star before names that are compared by their addresses.
    let name = name.strip_prefix(b"*").unwrap_or(name);
    let name = std::str::from_utf8(name).map_err(|_| BackendError::NoName)?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(BackendError::NoName);
    }
    Ok(match name {
        _ if ABSTRACT.contains(&name) => return Err(BackendError::Passing),
        _ if name.starts_with("N3c104cuda20CUDACachingAllocator6Native") => Backend::Native,
        "N7c10_npu19NPUCachingAllocator19NpuCachingAllocatorE" => Backend::Native,
        _ if name.starts_with("N3c104cuda20CUDACachingAllocator15CudaMallocAsync") => {
            Backend::MallocAsync
        }
        _ => Backend::Other(class(name)),
    })
}

/// Longest name of a class that is shown, in bytes.
const LONGEST: usize = 256;

/// The name of a class as people write it, from the name that the compiler keeps for `typeid`.
fn class(name: &str) -> String {
    const BEFORE: &str = "typeinfo for ";
    let text = demangle(&format!("_ZTI{name}"), BEFORE.len() + LONGEST);
    match text.strip_prefix(BEFORE) {
        Some(class) => class.to_owned(),
        None => demangle(name, LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    struct Words(HashMap<u64, u64>, HashMap<u64, &'static [u8]>);

    impl Memory for Words {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            for (i, byte) in buffer.iter_mut().enumerate() {
                let at = address + i as u64;
                let text = self
                    .1
                    .iter()
                    .find_map(|(start, text)| text.get(at.checked_sub(*start)? as usize).copied());
                let word = self
                    .0
                    .get(&(at & !7))
                    .map(|word| word.to_le_bytes()[(at & 7) as usize]);
                *byte = text.or(word).unwrap_or(0);
                if at < 0x1000 {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
            }
            Ok(())
        }
    }

    fn memory(name: &'static [u8]) -> Words {
        Words(
            HashMap::from([
                (0x10000, 0x20000),
                (0x20000, 0x30010),
                (0x30008, 0x40000),
                (0x40008, 0x50003),
            ]),
            HashMap::from([(0x50003, name)]),
        )
    }

    #[test]
    fn classes() {
        let read = |name| read(&memory(name), 0x10000).unwrap().unwrap();
        assert_eq!(
            read(b"N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE\0"),
            Backend::Native
        );
        assert_eq!(
            read(
                b"*N3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE\0"
            ),
            Backend::MallocAsync
        );
        assert_eq!(
            read(b"N7c10_npu19NPUCachingAllocator19NpuCachingAllocatorE\0"),
            Backend::Native
        );
        assert_eq!(
            read(b"N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE\0"),
            Backend::Other(
                "torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator".to_owned()
            )
        );
    }

    #[test]
    fn what_is_no_allocator() {
        let mut null = memory(b"x\0");
        null.0.insert(0x10000, 0);
        assert_eq!(read(&null, 0x10000).unwrap(), None);
        let mut odd = memory(b"x\0");
        odd.0.insert(0x10000, 0x88);
        assert!(matches!(
            read(&odd, 0x10000),
            Err(BackendError::NoPointer { value: 0x88, .. })
        ));
        let mut wild = memory(b"x\0");
        wild.0.insert(0x20000, 7);
        assert!(matches!(
            read(&wild, 0x10000),
            Err(BackendError::NoPointer { value: 7, .. })
        ));
        assert!(matches!(
            read(&memory(b"\0"), 0x10000),
            Err(BackendError::NoName)
        ));
        assert!(matches!(
            read(&memory(b"\xff\x01\0"), 0x10000),
            Err(BackendError::NoName)
        ));
        for name in [
            &b"N3c104cuda20CUDACachingAllocator13CUDAAllocatorE\0"[..],
            b"*N3c1015DeviceAllocatorE\0",
            b"N7c10_npu19NPUCachingAllocator12NPUAllocatorE\0",
        ] {
            assert!(matches!(
                read(&memory(name), 0x10000),
                Err(BackendError::Passing)
            ));
        }
        assert!(matches!(
            read(&memory(b"x\0"), 0x10),
            Err(BackendError::Unreadable { .. })
        ));
    }

    #[test]
    fn without_caching() {
        let set = vec![("PYTORCH_NO_CUDA_MEMORY_CACHING".to_owned(), "1".to_owned())];
        assert_eq!(with_environment(Backend::Native, &set), Backend::Uncached);
        let npu = vec![("PYTORCH_NO_NPU_MEMORY_CACHING".to_owned(), "1".to_owned())];
        assert_eq!(with_environment(Backend::Native, &npu), Backend::Uncached);
        assert_eq!(with_environment(Backend::Native, &[]), Backend::Native);
        assert_eq!(
            with_environment(Backend::MallocAsync, &set),
            Backend::MallocAsync
        );
    }
}
