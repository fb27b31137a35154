//! The reading side of a BPF ring buffer.
//!
//! Owns: the shared positions and the order of memory accesses. This is our own code rather than aya's, because an
//! answer needs the *producer's* position: before a question is answered, every record is read that was submitted
//! before the question came, and it must be known whether one of them is still being written.
//!
//! Layout (kernel/bpf/ringbuf.c): one page with the consumer position, one with the producer position, then the data,
//! mapped twice in a row so that no record wraps. Each record has an 8-byte head: its length with two flag bits, and
//! a page offset.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Flag in a record's head: the record is still being written.
const BUSY: u32 = 1 << 31;
/// Flag in a record's head: the record was discarded and must be skipped.
const DISCARD: u32 = 1 << 30;
/// Size of a record's head, in bytes.
const HEAD: u64 = 8;

/// Why memory that the BPF object shares with the daemon could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// `mmap` failed.
    #[error("the ring buffer's {part} could not be mapped")]
    Map {
        /// Name of the part, for the message.
        part: &'static str,
        /// Error of the system call.
        #[source]
        source: std::io::Error,
    },
}

struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(
        fd: RawFd,
        len: usize,
        offset: i64,
        writable: bool,
        part: &'static str,
    ) -> Result<Mapping, RingError> {
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: this makes a new mapping, at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd,
                offset,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(RingError::Map {
                part,
                source: std::io::Error::last_os_error(),
            });
        }
        match NonNull::new(address.cast::<u8>()) {
            Some(address) => Ok(Mapping { address, len }),
            None => Err(RingError::Map {
                part,
                source: std::io::Error::from_raw_os_error(libc::EFAULT),
            }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this range with this length, and nothing borrows from it any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the memory is shared, but only accessed through atomics and by the one reader that owns the mapping.
unsafe impl Send for Mapping {}

/// The one reader of a ring buffer.
///
/// What was read and what the programs may overwrite are two positions: records that were read keep their place in the ring until
/// [`Ring::release`], which the reader calls when they are in the journal. So a reader that is killed in between loses none.
pub struct Ring {
    fd: OwnedFd,
    consumer: Mapping,
    producer: Mapping,
    page: usize,
    mask: u64,
    /// Position up to which records were read.
    read: u64,
}

/// Why [`Ring::drain`] stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Everything up to the wanted position was read, or as much as the limit allows.
    Reached,
    /// A record before the wanted position is still being written.
    Busy,
}

impl Ring {
    /// Opens the ring behind a map's descriptor. `bytes` is its size, a power of two.
    pub fn open(fd: OwnedFd, bytes: u32) -> Result<Ring, RingError> {
        let page = rustix::param::page_size();
        let raw = fd.as_raw_fd();
        let consumer = Mapping::new(raw, page, 0, true, "consumer page")?;
        let producer = Mapping::new(
            raw,
            page + 2 * bytes as usize,
            page as i64,
            false,
            "producer page and data",
        )?;
        let mut ring = Ring {
            fd,
            consumer,
            producer,
            page,
            mask: bytes as u64 - 1,
            read: 0,
        };
        ring.read = ring.consumer().load(Ordering::Acquire);
        Ok(ring)
    }

    /// Goes on behind records that an earlier reader has journaled but not released. Any other position is none of this ring's, and
    /// changes nothing. Says whether it was a position between the oldest unreleased record and the newest one.
    pub fn skip_to(&mut self, position: u64) -> bool {
        let is_inside = (self.read..=self.producer_position()).contains(&position);
        if is_inside {
            self.read = position;
            self.release();
        }
        is_inside
    }

    fn consumer(&self) -> &AtomicU64 {
        // SAFETY: the mapping is page aligned, has at least 8 bytes, and lives as long as self.
        unsafe { &*self.consumer.address.as_ptr().cast::<AtomicU64>() }
    }

    /// Position up to which producers have reserved space.
    pub fn producer_position(&self) -> u64 {
        // SAFETY: the same as in `consumer`.
        unsafe { &*self.producer.address.as_ptr().cast::<AtomicU64>() }.load(Ordering::Acquire)
    }

    /// Position up to which records have been read.
    pub fn consumer_position(&self) -> u64 {
        self.read
    }

    /// Lets the programs overwrite what was read.
    pub fn release(&mut self) {
        self.consumer().store(self.read, Ordering::Release);
    }

    /// Descriptor to poll for wake-ups.
    pub fn poll_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Size of the ring in bytes.
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Hands every record up to `position` to `take`, which may keep the bytes only while it runs.
    /// `limit` bounds the bytes read in one go. What was read stays in the ring until [`Ring::release`].
    pub fn drain(&mut self, position: u64, limit: u64, mut take: impl FnMut(&[u8])) -> Drained {
        let start = self.read;
        let mut at = start;
        let mut outcome = Drained::Reached;
        while at < position && at - start < limit {
            let offset = (at & self.mask) as usize;
            // SAFETY: the data follow the producer page. The offset is below the ring's size, the head is 8-byte
            // aligned, and the second mapping of the data continues a record that crosses the end.
            let head = unsafe { self.producer.address.as_ptr().add(self.page + offset) };
            // SAFETY: the same as above. The producer publishes the length with a release store.
            let word = unsafe { &*head.cast::<AtomicU32>() }.load(Ordering::Acquire);
            if word & BUSY != 0 {
                outcome = Drained::Busy;
                break;
            }
            let len = (word & !(BUSY | DISCARD)) as u64;
            if word & DISCARD == 0 {
                // SAFETY: the record's bytes were written before the length was published, and are
                // not reused until the consumer position passes them.
                let bytes =
                    unsafe { std::slice::from_raw_parts(head.add(HEAD as usize), len as usize) };
                take(bytes);
            }
            at += (len + HEAD).next_multiple_of(8);
            self.read = at;
        }
        outcome
    }
}
