//! Bytes at addresses, whoever has them.

use std::io;

/// A range of addresses to be read.
#[derive(Debug, Default)]
pub struct Part {
    /// Address at which the range begins.
    pub address: u64,
    /// The buffer that is filled; its length says how many bytes are read.
    pub bytes: Vec<u8>,
}

/// Something that can be read at addresses.
pub trait Memory {
    /// Fills the whole `buffer` with what lies at `address`. Fails if not all of it can be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The word of 64 bits at `address`, in little-endian byte order.
    fn read_u64(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The NUL-terminated string at `address`, without the NUL. Fails if there is no NUL among the first `limit` bytes;
    /// bytes behind these are never read.
    fn read_string(&self, address: u64, limit: usize) -> io::Result<Vec<u8>> {
        const STEP: u64 = 64;
        let mut text = Vec::new();
        let mut at = address;
        while text.len() < limit {
            // Each step ends at a multiple of 64, so that it never reaches into the next page, which may not exist.
            let len = ((STEP - at % STEP) as usize).min(limit - text.len());
            let mut step = [0; STEP as usize];
            let step = &mut step[..len];
            self.read(at, step)?;
            if let Some(end) = memchr::memchr(0, step) {
                text.extend_from_slice(&step[..end]);
                return Ok(text);
            }
            text.extend_from_slice(step);
            at = at
                .checked_add(len as u64)
                .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no end of the string in reach",
        ))
    }

    /// Fills all parts; the first part is read first, the last one last. Fails if any part cannot be read.
    fn read_many(&self, parts: &mut [Part]) -> io::Result<()> {
        for part in parts {
            self.read(part.address, &mut part.bytes)?;
        }
        Ok(())
    }
}

/// Memory that perhaps could not be opened: with `None`, every read fails.
impl<M: Memory> Memory for Option<M> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Some(memory) => memory.read(address, buffer),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Memory that ends where its bytes end.
    struct Short(Vec<u8>);

    impl Memory for Short {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            let bytes = self.0.get(address as usize..).unwrap_or(&[]);
            let bytes = bytes
                .get(..buffer.len())
                .ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn the_limit_of_a_string_is_exact() {
        // The NUL is byte number 100 of the string, which begins in the middle of a step.
        let mut bytes = vec![b'x'; 512];
        bytes[7 + 99] = 0;
        let memory = Short(bytes);
        assert_eq!(memory.read_string(7, 100).unwrap(), [b'x'; 99]);
        for limit in [0, 1, 57, 64, 98, 99] {
            assert!(memory.read_string(7, limit).is_err(), "{limit}");
        }
        // What lies behind the limit is not touched, even where the whole step would reach beyond the memory.
        let end = Short(b"name\0".to_vec());
        assert_eq!(end.read_string(0, 5).unwrap(), b"name");
    }
}
