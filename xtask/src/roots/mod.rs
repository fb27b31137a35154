//! Tasks that run in roots of other Debian releases than this machine's.

pub mod fresh;
pub mod pythons;
pub mod root;

pub use root::{apt_get, finish, finished, inside, make, remove};
