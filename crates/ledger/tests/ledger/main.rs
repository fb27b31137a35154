//! The ledger as its users see it: events in, answers out. One program, because each would compile the ledger's generic code anew.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

mod ascend_layer;
mod course;
mod driver_layer;
mod full;
mod gauges;
mod given_back;
mod hardware;
mod labels;
mod leak_chance;
mod leak_reports;
mod leak_verdicts;
mod lifecycle;
mod losses;
mod marks;
mod memory;
mod peaks;
mod pool_model;
mod rates;
mod read_level;
mod reading_facts;
mod reading_leaks;
mod readings;
mod regions;
mod snapshots;
mod stacks;
mod steps;
mod vmm_layer;
