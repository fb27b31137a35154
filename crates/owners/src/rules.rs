//! Sets of rules.

use std::collections::BTreeMap;

use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::error::RulesError;
use crate::facts::{AllocatedBy, Facts, Frame, FreedBy, Origin, Via};

/// Most rules in a set.
pub const MOST_RULES: usize = 500;
/// Most bytes that a compiled regular expression of a rule may take.
const MOST_OF_EXPRESSION: usize = 1 << 20;
/// The version of the form of rules.
const VERSION: u32 = 1;

/// The set that is used where no other is asked for.
pub const RULES_OF_MEMSCOPE: &str = "memscope";
/// The sets that come with memscope.
const SETS: [(&str, &str); 5] = [
    (RULES_OF_MEMSCOPE, include_str!("../rules/memscope.toml")),
    ("mosaic", include_str!("../rules/mosaic.toml")),
    ("msmemscope", include_str!("../rules/msmemscope.toml")),
    ("torchtitan", include_str!("../rules/torchtitan.toml")),
    (
        "torchtitan-overhead",
        include_str!("../rules/torchtitan-overhead.toml"),
    ),
];

/// What a block is for, as the object says that has its tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// A parameter of a module or an optimizer.
    Weights,
    /// A buffer of a module.
    Buffers,
    /// What an optimizer keeps for a parameter.
    OptimizerState,
    /// The gradient of a parameter.
    Gradients,
}

impl Use {
    /// The category that it is where a set gives it no other name.
    const fn category(self) -> &'static str {
        match self {
            Use::Weights => "weights",
            Use::Buffers => "buffers",
            Use::OptimizerState => "optimizer_state",
            Use::Gradients => "gradients",
        }
    }
}

/// In which order rules and frames are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// The first rule that is true decides.
    #[default]
    Rules,
    /// The innermost frame for which a rule is true decides, and of several rules the first.
    Frames,
}

/// Which frames a rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Which {
    /// Each frame alone.
    #[default]
    Each,
    /// Any of the stack, before all rules that look at each frame alone.
    Any,
}

/// A set as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    name: String,
    #[serde(default)]
    order: Order,
    /// Whether objects that say what a block is for are believed before all rules. They are where no set says otherwise.
    #[serde(default)]
    objects: Option<bool>,
    /// Names of categories that objects give.
    #[serde(default)]
    names: BTreeMap<Use, String>,
    /// The category of what no rule names.
    #[serde(default)]
    otherwise: Option<String>,
    /// The category of what has no stack.
    #[serde(default)]
    without_stack: Option<String>,
    /// Whether the labels that the program gives stand behind the category, as msMemScope writes them.
    #[serde(default)]
    with_labels: bool,
    #[serde(default, rename = "rule")]
    rules: Vec<WrittenRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    category: String,
    function: Option<String>,
    file: Option<String>,
    #[serde(default)]
    frames: Which,
    holder: Option<String>,
    r#type: Option<String>,
    label: Option<String>,
    via: Option<Via>,
    origin: Option<Origin>,
    private_pool: Option<bool>,
    allocated_by: Option<AllocatedBy>,
    freed_by: Option<FreedBy>,
    component: Option<String>,
}

/// A rule: true where all its conditions are.
#[derive(Debug)]
struct Rule {
    category: String,
    function: Option<Regex>,
    file: Option<Regex>,
    frames: Which,
    holder: Option<Regex>,
    kind: Option<Regex>,
    label: Option<Regex>,
    via: Option<Via>,
    origin: Option<Origin>,
    private_pool: Option<bool>,
    allocated_by: Option<AllocatedBy>,
    freed_by: Option<FreedBy>,
    component: Option<Regex>,
}

/// A set of rules.
#[derive(Debug)]
pub struct Rules {
    name: String,
    order: Order,
    objects: Option<bool>,
    names: BTreeMap<Use, String>,
    otherwise: Option<String>,
    without_stack: Option<String>,
    with_labels: bool,
    rules: Vec<Rule>,
}

/// Why a block is of a category.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The object that has its tensor says it.
    Object,
    /// A rule says it.
    Rule {
        /// The name of its set.
        set: String,
        /// Its number in the set, from 1.
        number: usize,
        /// The frame that it is true for, counted from the innermost, where it looks at frames.
        frame: Option<usize>,
    },
    /// No rule says anything.
    NoRule,
}

