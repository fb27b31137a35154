//! The reading side of a BPF ring buffer.
//!
//! Owns: the shared positions and the order of memory accesses. This is our own code rather than aya's, because an
//! answer needs the *producer's* position: before a question is answered, every record is read that was submitted
//! before the question came, and it must be known whether one of them is still being written.
//!
//! Layout (kernel/bpf/ringbuf.c): one page with the consumer position, one with the producer position, then the data,
//! mapped twice in a row so that no record wraps. Each record has an 8-byte head: its length with two flag bits, and
//! a page offset.
//!
//! Of the data only a window is mapped, which moves with the reader. The kernel enters every page of such a mapping at once, so that a
//! ring that is mapped as a whole counts twice its size as the daemon's resident memory, also while nothing lies in it.

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

/// Bytes of the data that are mapped at a time; more only for a longer record. They hold some ten thousand records, so the window
/// is moved seldom.
const WINDOW: u64 = 1 << 20;

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

/// The part of the data that is mapped.
struct Window {
    mapping: Mapping,
    /// Offset in the data at which it begins, a multiple of the page size.
    from: u64,
}

impl Window {
    /// Address of `len` bytes of the data at `offset`, if all of them are mapped.
    fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let inside = offset.checked_sub(self.from)?;
        if inside + len > self.mapping.len as u64 {
            return None;
        }
        // SAFETY: the mapping is longer than `inside`.
        Some(unsafe { self.mapping.address.add(inside as usize) })
    }
}

/// The one reader of a ring buffer.
///
/// What was read and what the programs may overwrite are two positions: records that were read keep their place in the ring until
/// [`Ring::release`], which the reader calls when they are in the journal. So a reader that is killed in between loses none.
pub struct Ring {
    fd: OwnedFd,
    consumer: Mapping,
    producer: Mapping,
    /// What is mapped of the data; `None` before anything was read.
    window: Option<Window>,
    /// The last attempt to move the window failed, which is logged once.
    failed: bool,
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
    /// A record before the wanted position is still being written, or it cannot be mapped now.
    Busy,
}

