//! Which parts of a pickle were read already.

use crate::reader::{Pickle, Value};

/// Refuses a value that occurs twice where each must be a different one. A pickle of a few bytes can say a million
/// times that the next segment is the same as the first, which would take much memory here.
#[derive(Debug)]
pub struct Once {
    seen: Vec<bool>,
}

impl Once {
    /// Nothing was read yet.
    pub fn new(pickle: &Pickle) -> Once {
        Once {
            seen: vec![false; pickle.nodes()],
        }
    }

    /// Takes a value that must be a list, a tuple or a dictionary that was not read before.
    ///
    /// # Errors
    /// Says what it is instead.
    pub fn check(&mut self, value: Value) -> Result<(), &'static str> {
        let Value::Node(number) = value else {
            return Err("is no dictionary");
        };
        match self.seen.get_mut(number as usize) {
            Some(seen) if !*seen => {
                *seen = true;
                Ok(())
            }
            _ => Err("is there more than once"),
        }
    }
}
