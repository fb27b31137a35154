//! Reads the state of PyTorch's native caching allocator (CUDA's, and torch_npu's) from the memory of a live process:
//! every segment and block, with size, requested size, state, stream and pool. It only reads, and does not stop the
//! process.
//!
//! The exported pointer `c10::cuda::CUDACachingAllocator::allocator` is the only symbol needed. The offsets in the
//! allocator's objects differ between versions of PyTorch. They are found by evidence ([`find_layout`]), not in tables.
//! A reading ([`read`], [`Reader`]) is accepted only if
//!
//! * the allocator's object was the same, byte for byte, before and after the reading, and its mutex was free both
//!   times: its counters grow with every change, so nothing changed in between;
//! * trees and tables have the number of entries that they state, each block is in exactly one of them, and neighbours
//!   agree with each other;
//! * number and bytes of the blocks, for all, small and large pools, equal the allocator's own statistics.
//!
//! Otherwise the reading is repeated, up to a bound, or there is an error that says why. Nothing is guessed.
//!
//! A large process that keeps allocating never stands still for as long as a reading takes. A [`Look`] reads everything
//! while it changes, between two moments at which no thread is inside the allocator. Probes report what changed in the
//! meantime, and with these changes [`Reader::settle`] computes the state at the end of the look. It is accepted only
//! if blocks and free room tile the segments and add up to the same statistics.
//!
//! Refuses: writing, symbols, debug information, version numbers, clocks (except for [`Reading::duration`]). It works
//! for little-endian 64-bit processes with libstdc++ and glibc, which is what PyTorch's wheels use.

mod blocks;
mod edge_search;
mod edges;
mod error;
mod fetch;
mod find;
mod image;
mod layout;
mod look;
mod pools;
mod read;
mod segments;
mod settle;
mod shape;
mod walk;

pub use error::StructureError;
pub use find::{find_in_device, find_layout};
pub use layout::{BlockLayout, Layout, StatsLayout};
pub use look::Look;
pub use read::{DeviceReading, Reader, Reading, read};
pub use segments::{BlockReading, BlockState, SegmentReading};
pub use settle::{Change, ChangeKind};
