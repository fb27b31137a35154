//! What the nodes replied, and what is told of those that did not.

use super::nodes::Node;
use super::processes::{PROCESSES_MOST, Told, pid_of};
use crate::failure::{Exit, Failure};
use crate::output::{self, ErrorBody, no_json};
use crate::process::Processes;
use crate::session::Session;
use crate::units::{self, grouped, plain};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;

/// Nodes, or processes, that are named for one reason; further ones are counted.
const NAMED: usize = 5;
/// Characters of a daemon's own words that are shown as a reason.
const WORDS: usize = 120;

/// The replies of all nodes, in the order of the list.
pub(crate) struct Replies<A> {
    nodes: Vec<(Node, Result<A, Failure>)>,
}

impl<A> Replies<A> {
    pub(super) fn of(nodes: Vec<(Node, Result<A, Failure>)>) -> Replies<A> {
        Replies { nodes }
    }

    /// Replies of nodes that all answered.
    #[cfg(test)]
    pub(crate) fn answered(answers: Vec<A>) -> Replies<A> {
        Replies::named(answers.into_iter().map(|it| ("n", it)).collect())
    }

    /// The nodes that answered, and their answers.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (&Node, &A)> {
        self.nodes
            .iter()
            .filter_map(|(node, reply)| Some((node, reply.as_ref().ok()?)))
    }

    /// The nodes that did not answer, and why.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = (&Node, &Failure)> {
        self.nodes
            .iter()
            .filter_map(|(node, reply)| Some((node, reply.as_ref().err()?)))
    }

    /// The same replies; a failure if no node answered, which is that of the node if there is only one.
    pub(crate) fn any(mut self) -> Result<Replies<A>, Failure> {
        if self.answers().next().is_some() {
            return Ok(self);
        }
        let (nodes, reasons) = (self.nodes.len(), reasons(self.by_name()));
        match self.nodes.pop() {
            Some((_, Err(failure))) if nodes == 1 => Err(failure),
            _ => Err(Failure::NoNode { nodes, reasons }),
        }
    }

    /// The reply of the only node.
    pub(crate) fn only(mut self) -> Result<A, Failure> {
        let none = Failure::NoNode {
            nodes: 0,
            reasons: String::new(),
        };
        self.nodes.pop().map_or(Err(none), |(_, reply)| reply)
    }

    /// The exit code: some nodes did not answer, or all is done.
    pub(crate) fn exit(&self) -> Exit {
        match self.unanswered().next() {
            Some(_) => Exit::Partly,
            None => Exit::Done,
        }
    }

    /// The sentence about the nodes that did not answer; empty if there are none.
    pub(crate) fn told(&self) -> String {
        let count = self.unanswered().count();
        if count == 0 {
            return String::new();
        }
        let nodes = match count {
            1 => "1 node".to_owned(),
            count => format!("{} nodes", grouped(count as u64)),
        };
        format!(
            "\n{nodes} of {} did not answer: {}\n",
            grouped(self.nodes.len() as u64),
            reasons(self.by_name())
        )
    }

    /// The names of the nodes that did not answer, and why they did not.
    fn by_name(&self) -> impl Iterator<Item = (String, &Failure)> {
        let each = self.unanswered();
        each.map(|(node, failure)| (node.name.clone(), failure))
    }

    /// Replies of nodes with these names that all answered.
    #[cfg(test)]
    pub(super) fn named(answers: Vec<(&str, A)>) -> Replies<A> {
        let node = |name: &str| Node {
            name: name.into(),
            address: crate::address::Address::Unix("/s".into()),
        };
        let each = answers.into_iter();
        Replies::of(each.map(|(name, it)| (node(name), Ok(it))).collect())
    }

    /// All replies as one document, with these further entries.
    pub(crate) fn document(
        &self,
        answer: impl Fn(&A) -> Result<Value, Failure>,
        further: Vec<(&str, Value)>,
    ) -> Result<Value, Failure> {
        let mut nodes = Vec::new();
        for (node, reply) in &self.nodes {
            let address = node.address.in_a_list();
            nodes.push(match reply {
                Ok(said) => json!({"node": node.name, "address": address, "answer": answer(said)?}),
                Err(failure) => {
                    let error = serde_json::to_value(ErrorBody::from(failure)).map_err(no_json)?;
                    json!({"node": node.name, "address": address, "error": error})
                }
            });
        }
        let mut document = json!({"nodes": nodes, "unanswered": self.unanswered().count()});
        for (name, value) in further {
            document[name] = value;
        }
        Ok(document)
    }
}

