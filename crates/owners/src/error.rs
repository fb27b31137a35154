//! Why rules cannot be used.

/// Why rules cannot be used. Each says where the fault is.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The text is not what rules look like.
    #[error("{source}")]
    Form {
        /// What is wrong, with its line.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// The rules have a version that is not known here.
    #[error("version {version} of rules is not known here; this memscope reads version 1")]
    Version {
        /// The version that they say.
        version: u32,
    },
    /// A regular expression is none.
    #[error("rule {number} ({category}): {what}: {source}")]
    Expression {
        /// The rule's number, from 1.
        number: usize,
        /// The category that the rule gives.
        category: String,
        /// Which of its conditions.
        what: &'static str,
        /// What is wrong.
        #[source]
        source: Box<regex::Error>,
    },
    /// A rule has no condition, and would be true for everything.
    #[error(
        "rule {number} ({category}) has no condition; to name what no rule names, write `otherwise = \"{category}\"` before the rules"
    )]
    Empty {
        /// The rule's number, from 1.
        number: usize,
        /// The category that the rule gives.
        category: String,
    },
    /// There are too many rules.
    #[error("{count} rules are more than the {most} that are looked at")]
    TooMany {
        /// How many there are.
        count: usize,
        /// How many are looked at.
        most: usize,
    },
    /// No set has this name.
    #[error("there is no set of rules `{name}`; there are {known}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
}
