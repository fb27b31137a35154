//! memscoped
mod ingest;
mod probe;
fn main() {}
