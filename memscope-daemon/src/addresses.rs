//! Addresses that a question names, and which blocks they lie in.
//!
//! A process may have hundreds of thousands of blocks and a question hundreds of addresses, so no address is compared with every block.

use memscope_ledger::report::SnapshotBlock;
use memscope_rpc::Refusal;

/// How many addresses a refusal names. It goes into a header of the answer, which has little room.
const NAMED: usize = 8;

/// Addresses, in order. Each may lie anywhere in a block, not only at its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addresses(Vec<u64>);

impl Addresses {
    pub(crate) fn new(asked: &[u64]) -> Addresses {
        let mut all = asked.to_vec();
        all.sort_unstable();
        Addresses(all)
    }

    /// Whether one of them lies in the block of this size at `begin`.
    pub(crate) fn lie_in(&self, begin: u64, size: u64) -> bool {
        let end = begin.saturating_add(size);
        let first = self.0.partition_point(|at| *at < begin);
        self.0.get(first).is_some_and(|at| *at < end)
    }

    /// Whether one of them lies in any of these blocks.
    pub(crate) fn lie_in_any<'b>(
        &self,
        blocks: impl IntoIterator<Item = &'b SnapshotBlock>,
    ) -> bool {
        let mut blocks = blocks.into_iter();
        blocks.any(|block| self.lie_in(block.addr, block.size))
    }
}

/// The refusal of a question whose addresses lie in no block that is handed out.
pub(crate) fn no_such_block(pid: u32, addresses: &[u64]) -> Refusal {
    let named = addresses.iter().take(NAMED).map(|at| format!("{at:#x}"));
    let mut named = named.collect::<Vec<_>>().join(", ");
    let others = addresses.len().saturating_sub(NAMED);
    if others > 0 {
        named = format!("{named}, or one of {others} others");
    }
    Refusal::Invalid {
        what: format!("no block of process {pid} that is handed out has the address {named} in it"),
        hint:
            "`memscope-ctl snapshot --format json` has the addresses and the states of all blocks"
                .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_refusal_names_only_some() {
        let what = |addresses: &[u64]| no_such_block(7, addresses).to_string();
        let one = "no block of process 7 that is handed out has the address 0x1000 in it";
        assert!(what(&[0x1000]).contains(one), "{}", what(&[0x1000]));
        let many = what(&vec![u64::MAX; 1000]);
        assert!(many.contains("or one of 992 others in it"), "{many}");
        assert!(many.len() < 420, "{many}");
    }

    proptest! {
        #[test]
        fn they_lie_where_a_comparison_with_each_says(
            asked in prop::collection::vec(prop_oneof![0..60_u64, u64::MAX - 30..=u64::MAX], 0..12),
            blocks in prop::collection::vec(
                (prop_oneof![0..60_u64, u64::MAX - 30..=u64::MAX], 0..20_u64),
                1..40,
            ),
        ) {
            let addresses = Addresses::new(&asked);
            for (begin, size) in blocks {
                let inside = begin..begin.saturating_add(size);
                let one_is = asked.iter().any(|at| inside.contains(at));
                prop_assert_eq!(addresses.lie_in(begin, size), one_is, "{} and {}", begin, size);
            }
        }
    }
}