/// Prints the replies: as JSON with `--json`, else as the text that `text` makes of them and what is told of the others.
pub(crate) fn show<A>(
    replies: &Replies<A>,
    session: &Session,
    text: impl FnOnce(&Replies<A>) -> String,
    answer: impl Fn(&A) -> Result<Value, Failure>,
) -> Result<Exit, Failure> {
    match session.global.json {
        true => output::json(&replies.document(answer, Vec::new())?)?,
        false => output::text(&format!("{}{}", text(replies), replies.told()))?,
    }
    Ok(replies.exit())
}

/// What is told of processes of which nothing is in the table, beside the nodes that did not answer.
impl<A> Replies<Told<A>> {
    /// The processes of all nodes that were refused, by name, and why.
    fn refused(&self) -> impl Iterator<Item = (String, &Failure)> {
        let each = self.answers();
        each.flat_map(|(node, told)| {
            told.refused().map(move |(process, failure)| {
                let pid = pid_of(process).unwrap_or_default();
                (format!("{} pid {pid}", node.name), failure)
            })
        })
    }

    /// How many processes of each node were not asked about.
    fn not_asked(&self) -> impl Iterator<Item = (&Node, usize)> {
        let each = self.answers();
        each.map(|(node, told)| (node, told.not_asked))
    }

    /// Whether some process is neither in the table nor gone.
    pub(crate) fn lacks_processes(&self) -> bool {
        self.refused().next().is_some() || self.not_asked().any(|(_, count)| count > 0)
    }

    /// Whether some node said something of a process, be it a refusal.
    fn has_processes(&self) -> bool {
        self.answers().any(|(_, told)| !told.processes.is_empty())
    }

    /// The named processes that no node has which answered. A process that was not asked about may be one that a node has.
    fn not_found(&self, named: &[u32]) -> Vec<u32> {
        if self.not_asked().any(|(_, count)| count > 0) {
            return Vec::new();
        }
        let is_found = |pid: u32| self.answers().any(|(_, told)| told.has(pid));
        let pids = named.iter().copied();
        pids.filter(|pid| !is_found(*pid)).collect()
    }

    /// The exit code: that of a process that was refused first, since what was asked of it was answered by nobody.
    fn exit_of_processes(&self, named: &[u32]) -> Exit {
        if let Some((_, failure)) = self.refused().next() {
            return failure.exit();
        }
        if self.exit() != Exit::Done || self.lacks_processes() {
            return Exit::Partly;
        }
        match self.not_found(named).is_empty() {
            true => Exit::Done,
            false => Exit::NoProcess,
        }
    }

    /// The sentences about nodes and processes of which nothing is in the table; empty if there are none.
    fn told_of_processes(&self, named: &[u32]) -> String {
        let mut text = self.told();
        text.push_str(&refused(self.refused().collect()));
        text.push_str(&not_asked(self.not_asked(), "processes", PROCESSES_MOST));
        let pids: Vec<String> = self.not_found(named).iter().map(u32::to_string).collect();
        if !pids.is_empty() {
            let processes = match pids.len() {
                1 => "the process",
                _ => "any of the processes",
            };
            let nodes = match self.unanswered().next() {
                Some(_) => "No node that answered",
                None => "No node",
            };
            text.push_str(&format!("\n{nodes} has {processes} {}.\n", pids.join(", ")));
        }
        text
    }
}

