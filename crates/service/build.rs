//! Generates the services of `memscope/v1/*.proto`. For their messages it refers to `memscope-proto`.

use std::error::Error;

const PROTO: &str = "../../proto";
const FILES: &[&str] = &["memscope/v1/memscope.proto", "memscope/v1/trigger.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}/memscope");
    let descriptors = protox::compile(FILES, [PROTO])?;
    tonic_prost_build::configure()
        .extern_path(".memscope.v1", "::memscope_proto::v1")
        .compile_fds(descriptors)?;
    Ok(())
}
