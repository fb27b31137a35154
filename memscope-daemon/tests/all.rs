//! Parts of the daemon that need no kernel.
//!
//! All files of this folder are one program, because each by itself would compile and link the same again.

mod world;

mod doors;
mod import;
mod moments;
mod moments_model;
mod triggers;
mod triggers_model;
