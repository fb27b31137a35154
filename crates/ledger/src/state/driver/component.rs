//! Which components of Ascend's software hold memory that no framework's pool lives in.
//!
//! Owns: bytes by component and page type. Refuses: memory of which no call to the driver was seen that named the
//! owner.

use crate::event::{HalFacts, HalPage};
use crate::report::{Component, DriverBytes, Holder};
use serde::{Deserialize, Serialize};

/// Holder and page type of memory that was asked for with these attributes.
pub(crate) fn told(hal: Option<HalFacts>) -> Option<(Holder, HalPage)> {
    hal.map(|hal| (Holder::Module(hal.module), hal.page))
}

/// Sums by component. There are a handful in a process, so a walk finds them faster than a map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Components {
    rows: Vec<(Holder, HalPage, DriverBytes)>,
}

impl Components {
    /// An allocation came.
    pub(crate) fn came(&mut self, holder: Option<(Holder, HalPage)>, bytes: u64) {
        let Some(key) = holder else {
            return;
        };
        let place = self
            .rows
            .iter()
            .position(|(holder, page, _)| (*holder, *page) == key);
        let sum = match place {
            Some(place) => &mut self.rows[place].2,
            None => {
                let at = self
                    .rows
                    .partition_point(|(holder, page, _)| (*holder, *page) < key);
                self.rows.insert(at, (key.0, key.1, DriverBytes::default()));
                &mut self.rows[at].2
            }
        };
        sum.count += 1;
        sum.bytes = sum.bytes.saturating_add(bytes);
    }

    /// One of them went, or turned out to be a pool's.
    pub(crate) fn went(&mut self, holder: Option<(Holder, HalPage)>, bytes: u64) {
        let row = holder.and_then(|key| {
            self.rows
                .iter_mut()
                .find(|(holder, page, _)| (*holder, *page) == key)
        });
        if let Some((_, _, sum)) = row {
            sum.count = sum.count.saturating_sub(1);
            sum.bytes = sum.bytes.saturating_sub(bytes);
        }
    }

    /// Components that hold something, ordered by the driver's numbers.
    pub(crate) fn held(&self) -> Vec<Component> {
        let mut held: Vec<Component> = Vec::new();
        for (holder, page, sum) in &self.rows {
            if sum.count == 0 {
                continue;
            }
            if held.last().is_none_or(|last| last.holder != *holder) {
                held.push(Component::new(*holder));
            }
            if let Some(last) = held.last_mut() {
                last.count += sum.count;
                last.bytes = last.bytes.saturating_add(sum.bytes);
                match page {
                    HalPage::Normal => {}
                    HalPage::Huge => last.huge_page_bytes = sum.bytes,
                    HalPage::Giant => last.giant_page_bytes = sum.bytes,
                }
            }
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::HalModule;

    #[test]
    fn sums_by_component_and_page() {
        let told = |module, page| Some((Holder::Module(HalModule(module)), page));
        let mut sums = Components::default();
        sums.came(told(33, HalPage::Huge), 100);
        sums.came(told(3, HalPage::Normal), 10);
        sums.came(told(33, HalPage::Normal), 1);
        sums.came(told(33, HalPage::Giant), 1000);
        sums.came(None, 5);
        let held = sums.held();
        assert_eq!(held.len(), 2);
        assert_eq!((held[0].name(), held[0].bytes), ("HCCL", 10));
        assert_eq!((held[1].count, held[1].bytes), (3, 1101));
        assert_eq!(
            (held[1].huge_page_bytes, held[1].giant_page_bytes),
            (100, 1000)
        );
        sums.came(Some((Holder::Workspace, HalPage::Normal)), 7);
        assert_eq!(sums.held()[2].name(), "PTA_WORKSPACE");
        sums.went(Some((Holder::Workspace, HalPage::Normal)), 7);
        sums.went(told(3, HalPage::Normal), 10);
        sums.went(told(9, HalPage::Normal), 10);
        assert_eq!(sums.held().len(), 1);
    }
}
