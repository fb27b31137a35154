//! Texts that occur again and again among rows, such as names of operators and call stacks.

use std::collections::HashSet;
use std::sync::Arc;

/// Keeps each text once.
#[derive(Default)]
pub(crate) struct Texts(HashSet<Arc<str>>);

impl Texts {
    /// The text as it is kept.
    pub(crate) fn kept(&mut self, text: &str) -> Arc<str> {
        match self.0.get(text) {
            Some(known) => Arc::clone(known),
            None => {
                let new: Arc<str> = Arc::from(text);
                self.0.insert(Arc::clone(&new));
                new
            }
        }
    }
}
