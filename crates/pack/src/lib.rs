//! MessagePack for `serde`, in little machine code.
//!
//! Owns: how the state of a checkpoint and the messages between the daemon and its readers become bytes and come back. The bytes
//! themselves are `rmp`'s. Refuses: what the bytes mean; texts and bytes that borrow from the input; what MessagePack calls extensions.
//!
//! `rmp-serde` does the same, and its checkpoints are read here. Its reader and its writer are generic in what they read from and write
//! to, and each type's code is compiled for every way in which MessagePack could have it: a structure as a map, as a list, as bytes, as an
//! extension. With the hundreds of types in a checkpoint that was two megabytes of a program. Here all types share one reader and one
//! writer, and each has the code for the one form in which it is written.
//!
//! Nothing is trusted: a length is believed only as far as bytes follow, and what is nested too deeply is refused.

mod error;
mod read;
mod write;

pub use error::Error;
pub use read::{Deserializer, from_slice, read};
pub use write::{Serializer, to_vec, to_vec_named, write_named};
