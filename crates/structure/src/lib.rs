//! Reads the state of PyTorch's native caching allocator (CUDA's, and torch_npu's) out of a live process's memory: every segment and block, with
//! size, requested size, state, stream and pool. Read only, and without stopping the process.
//!
//! The exported pointer `c10::cuda::CUDACachingAllocator::allocator` is the only symbol needed. Where things
//! lie differs by PyTorch's version and is found by evidence ([`find_layout`]), not by tables. A reading ([`read`],
//! [`Reader`]) is accepted only if
//!
//! * the allocator's object was the same, byte for byte, before and after, and its mutex free both times: its
//!   counters grow with every change, so that nothing changed meanwhile;
//! * trees and tables have as many entries as they say, each block is in exactly one, and neighbours agree;
//! * count and bytes of blocks, for all, small and large pools, equal the allocator's own statistics.
//!
//! Otherwise it is taken again, within a bound, or there is an error that says why. It never guesses.
//!
//! A large process that goes on never stands still for as long as that takes. A [`Look`] reads everything while it changes, between
//! two moments at which nobody was in the allocator; with what changed meanwhile, which probes tell,
//! [`Reader::settle`] makes of it the state at the look's end. It is accepted only if blocks and free room tile the
//! segments and add up to the same statistics.
//!
//! What it refuses: writing, symbols, debug information, version numbers, clocks (except for [`Reading::duration`]).
//! It holds for little-endian 64-bit processes with libstdc++ and glibc, which is what PyTorch's wheels are.

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