/// What a block is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The category that it has.
    pub category: String,
    /// Why it has this category.
    pub reason: Reason,
}

/// The category where no set says what to call it.
const NOT_NAMED: &str = "other";

impl Rules {
    /// The set with this name.
    ///
    /// # Errors
    /// Where there is none.
    pub fn named(name: &str) -> Result<Rules, RulesError> {
        match SETS.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Rules::parse(text),
            None => Err(RulesError::Unknown {
                name: name.to_owned(),
                known: SETS.map(|(known, _)| known).join(", "),
            }),
        }
    }

    /// Reads a set from its text, which is TOML.
    ///
    /// # Errors
    /// Where the text is no set of rules; says where.
    pub fn parse(text: &str) -> Result<Rules, RulesError> {
        let written: Written = toml::from_str(text).map_err(|source| RulesError::Form {
            source: Box::new(source),
        })?;
        if written.version != VERSION {
            return Err(RulesError::Version {
                version: written.version,
            });
        }
        let count = written.rules.len();
        if count > MOST_RULES {
            return Err(RulesError::TooMany {
                count,
                most: MOST_RULES,
            });
        }
        let rules = (1..).zip(written.rules);
        let rules: Result<Vec<Rule>, RulesError> = rules
            .map(|(number, rule)| Rule::new(number, rule))
            .collect();
        Ok(Rules {
            name: written.name,
            order: written.order,
            objects: written.objects,
            names: written.names,
            otherwise: written.otherwise,
            without_stack: written.without_stack,
            with_labels: written.with_labels,
            rules: rules?,
        })
    }

    /// Whether anything depends on what objects say or hold. `first` are the rules that are tried before these.
    #[must_use]
    pub fn needs_objects(&self, first: Option<&Rules>) -> bool {
        let by_holder = |rule: &Rule| {
            rule.holder.is_some()
                || rule.kind.is_some()
                || rule.via.is_some()
                || rule.origin.is_some()
        };
        let of_first = first.map_or(&[][..], |first| &first.rules);
        self.believes_objects(first) || of_first.iter().chain(&self.rules).any(by_holder)
    }

    /// Whether objects are believed before all rules.
    fn believes_objects(&self, first: Option<&Rules>) -> bool {
        let of_first = first.and_then(|first| first.objects);
        of_first.or(self.objects).unwrap_or(true)
    }

    /// What a block is for. `first` are the rules that are tried before these, and `known` is what the block's object says. What
    /// `first` says beside its rules counts before what this set says of the same.
    #[must_use]
    pub fn decide(&self, first: Option<&Rules>, known: Option<Use>, facts: &Facts<'_>) -> Decision {
        let mut decision = self.decide_without_labels(first, known, facts);
        if self.with_labels || first.is_some_and(|first| first.with_labels) {
            for label in facts.labels {
                decision.category.push('@');
                decision.category.push_str(label);
            }
        }
        decision
    }

    fn decide_without_labels(
        &self,
        first: Option<&Rules>,
        known: Option<Use>,
        facts: &Facts<'_>,
    ) -> Decision {
        if let Some(known) = known.filter(|_| self.believes_objects(first)) {
            let named = |set: &Rules| set.names.get(&known).cloned();
            let category = first.and_then(named).or_else(|| named(self));
            return Decision {
                category: category.unwrap_or_else(|| known.category().to_owned()),
                reason: Reason::Object,
            };
        }
        let by_rule = first
            .and_then(|first| first.by_rule(facts))
            .or_else(|| self.by_rule(facts));
        by_rule.unwrap_or_else(|| {
            let said =
                |what: fn(&Rules) -> Option<&String>| first.and_then(what).or_else(|| what(self));
            let without =
                said(|set| set.without_stack.as_ref()).filter(|_| facts.frames.is_empty());
            let category = without.or_else(|| said(|set| set.otherwise.as_ref()));
            Decision {
                category: category.map_or(NOT_NAMED, String::as_str).to_owned(),
                reason: Reason::NoRule,
            }
        })
    }

    fn by_rule(&self, facts: &Facts<'_>) -> Option<Decision> {
        let numbered = || (1..).zip(&self.rules);
        let decision = |number: usize, rule: &Rule, frame: Option<usize>| Decision {
            category: rule.category.clone(),
            reason: Reason::Rule {
                set: self.name.clone(),
                number,
                frame,
            },
        };
        if self.order == Order::Frames {
            for (number, rule) in numbered().filter(|(_, rule)| rule.frames == Which::Any) {
                if let Some(frame) = rule.is_true(facts) {
                    return Some(decision(number, rule, frame));
                }
            }
            for (at, frame) in facts.frames.iter().enumerate() {
                let alone = Facts {
                    frames: std::slice::from_ref(frame),
                    ..*facts
                };
                let found = numbered()
                    .filter(|(_, rule)| rule.frames == Which::Each)
                    .find(|(_, rule)| rule.is_true(&alone).is_some());
                if let Some((number, rule)) = found {
                    let frame = rule.looks_at_frames().then_some(at);
                    return Some(decision(number, rule, frame));
                }
            }
            // Without a stack, the rules that look at no frame are tried all the same.
            let found = numbered()
                .filter(|(_, rule)| facts.frames.is_empty() && !rule.looks_at_frames())
                .find(|(_, rule)| rule.is_true(facts).is_some());
            return found.map(|(number, rule)| decision(number, rule, None));
        }
        numbered().find_map(|(number, rule)| Some(decision(number, rule, rule.is_true(facts)?)))
    }
}

