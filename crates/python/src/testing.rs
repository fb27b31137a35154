//! Made-up memory for the unit tests of this crate.

use std::collections::BTreeMap;
use std::io;

use memscope_memory::Memory;

/// Memory that has bytes at some addresses. All other addresses cannot be read.
#[derive(Default)]
pub(crate) struct Bytes(BTreeMap<u64, u8>);

impl Bytes {
    pub fn put(&mut self, address: u64, bytes: &[u8]) {
        for (at, byte) in (address..).zip(bytes) {
            self.0.insert(at, *byte);
        }
    }

    pub fn word(&mut self, address: u64, word: u64) {
        self.put(address, &word.to_le_bytes());
    }
}

impl Memory for Bytes {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        for (i, byte) in buffer.iter_mut().enumerate() {
            let at = address
                .checked_add(i as u64)
                .ok_or(io::ErrorKind::InvalidInput)?;
            *byte = *self.0.get(&at).ok_or(io::ErrorKind::InvalidInput)?;
        }
        Ok(())
    }
}
