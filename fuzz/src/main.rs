//! The program that libFuzzer drives. `MEMSCOPE_FUZZ_TARGET` names the target; where `MEMSCOPE_FUZZ_SEEDS` names a folder, the
//! inputs with which the search begins are written there first.

#![no_main]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)] // libFuzzer's macro makes functions without any

use memscope_fuzz::{Target, target};
use std::sync::OnceLock;

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name =
            std::env::var("MEMSCOPE_FUZZ_TARGET").expect("MEMSCOPE_FUZZ_TARGET names the target");
        target(&name).expect("MEMSCOPE_FUZZ_TARGET names one of the targets")
    })
}

libfuzzer_sys::fuzz_target!(
    init: {
        if let Some(folder) = std::env::var_os("MEMSCOPE_FUZZ_SEEDS") {
            std::fs::create_dir_all(&folder).expect("the folder for the seeds can be made");
            for (number, seed) in (chosen().seeds)().iter().enumerate() {
                let path = std::path::Path::new(&folder).join(format!("seed-{number}"));
                std::fs::write(path, seed).expect("a seed can be written");
            }
        }
    },
    |input: &[u8]| {
        chosen().run(input);
    }
);