impl Ring {
    /// Opens the ring behind a map's descriptor. `bytes` is its size, a power of two.
    pub fn open(fd: OwnedFd, bytes: u32) -> Result<Ring, RingError> {
        let page = rustix::param::page_size();
        let raw = fd.as_raw_fd();
        let consumer = Mapping::new(raw, page, 0, true, "consumer page")?;
        let producer = Mapping::new(raw, page, page as i64, false, "producer page")?;
        let mut ring = Ring {
            fd,
            consumer,
            producer,
            window: None,
            failed: false,
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

    /// Address of `len` bytes of the data at `offset`. Moves the window there if it has to. The second copy of the data continues what
    /// crosses the end of the first. `None` if the memory cannot be mapped, or there are no such bytes.
    fn mapped(&mut self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        if let Some(found) = self
            .window
            .as_ref()
            .and_then(|window| window.at(offset, len))
        {
            return Some(found);
        }
        let page = self.page as u64;
        let from = offset & !(page - 1);
        let wanted = WINDOW.max(offset + len - from).next_multiple_of(page);
        let size = wanted.min(2 * self.capacity() - from);
        // The data follow the pages of the consumer and of the producer.
        let place = i64::try_from(2 * page + from).ok()?;
        // The old window goes first, so that no more than one counts.
        self.window = None;
        match Mapping::new(self.fd.as_raw_fd(), size as usize, place, false, "data") {
            Ok(mapping) => {
                self.failed = false;
                self.window = Some(Window { mapping, from });
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::error!(error = %crate::error_chain(&error), "records wait in the ring");
                }
            }
        }
        self.window.as_ref()?.at(offset, len)
    }

    /// Hands every record up to `position` to `take`, which may keep the bytes only while it runs.
    /// `limit` bounds the bytes read in one go. What was read stays in the ring until [`Ring::release`].
    pub fn drain(&mut self, position: u64, limit: u64, mut take: impl FnMut(&[u8])) -> Drained {
        let start = self.read;
        let mut at = start;
        let mut outcome = Drained::Reached;
        while at < position && at - start < limit {
            let offset = at & self.mask;
            let Some(head) = self.mapped(offset, HEAD) else {
                outcome = Drained::Busy;
                break;
            };
            // SAFETY: the head is mapped and 8-byte aligned. The producer publishes the length with a release store.
            let word = unsafe { &*head.as_ptr().cast::<AtomicU32>() }.load(Ordering::Acquire);
            if word & BUSY != 0 {
                outcome = Drained::Busy;
                break;
            }
            let len = (word & !(BUSY | DISCARD)) as u64;
            if word & DISCARD == 0 {
                let Some(head) = self.mapped(offset, HEAD + len) else {
                    outcome = Drained::Busy;
                    break;
                };
                // SAFETY: the bytes are mapped. They were written before the length was published, and are not reused until
                // the consumer position passes them.
                let bytes = unsafe {
                    std::slice::from_raw_parts(head.as_ptr().add(HEAD as usize), len as usize)
                };
                take(bytes);
            }
            at += (len + HEAD).next_multiple_of(8);
            self.read = at;
        }
        outcome
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// A file that is laid out as a ring of so many bytes, and what its producer does.
    struct Producer {
        file: File,
        page: u64,
        bytes: u64,
        position: u64,
    }

    impl Producer {
        fn new(bytes: u64) -> (Producer, Ring) {
            let page = rustix::param::page_size() as u64;
            let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let file = File::from(fd.try_clone().unwrap());
            file.set_len(2 * page + 2 * bytes).unwrap();
            let producer = Producer {
                file,
                page,
                bytes,
                position: 0,
            };
            (producer, Ring::open(fd, bytes as u32).unwrap())
        }

        /// Writes bytes to both copies of the data, as they are one memory in the kernel.
        fn write(&self, position: u64, bytes: &[u8]) {
            let at = position % self.bytes;
            let first = bytes.len().min((self.bytes - at) as usize);
            for (at, part) in [(at, &bytes[..first]), (0, &bytes[first..])] {
                for copy in [0, self.bytes] {
                    let place = 2 * self.page + copy + at;
                    self.file.write_all_at(part, place).unwrap();
                }
            }
        }

        fn send(&mut self, record: &[u8], flags: u32) {
            self.write(self.position + 8, record);
            let head = u64::from(record.len() as u32 | flags);
            self.write(self.position, &head.to_ne_bytes());
            self.position += (record.len() as u64 + HEAD).next_multiple_of(8);
            self.file
                .write_all_at(&self.position.to_ne_bytes(), self.page)
                .unwrap();
        }
    }

    /// A record of so many bytes that differ from those of other numbers.
    fn record(number: u64, len: usize) -> Vec<u8> {
        let words = (0..).flat_map(|word: u64| (number << 32 | word).to_ne_bytes());
        words.take(len).collect()
    }

    #[test]
    fn a_window_of_the_ring_is_mapped_and_every_record_is_read() {
        let (mut producer, mut ring) = Producer::new(4 * WINDOW);
        assert!(ring.window.is_none(), "nothing was read");
        // Lengths that fit neither the window nor the ring, so that records cross the ends of both; twice three times around.
        let lengths = [24, 112, 65_528, 4_096, 40_001, 8];
        let (mut number, mut windows, mut last) = (0, 0, None);
        while producer.position < 6 * producer.bytes {
            let mut sent = Vec::new();
            for len in lengths {
                number += 1;
                sent.push(record(number, len));
                producer.send(&record(number, len), 0);
                producer.send(&record(0, 16), DISCARD);
            }
            let mut came = Vec::new();
            let end = ring.producer_position();
            let drained = ring.drain(end, u64::MAX, |bytes| came.push(bytes.to_vec()));
            assert_eq!(drained, Drained::Reached);
            assert!(came == sent, "records up to {number}");
            ring.release();
            let window = ring.window.as_ref().unwrap();
            assert!(
                window.mapping.len as u64 <= WINDOW,
                "{}",
                window.mapping.len
            );
            windows += u32::from(last.replace(window.from) != Some(window.from));
        }
        // It is moved when it is left, and not for each record.
        assert!((24..=60).contains(&windows), "{windows}");
    }

    #[test]
    fn a_record_may_be_longer_than_the_window() {
        let (mut producer, mut ring) = Producer::new(4 * WINDOW);
        let long = record(7, WINDOW as usize + 4_000);
        producer.send(&record(1, 1_000), 0);
        producer.send(&long, 0);
        producer.send(&record(2, 16), BUSY);
        let mut came = Vec::new();
        let end = ring.producer_position();
        let drained = ring.drain(end, u64::MAX, |bytes| came.push(bytes.to_vec()));
        assert_eq!(drained, Drained::Busy);
        assert!(came == [record(1, 1_000), long]);
    }
}
