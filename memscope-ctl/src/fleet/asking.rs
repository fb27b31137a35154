//! One node while it is asked: its connection, and what it may still say.

use crate::client::{Client, Rpc};
use crate::failure::Failure;
use serde::Serialize;
use std::cell::Cell;
use std::future::Future;
use std::io::{self, Write};
use tonic::{Request, Response, Status};

/// Bytes that the answers of one node may take, written as JSON. Messages are bounded already; but a message of a million
/// empty parts is small, and what it becomes is not.
const NODE_MOST: u64 = 16 << 20;
/// Bytes that the answers of all nodes may take, written as JSON.
const ALL_MOST: u64 = 512 << 20;

/// What all nodes together may still say.
pub(super) struct Allowance(Cell<u64>);

impl Allowance {
    pub(super) fn new() -> Allowance {
        Allowance(Cell::new(ALL_MOST))
    }
}

/// A node that is asked. Its answers are weighed as they come.
pub(crate) struct Asking<'a> {
    pub(crate) client: Client,
    left: Cell<u64>,
    of_all: &'a Allowance,
}

impl<'a> Asking<'a> {
    pub(super) fn new(client: Client, of_all: &'a Allowance) -> Asking<'a> {
        Asking {
            client,
            left: Cell::new(NODE_MOST),
            of_all,
        }
    }

    /// Asks one question.
    pub(crate) async fn ask<Q, A, F, R>(&self, question: Q, call: F) -> Result<A, Failure>
    where
        A: Serialize,
        F: FnOnce(Rpc, Request<Q>) -> R,
        R: Future<Output = Result<Response<A>, Status>>,
    {
        let answer = self.client.ask(question, call).await?;
        self.weigh(&answer)?;
        Ok(answer)
    }

    /// Refuses an answer that is larger than what the node, or all nodes, may still say.
    pub(crate) fn weigh(&self, answer: &impl Serialize) -> Result<(), Failure> {
        let mut scale = Scale {
            left: self.left.get(),
        };
        if serde_json::to_writer(&mut scale, answer).is_err() {
            return Err(self.client.too_large());
        }
        let size = self.left.get() - scale.left;
        let left = self.of_all.0.get().checked_sub(size);
        self.of_all.0.set(left.ok_or(Failure::TooLargeInAll)?);
        self.left.set(scale.left);
        Ok(())
    }
}

/// Counts bytes, and fails at the first one too many.
struct Scale {
    left: u64,
}

impl Write for Scale {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_stops_at_its_end() {
        let mut scale = Scale { left: 10 };
        assert!(serde_json::to_writer(&mut scale, "12345678").is_ok());
        assert_eq!(scale.left, 0);
        assert!(serde_json::to_writer(&mut scale, &1).is_err());
    }
}
