//! What a target is, and how one input is run.

use crate::held;

const MIB: u64 = 1 << 20;

/// Something that reads bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name on the command line, and that of its folder in `corpus/`.
    pub name: &'static str,
    /// What it reads, for the table of results.
    pub reads: &'static str,
    /// Reads an input.
    pub read: fn(&[u8]),
    /// The inputs with which the search begins, made from real files and by the encoders.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Most MiB that an input may make it hold, whatever its length.
    pub held_mib: u64,
    /// Most further bytes that it may hold for each byte of the input.
    pub held_per_byte: u64,
    /// Longest input that is tried, in bytes.
    pub longest: usize,
}

impl Target {
    /// Runs one input. Returns the most bytes that were held at a time.
    ///
    /// # Panics
    /// If the code under test does, or if it holds more than it may: both are findings.
    pub fn run(&self, input: &[u8]) -> u64 {
        let held = held::most_held(|| (self.read)(input));
        let may = self.held_mib * MIB + self.held_per_byte * input.len() as u64;
        assert!(
            held <= may,
            "{}: an input of {} bytes made it hold {held} bytes at a time, and {may} is the most",
            self.name,
            input.len()
        );
        held
    }
}
