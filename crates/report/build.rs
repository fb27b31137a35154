//! Compiles the two `.proto` files of XProf's formats without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["memory_profile.proto", "xplane.proto"], ["proto"])?;
    prost_build::Config::new()
        // Files of the same picture are the same bytes.
        .btree_map(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
