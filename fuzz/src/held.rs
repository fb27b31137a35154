//! Counts the bytes that are held, in an allocator that passes everything on to the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Beyond this the program gets no more memory, so that what asks for all of it ends here, with a message, and takes no
/// other program with it.
const CEILING: i64 = 3 << 30;

static HELD: AtomicI64 = AtomicI64::new(0);
static HIGHEST: AtomicI64 = AtomicI64::new(0);

struct Counting;

/// Whether there is room for so many bytes more; then they are counted.
fn taken(bytes: usize) -> bool {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let held = HELD.fetch_add(bytes, Relaxed).saturating_add(bytes);
    if held > CEILING {
        HELD.fetch_sub(bytes, Relaxed);
        return false;
    }
    HIGHEST.fetch_max(held, Relaxed);
    true
}

fn given_back(bytes: usize) {
    HELD.fetch_sub(bytes as i64, Relaxed);
}

// SAFETY: every call goes to the system's allocator with the same arguments, or fails as an allocator may. To count the
// bytes, nothing is allocated.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !taken(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !taken(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // For a moment both may be there.
        if !taken(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        given_back(if moved.is_null() { size } else { layout.size() });
        moved
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most bytes that the program held at a time while the closure ran, beyond those that it held before. One closure runs
/// at a time: the caller takes care of that.
pub(crate) fn most_held(run: impl FnOnce()) -> u64 {
    let before = HELD.load(Relaxed);
    HIGHEST.store(before, Relaxed);
    run();
    u64::try_from(HIGHEST.load(Relaxed) - before).unwrap_or(0)
}
