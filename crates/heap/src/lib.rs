//! Which Python objects of another, running process keep its device memory alive, read from outside.
//!
//! [`read`] finds the modules and the frames of an interpreter, and follows all references from there: through lists, dictionaries,
//! attributes, closures, frames and generators, to tensors, their gradients, and what the nodes of the autograd graph have saved. So each
//! block of device memory gets the shortest way from a name of the program ([`Reading::way`]). What is reached from no name is either kept
//! alive by something that is not Python, or is garbage that waits for the collector, which is told as the collector does it: by references
//! that are counted and were not found.
//!
//! The process is neither stopped nor changed. It changes meanwhile, so each way is read twice, and says whether it was the same.
//!
//! Owns: what CPython's and PyTorch's objects look like. Refuses: to know what a block is for, and to believe a layout that the memory does
//! not prove.

mod answer;
mod cycles;
mod error;
mod graph;
mod heap;
mod modules;
mod names;
mod numbers;
mod objects;
mod pages;
mod reading;
mod roots;
mod shapes;
mod telling;
mod torch;
mod types;
mod uses;
mod ways;

pub use answer::{Held, Holder, Link, Origin, Reading, Wanted};
pub use answer::{Module, Use, Used};
pub use error::HeapError;
pub use graph::MOST_OBJECTS;
pub use pages::MOST_READ;
pub use reading::read;
pub use telling::{MOST_BYTES, MOST_HELD, MOST_HOLDERS};
pub use uses::MOST_USES;
pub use ways::{MOST_STEPS, Steps, Ways};
