//! Entries as they stand in the configuration file, and in `status`.

use super::{Conditions, Entry, MOST_ENTRIES, Policy};
use crate::users;
use memscope_proto::v1;
use memscope_site::groups::{UNKNOWN, View, WAY_OUT};
use memscope_units::{parse_bytes, parse_duration};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Why the policy of a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// `attach` is no list of tables.
    #[error("attach: write each entry as a table of its own, under a line [[attach]]")]
    NoTables,
    /// There are too many entries.
    #[error(
        "{0} entries [[attach]] are too many: at most {MOST_ENTRIES} — a condition can be a list"
    )]
    TooMany(usize),
    /// An entry is wrong.
    #[error("entry {number} of [[attach]]{}: {what}", name.as_deref().map(|name| format!(" ({name:?})")).unwrap_or_default())]
    Entry {
        /// Which one, from 1 on.
        number: usize,
        /// What it is called.
        name: Option<String>,
        /// What is wrong, and what would be right.
        what: String,
    },
}

/// One pattern, or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Patterns {
    One(String),
    Many(Vec<String>),
}

/// A user by name or by number.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum User {
    Number(u32),
    Name(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Users {
    One(User),
    Many(Vec<User>),
}

/// A table `[[attach]]`. The names of options are those of `memscope-ctl attach`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Table {
    name: Option<String>,
    user: Option<Users>,
    cgroup: Option<Patterns>,
    job: Option<Patterns>,
    job_name: Option<Patterns>,
    container: Option<Patterns>,
    namespace: Option<Patterns>,
    pod: Option<Patterns>,
    #[serde(default)]
    pod_labels: BTreeMap<String, String>,
    command: Option<Patterns>,
    arguments: Option<Patterns>,
    library: Option<Patterns>,
    #[serde(default)]
    level: Level,
    stacks: Option<Stacks>,
    stack_depth: Option<u32>,
    stack_sample: Option<String>,
    stack_budget: Option<toml::Value>,
    every: Option<String>,
    steps: Option<String>,
    #[serde(default)]
    launches: bool,
    #[serde(default)]
    kernels: bool,
    #[serde(default)]
    accesses: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// Left alone.
    Off,
    Read,
    Segments,
    Blocks,
    #[default]
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stacks {
    None,
    Python,
    Native,
    All,
}

impl Policy {
    /// Reads the value of `attach` of a configuration file.
    ///
    /// # Errors
    /// If an entry is wrong: a condition that is none, a user who is not there, options that do not go together.
    pub fn read(attach: &toml::Value) -> Result<Policy, PolicyError> {
        let tables = attach.as_array().ok_or(PolicyError::NoTables)?;
        if tables.len() > MOST_ENTRIES {
            return Err(PolicyError::TooMany(tables.len()));
        }
        let mut entries = Vec::new();
        for (index, table) in tables.iter().enumerate() {
            let wrong = |what: String| PolicyError::Entry {
                number: index + 1,
                name: table
                    .get("name")
                    .and_then(|name| name.as_str().map(str::to_owned)),
                what,
            };
            if !table.is_table() {
                return Err(PolicyError::NoTables);
            }
            // A number of the wrong kind in a list is told by a path of the library's; its first line says enough.
            let read = Table::deserialize(table.clone());
            let read = read.map_err(|error| wrong(error.message().to_owned()))?;
            entries.push(read.entry().map_err(wrong)?);
        }
        Ok(Policy { entries })
    }
}

impl Table {
    fn entry(self) -> Result<Entry, String> {
        let list = |name: &str, patterns: Option<Patterns>| {
            let all = match patterns {
                None => return Ok(Vec::new()),
                Some(Patterns::One(one)) => vec![one],
                Some(Patterns::Many(many)) => many,
            };
            match all.iter().any(String::is_empty) || all.is_empty() {
                true => Err(format!(
                    "{name} fits nothing — leave it out, or give a pattern such as \"*\""
                )),
                false => Ok(all),
            }
        };
        let options = self.options()?;
        let cgroup = list("cgroup", self.cgroup)?;
        if let Some(path) = cgroup.iter().find(|path| !path.starts_with(['/', '*'])) {
            return Err(format!(
                "cgroup {path:?} cannot be a control group — give its path beneath the cgroup root, as in /proc/PID/cgroup"
            ));
        }
        if !cgroup.is_empty() && *View::own() == View::Unknown {
            return Err(format!("cgroup: {UNKNOWN} — {WAY_OUT}"));
        }
        if let Some(key) = self.pod_labels.keys().find(|key| key.is_empty()) {
            return Err(format!("pod-labels: {key:?} is no key"));
        }
        let conditions = Conditions {
            users: users(self.user)?,
            // A slash at the end would never fit.
            cgroup: cgroup
                .iter()
                .map(|path| path.trim_end_matches('/').to_owned())
                .collect(),
            job: list("job", self.job)?,
            job_name: list("job-name", self.job_name)?,
            container: list("container", self.container)?,
            namespace: list("namespace", self.namespace)?,
            pod: list("pod", self.pod)?,
            pod_labels: self.pod_labels,
            command: list("command", self.command)?,
            arguments: list("arguments", self.arguments)?,
            library: list("library", self.library)?,
        };
        Ok(Entry {
            name: self.name.unwrap_or_default(),
            conditions,
            options,
        })
    }

    /// What is watched, by the rules that hold for `memscope-ctl attach`.
    fn options(&self) -> Result<Option<memscope_rpc::AttachOptions>, String> {
        let level = match self.level {
            Level::Off => return self.nothing_else(),
            Level::Read => v1::Level::Read,
            Level::Segments => v1::Level::Segments,
            Level::Blocks => v1::Level::Blocks,
            Level::Trace => v1::Level::Trace,
        };
        let every = self.every.as_deref().map(parse_duration).transpose();
        let every = every.map_err(|error| format!("every: {error}"))?;
        let every = every.or((level == v1::Level::Read).then_some(memscope_proto::READ_EVERY));
        let sample = self.stack_sample.as_deref().map(parse_bytes).transpose();
        let sample = sample.map_err(|error| format!("stack-sample: {error}"))?;
        let request = v1::AttachRequest {
            scope: None,
            level: level.into(),
            read_every_ns: every.map(|every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX)),
            stacks: match self.stacks {
                None => v1::Stacks::Unspecified,
                Some(Stacks::None) => v1::Stacks::None,
                Some(Stacks::Python) => v1::Stacks::Python,
                Some(Stacks::Native) => v1::Stacks::Native,
                Some(Stacks::All) => v1::Stacks::All,
            }
            .into(),
            stack_depth: self.stack_depth.unwrap_or_default(),
            stack_sample_bytes: sample.unwrap_or_default(),
            launches: self.launches,
            kernels: self.kernels,
            accesses: self.accesses,
            step_name: self.steps.clone().unwrap_or_default(),
        };
        let options = memscope_rpc::attach_options(&request)
            .map_err(|refusal| format!("{} — {}", refusal.what(), refusal.hint()))?;
        Ok(Some(memscope_rpc::AttachOptions {
            stack_budget: self.stack_budget()?,
            ..options
        }))
    }

    /// An entry that leaves processes alone has nothing to say about how they are watched.
    fn nothing_else(&self) -> Result<Option<memscope_rpc::AttachOptions>, String> {
        let says_more = self.stacks.is_some()
            || self.stack_depth.is_some()
            || self.stack_sample.is_some()
            || self.stack_budget.is_some()
            || self.every.is_some()
            || self.steps.is_some()
            || self.launches
            || self.kernels
            || self.accesses;
        match says_more {
            true => Err("level = \"off\" leaves processes alone, so nothing can be said about how they are watched".to_owned()),
            false => Ok(None),
        }
    }

    fn stack_budget(&self) -> Result<Option<memscope_rpc::Share>, String> {
        let percent = match &self.stack_budget {
            None => return Ok(None),
            Some(toml::Value::Integer(percent)) => Some(*percent as f64),
            Some(toml::Value::Float(percent)) => Some(*percent),
            Some(toml::Value::String(text)) => text.trim_end_matches('%').trim().parse().ok(),
            Some(_) => None,
        };
        let share = percent.and_then(memscope_rpc::Share::of_percent);
        share.map(Some).ok_or_else(|| {
            "stack-budget: give a percentage of one processor above 0, up to 100, such as 5"
                .to_owned()
        })
    }
}

/// User ids, of names as well.
fn users(users: Option<Users>) -> Result<Vec<u32>, String> {
    let all = match users {
        None => return Ok(Vec::new()),
        Some(Users::One(one)) => vec![one],
        Some(Users::Many(many)) => many,
    };
    if all.is_empty() {
        return Err("user: the list is empty — leave it out".to_owned());
    }
    let number = |user: User| {
        match user {
        User::Number(number) => Ok(number),
        User::Name(name) => users::uid(&name).ok_or_else(|| {
            format!("user {name:?} is not known on this machine — a number works as well, such as user = 1000")
        }),
    }
    };
    all.into_iter().map(number).collect()
}