/// The sentence about processes that were refused, each with its name and why; empty if there are none.
pub(crate) fn refused(of: Vec<(String, &Failure)>) -> String {
    let processes = match of.len() {
        0 => return String::new(),
        1 => "1 process was".to_owned(),
        count => format!("{} processes were", grouped(count as u64)),
    };
    format!("\n{processes} refused: {}\n", reasons(of.into_iter()))
}

/// The sentence about processes, or ranks, that were not asked about because their node has more than `most`; empty if there are none.
pub(crate) fn not_asked<'a>(
    of: impl Iterator<Item = (&'a Node, usize)>,
    what: &str,
    most: usize,
) -> String {
    let some: Vec<(&Node, usize)> = of.filter(|(_, count)| *count > 0).collect();
    let sum: usize = some.iter().map(|(_, count)| count).sum();
    if sum == 0 {
        return String::new();
    }
    let each = some.iter().map(|(node, count)| {
        let count = grouped(*count as u64);
        format!("{} {count}", node.name)
    });
    format!(
        "\n{} {what} were not asked about, since of each node at most {most} are: {}\n",
        grouped(sum as u64),
        few(&each.collect::<Vec<_>>())
    )
}

/// Prints what nodes said of their processes, as [`show`] prints replies; and what is told of processes that were refused, that were not
/// asked about, or that no node has although they were named.
pub(crate) fn show_processes<A>(
    replies: &Replies<Told<A>>,
    processes: &Processes,
    session: &Session,
    text: impl FnOnce(&Replies<Told<A>>) -> String,
    answer: impl Fn(&Told<A>) -> Result<Value, Failure>,
) -> Result<Exit, Failure> {
    let named = processes.named();
    if session.global.json {
        let not_asked: usize = replies.not_asked().map(|(_, count)| count).sum();
        let further = vec![
            ("refused", json!(replies.refused().count())),
            ("not_asked", json!(not_asked)),
            ("not_found", json!(replies.not_found(&named))),
        ];
        output::although_closed(output::json(&replies.document(answer, further)?))?;
    } else {
        // Of named processes that no node has, nothing is said beside that.
        let is_of_none = !named.is_empty() && !replies.has_processes();
        let table = match is_of_none {
            true => String::new(),
            false => text(replies),
        };
        let text = format!("{table}{}", replies.told_of_processes(&named));
        output::although_closed(output::text(text.trim_start_matches('\n')))?;
    }
    Ok(replies.exit_of_processes(&named))
}

/// `refused 2 (node4, node9), no answer within 10 s 1 (node7)`: the reasons of most nodes, or processes, first.
fn reasons<'a>(unanswered: impl Iterator<Item = (String, &'a Failure)>) -> String {
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, failure) in unanswered {
        by_reason.entry(reason(failure)).or_default().push(name);
    }
    let mut reasons: Vec<(String, Vec<String>)> = by_reason.into_iter().collect();
    reasons.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let each = reasons.iter().map(|(reason, names)| {
        format!("{reason} {} ({})", grouped(names.len() as u64), few(names))
    });
    each.collect::<Vec<_>>().join(", ")
}

/// The first names, and how many more there are.
fn few(all: &[String]) -> String {
    let mut names: Vec<String> = all.iter().take(NAMED).map(|name| plain(name)).collect();
    if all.len() > NAMED {
        names.push(format!("{} more", grouped((all.len() - NAMED) as u64)));
    }
    names.join(", ")
}

