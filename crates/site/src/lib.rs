//! Finds which allocator functions exist in the files that a process has mapped, and where a probe may stand in them.
//!
//! This crate owns the view of a process's mappings ([`mapped`]), the search for the functions of
//! `memscope-vendors` in the mapped files ([`resolve`]), the choice of
//! the instruction under each probe ([`place`]), the search for PyTorch's operators in its library ([`operators`]), and what it reads from a live process: which
//! allocator PyTorch uses ([`backend`]) with which settings ([`settings`]), and facts about the process itself
//! ([`process`]), with its control group as the machine calls it ([`groups`]) and whether it has a device open ([`device_files`]).
//!
//! Its sources are files, `/proc` and the process's memory. It knows neither aya nor BPF, attaches nothing, and
//! refuses to guess: what cannot be found or proved is named in [`Missing`], with the reason.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod backend;
mod calls;
pub mod containers;
pub mod device_files;
pub mod elf;
mod error;
mod file_sites;
pub mod groups;
pub mod identity;
pub mod mapped;
pub mod maps;
pub mod mounts;
pub mod operators;
pub mod place;
pub mod process;
pub mod resolve;
pub mod settings;
pub mod stripped;

pub use calls::{NoCalls, TraceCalls};
pub use error::SiteError;
pub use file_sites::Why;
pub use identity::FileIdentity;
pub use memscope_ledger::event::Level;
pub use resolve::{
    FoundSite, LoaderHook, Missing, ObjectSites, ProcessOperators, Resolved, Resolver, at_level,
};
pub use settings::SettingsPlace;
pub use stripped::NotFound;
