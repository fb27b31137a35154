//! Converts the word of flags of Ascend's driver to the ledger's facts, and back.

use memscope_common::hal;
use memscope_ledger::event::{HalFacts, HalModule, HalPage, HalSpace, Vendor};
use serde::{Deserialize, Serialize};

/// Decodes the word.
pub(crate) fn facts(word: u64) -> HalFacts {
    let created = word & hal::CREATED != 0;
    HalFacts {
        device: (word & hal::DEVICE_MASK) as u16,
        space: match (word >> hal::SPACE_SHIFT) & hal::SPACE_MASK {
            hal::SPACE_SVM => HalSpace::Svm,
            hal::SPACE_DEVICE => HalSpace::Device,
            hal::SPACE_HOST => HalSpace::Host,
            hal::SPACE_DVPP => HalSpace::Dvpp,
            other => HalSpace::Other(other as u8),
        },
        page: if word & hal::GIANT != 0 {
            HalPage::Giant
        } else if word & hal::HUGE != 0 {
            HalPage::Huge
        } else {
            HalPage::Normal
        },
        module: HalModule((word >> hal::MODULE_SHIFT) as u8),
        created,
        memory: created.then_some(((word >> hal::MEMORY_SHIFT) & hal::MEMORY_MASK) as u8),
    }
}

/// Encodes the facts as a word.
pub(crate) fn word(facts: &HalFacts) -> u64 {
    let space = match facts.space {
        HalSpace::Svm => hal::SPACE_SVM,
        HalSpace::Device => hal::SPACE_DEVICE,
        HalSpace::Host => hal::SPACE_HOST,
        HalSpace::Dvpp => hal::SPACE_DVPP,
        HalSpace::Other(number) => u64::from(number) & hal::SPACE_MASK,
    };
    let page = match facts.page {
        HalPage::Normal => 0,
        HalPage::Huge => hal::HUGE,
        HalPage::Giant => hal::GIANT,
    };
    let created = if facts.created {
        let memory = u64::from(facts.memory.unwrap_or(0)) & hal::MEMORY_MASK;
        hal::CREATED | (memory << hal::MEMORY_SHIFT)
    } else {
        0
    };
    (u64::from(facts.device) & hal::DEVICE_MASK)
        | (space << hal::SPACE_SHIFT)
        | page
        | created
        | (u64::from(facts.module.0) << hal::MODULE_SHIFT)
}

/// The driver's devices that a process can see, by the driver's numbers, in the order of the process's own numbers.
/// Empty: it sees all devices under the same numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Visible(Vec<u16>);

impl Visible {
    /// Reads the list from the environment that the process had at the attach.
    pub(crate) fn of(environment: &[(String, String)]) -> Visible {
        let list = environment
            .iter()
            .find(|(name, _)| name == Vendor::Ascend.facts().visible_devices)
            .map(|(_, value)| value.split(',').map(|number| number.trim().parse()));
        // The runtime does the same: it ignores everything after an entry that is not a number.
        Visible(list.map_or_else(Vec::new, |list| list.map_while(Result::ok).collect()))
    }

    /// Whether the process sees all devices.
    pub(crate) fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// The process's own number of the device that holds the memory; `None` for memory that is on no device that it
    /// sees.
    pub(crate) fn ordinal(&self, hal: &HalFacts) -> Option<i32> {
        if matches!(hal.space, HalSpace::Host | HalSpace::Other(_)) {
            return None;
        }
        if self.0.is_empty() {
            return Some(i32::from(hal.device));
        }
        let place = self.0.iter().position(|number| *number == hal.device)?;
        i32::try_from(place).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_word() {
        // Device 5, device memory, huge pages, requested by HCCL.
        let word_of = (3 << 56) | (1 << 17) | (1 << 10) | 5;
        let told = facts(word_of);
        assert_eq!(
            told,
            HalFacts {
                device: 5,
                space: HalSpace::Device,
                page: HalPage::Huge,
                module: HalModule(3),
                created: false,
                memory: None,
            }
        );
        assert_eq!(word(&told), word_of);
        let made = facts(hal::of_properties([0, 1, 33, 2, 1]));
        assert_eq!((made.space, made.page), (HalSpace::Host, HalPage::Giant));
        assert_eq!((made.created, made.memory), (true, Some(1)));
        assert_eq!(facts(7 << 10).space, HalSpace::Other(7));
    }

    #[test]
    fn devices_that_are_visible() {
        let told = |device, space| HalFacts {
            device,
            space,
            ..HalFacts::default()
        };
        let of = |value: &str| Visible::of(&[("ASCEND_RT_VISIBLE_DEVICES".into(), value.into())]);
        let all = Visible::of(&[]);
        assert!(all.is_all());
        assert_eq!(all.ordinal(&told(6, HalSpace::Device)), Some(6));
        assert_eq!(all.ordinal(&told(6, HalSpace::Host)), None);
        let some = of("4, 6,x,7");
        assert_eq!(some.ordinal(&told(6, HalSpace::Svm)), Some(1));
        assert_eq!(some.ordinal(&told(7, HalSpace::Svm)), None);
        assert_eq!(some.ordinal(&told(0, HalSpace::Svm)), None);
    }
}
