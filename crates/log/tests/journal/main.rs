//! The journal on disk, and recordings of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

mod bound;
mod damage;
mod foreign;
mod full_disk;
mod round_trip;
