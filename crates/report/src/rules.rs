//! The sets of rules by which a report divides memory.

use crate::picture::Frame;
use memscope_owners::{Facts, Origin, Rules, RulesError};

/// The rules of torchtitan's two scripts.
#[derive(Debug)]
pub struct RuleSets {
    titan: Rules,
    keywords: Rules,
}

impl RuleSets {
    /// Reads the sets, which come with memscope.
    ///
    /// # Errors
    /// Where one of them is no set of rules.
    pub fn new() -> Result<RuleSets, RulesError> {
        Ok(RuleSets {
            titan: Rules::named("torchtitan")?,
            keywords: Rules::named("torchtitan-overhead")?,
        })
    }

    pub(crate) fn titan(&self, frames: &[Frame]) -> String {
        decide(&self.titan, frames)
    }

    pub(crate) fn keyword(&self, frames: &[Frame]) -> String {
        decide(&self.keywords, frames)
    }
}

fn decide(rules: &Rules, frames: &[Frame]) -> String {
    let frames: Vec<memscope_owners::Frame<'_>> = frames
        .iter()
        .map(|frame| memscope_owners::Frame {
            function: &frame.function,
            file: &frame.file,
        })
        .collect();
    let facts = Facts {
        frames: &frames,
        holder: "",
        types: &[],
        via: None,
        origin: Origin::Unknown,
        labels: &[],
        is_in_private_pool: false,
        allocated_by: None,
        freed_by: None,
        component: "",
    };
    rules.decide(None, None, &facts).category
}
