//! What the nodes replied, and what is told of those that did not.

use super::nodes::Node;
use crate::failure::{Exit, Failure};
use crate::output::{self, ErrorBody, no_json};
use crate::session::Session;
use crate::units::{self, grouped, plain};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;

/// Nodes that are named for one reason; further ones are counted.
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
        let node = || Node {
            name: "n".into(),
            address: crate::address::Address::Unix("/s".into()),
        };
        Replies::of(answers.into_iter().map(|it| (node(), Ok(it))).collect())
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
        let (nodes, reasons) = (self.nodes.len(), reasons(self.unanswered()));
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
            reasons(self.unanswered())
        )
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

/// `refused 2 (node4, node9), no answer within 10 s 1 (node7)`: the reasons of most nodes first.
fn reasons<'a>(unanswered: impl Iterator<Item = (&'a Node, &'a Failure)>) -> String {
    let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (node, failure) in unanswered {
        by_reason
            .entry(reason(failure))
            .or_default()
            .push(&node.name);
    }
    let mut reasons: Vec<(String, Vec<&str>)> = by_reason.into_iter().collect();
    reasons.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    let each = reasons.iter().map(|(reason, nodes)| {
        let mut names: Vec<String> = nodes.iter().take(NAMED).map(|name| plain(name)).collect();
        if nodes.len() > NAMED {
            names.push(format!("{} more", grouped((nodes.len() - NAMED) as u64)));
        }
        format!(
            "{reason} {} ({})",
            grouped(nodes.len() as u64),
            names.join(", ")
        )
    });
    each.collect::<Vec<_>>().join(", ")
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
}