impl Rule {
    fn new(number: usize, rule: WrittenRule) -> Result<Rule, RulesError> {
        let category = rule.category;
        let expression = |what: &'static str, text: Option<String>| {
            text.map(|text| {
                RegexBuilder::new(&text)
                    .size_limit(MOST_OF_EXPRESSION)
                    .dfa_size_limit(MOST_OF_EXPRESSION)
                    .build()
                    .map_err(|source| RulesError::Expression {
                        number,
                        category: category.clone(),
                        what,
                        source: Box::new(source),
                    })
            })
            .transpose()
        };
        let made = Rule {
            function: expression("function", rule.function)?,
            file: expression("file", rule.file)?,
            holder: expression("holder", rule.holder)?,
            kind: expression("type", rule.r#type)?,
            label: expression("label", rule.label)?,
            component: expression("component", rule.component)?,
            frames: rule.frames,
            via: rule.via,
            origin: rule.origin,
            private_pool: rule.private_pool,
            allocated_by: rule.allocated_by,
            freed_by: rule.freed_by,
            category: category.clone(),
        };
        let has_condition = made.looks_at_frames()
            || made.holder.is_some()
            || made.kind.is_some()
            || made.label.is_some()
            || made.component.is_some()
            || made.via.is_some()
            || made.origin.is_some()
            || made.allocated_by.is_some()
            || made.freed_by.is_some()
            || made.private_pool.is_some();
        has_condition
            .then_some(made)
            .ok_or(RulesError::Empty { number, category })
    }

    const fn looks_at_frames(&self) -> bool {
        self.function.is_some() || self.file.is_some()
    }

    /// Whether all conditions are true; if one of them looks at frames, for which frame.
    fn is_true(&self, facts: &Facts<'_>) -> Option<Option<usize>> {
        let fits = |expression: &Option<Regex>, text: &str| {
            expression
                .as_ref()
                .is_none_or(|expression| expression.is_match(text))
        };
        let any = |expression: &Option<Regex>, texts: &[&str]| {
            expression
                .as_ref()
                .is_none_or(|expression| texts.iter().any(|text| expression.is_match(text)))
        };
        let is_true = any(&self.kind, facts.types)
            && any(&self.label, facts.labels)
            && fits(&self.holder, facts.holder)
            && fits(&self.component, facts.component)
            && self.via.is_none_or(|via| facts.via == Some(via))
            && self.origin.is_none_or(|origin| facts.origin == origin)
            && self
                .allocated_by
                .is_none_or(|by| facts.allocated_by == Some(by))
            && self.freed_by.is_none_or(|by| facts.freed_by == Some(by))
            && self
                .private_pool
                .is_none_or(|private| facts.is_in_private_pool == private);
        if !is_true {
            return None;
        }
        if !self.looks_at_frames() {
            return Some(None);
        }
        let frame = |frame: &Frame<'_>| {
            fits(&self.function, frame.function) && fits(&self.file, frame.file)
        };
        facts.frames.iter().position(frame).map(Some)
    }
}
