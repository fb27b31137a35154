//! Who holds memory that is no framework's, on Ascend.

use crate::event::HalModule;

/// What a component of Ascend's software holds from the driver, outside a framework's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    /// Its number in the driver.
    pub module: HalModule,
    /// Live allocations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of them in huge pages (2 MiB).
    pub huge_page_bytes: u64,
    /// Of them in giant pages (1 GiB).
    pub giant_page_bytes: u64,
}

impl Component {
    /// Holds nothing.
    pub(crate) fn new(module: HalModule) -> Component {
        Component {
            module,
            count: 0,
            bytes: 0,
            huge_page_bytes: 0,
            giant_page_bytes: 0,
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.module.name()
    }
}