/// Why a node did not answer, in words that are the same for nodes with the same trouble.
fn reason(failure: &Failure) -> String {
    match failure {
        Failure::NoDaemon { source, .. } => match source.kind() {
            io::ErrorKind::ConnectionRefused => "refused".to_owned(),
            io::ErrorKind::NotFound => "no socket".to_owned(),
            _ => cut(&source.to_string()),
        },
        Failure::Forbidden { .. } => "not permitted".to_owned(),
        Failure::NotTrusted { source, .. } => cut(&format!("not trusted: {source}")),
        Failure::Timeout { after, .. } => format!("no answer within {}", units::duration(*after)),
        Failure::Broken { .. } => "the connection broke".to_owned(),
        Failure::TooLarge { .. } => "an answer that is too large".to_owned(),
        other => cut(&other.to_string()),
    }
}

fn cut(words: &str) -> String {
    let words = plain(words);
    match words.chars().count() > WORDS {
        true => words.chars().take(WORDS - 1).chain(['…']).collect(),
        false => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use memscope_proto::v1;
    use std::time::Duration;

    #[test]
    fn reasons_are_grouped_with_the_names() {
        let address = || Address::Unix("/s".into());
        let node = |name: &str| Node {
            name: name.into(),
            address: address(),
        };
        let refused = || Failure::NoDaemon {
            address: address(),
            source: io::ErrorKind::ConnectionRefused.into(),
        };
        let late = Failure::Timeout {
            address: address(),
            what: "answer",
            after: Duration::from_secs(10),
        };
        let mut nodes = vec![
            (node("node1"), Ok(())),
            (node("node7"), Err(late)),
            (node("node4"), Err(refused())),
            (node("node9"), Err(refused())),
        ];
        let replies = Replies::of(nodes.split_off(0));
        assert_eq!(
            replies.told(),
            "\n3 nodes of 4 did not answer: refused 2 (node4, node9), no answer within 10 s 1 (node7)\n"
        );
        assert_eq!(replies.exit(), Exit::Partly);
        assert!(replies.any().is_ok());
        let many = (0..7).map(|number| (node(&format!("n{number}")), Err::<(), _>(refused())));
        let none = Replies::of(many.collect());
        let Err(Failure::NoNode { nodes: 7, reasons }) = none.any() else {
            panic!("some answered");
        };
        assert_eq!(reasons, "refused 7 (n0, n1, n2, n3, n4, 2 more)");
    }

    #[test]
    fn processes_without_an_answer_are_told() {
        let process = |pid| v1::Process {
            facts: Some(v1::ProcessFacts {
                pid,
                ..v1::ProcessFacts::default()
            }),
            ..v1::Process::default()
        };
        let inexact = || Failure::Refused {
            exit: Exit::CannotTell,
            code: "not_exact".into(),
            what: "the answer is not exact".into(),
            hint: None,
        };
        let told = |refused: &[u32], well: &[u32], not_asked| Told {
            processes: (refused.iter().map(|pid| (process(*pid), Err(inexact()))))
                .chain(well.iter().map(|pid| (process(*pid), Ok(()))))
                .collect(),
            not_asked,
        };
        let replies = Replies::named(vec![("a", told(&[7], &[8], 0)), ("b", told(&[7], &[], 0))]);
        assert_eq!(
            replies.told_of_processes(&[7, 9]),
            "\n2 processes were refused: the answer is not exact 2 (a pid 7, b pid 7)\n\nNo node has the process 9.\n"
        );
        assert_eq!(replies.exit_of_processes(&[7, 9]), Exit::CannotTell);
        let cut = Replies::named(vec![("a", told(&[], &[8], 44)), ("b", told(&[], &[9], 0))]);
        assert_eq!(
            cut.told_of_processes(&[]),
            "\n44 processes were not asked about, since of each node at most 256 are: a 44\n"
        );
        assert_eq!(cut.exit_of_processes(&[]), Exit::Partly);
        let well = Replies::named(vec![("a", told(&[], &[8], 0))]);
        assert_eq!(well.told_of_processes(&[8]), "");
        assert_eq!(well.exit_of_processes(&[8]), Exit::Done);
        assert_eq!(well.exit_of_processes(&[8, 9]), Exit::NoProcess);
    }
}
