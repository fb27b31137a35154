//! What who asks a reader gives along: how long to wait, and what to answer to what is asked back.

use std::io;
use std::time::Duration;

/// Answers a question that a work asks back.
pub type AskBack<'a> = dyn FnMut(&[u8]) -> io::Result<Vec<u8>> + 'a;

/// How long a reader is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Longest time for which it may stand still: it has no processor, wants none, and waits for nothing new.
    pub still: Duration,
    /// Longest time for which it may work.
    pub whole: Duration,
}
