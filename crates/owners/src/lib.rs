//! What a block of device memory is for: rules that are data, over what is known of a block.
//!
//! Owns: the form of rules, the sets that come with memscope, and how they are applied. Refuses: to know where the facts come from.

mod error;
mod facts;
mod rules;

pub use error::RulesError;
pub use facts::{AllocatedBy, Facts, Frame, FreedBy, Origin, Via};
pub use rules::{Decision, MOST_RULES, RULES_OF_MEMSCOPE, Reason, Rules, Use};
