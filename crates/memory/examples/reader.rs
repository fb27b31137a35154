//! A reader process, for the tests.

use memscope_memory::{Memory, Work};

/// Adds the words at the addresses that it is told.
const SUM: Work = Work {
    number: 7,
    run: |memory, told, ask| {
        let mut sum = 0u64;
        for address in told.chunks_exact(8) {
            let address = u64::from_ne_bytes(address.try_into().map_err(std::io::Error::other)?);
            sum = sum.wrapping_add(memory.read_u64(address)?);
            let reply = ask(&sum.to_ne_bytes())?;
            if reply == b"enough" {
                break;
            }
        }
        Ok(sum.to_ne_bytes().to_vec())
    },
};

/// Never comes to an end.
const FOR_EVER: Work = Work {
    number: 9,
    run: |_, _, _| loop {
        std::hint::spin_loop();
    },
};

fn main() -> std::process::ExitCode {
    memscope_memory::reader::serve(&[SUM, FOR_EVER])
}
