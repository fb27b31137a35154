//! What all open tabs want to know of the present moment, asked once for all of them.

use super::ask::written;
use super::source::Source;
use crate::client::{Client, Rpc};
use crate::failure::{Exit, Failure};
use crate::fleet::Asking;
use crate::output::error_document;
use memscope_proto::v1;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Some JSON, and the same without the moment of which it is, by which one sees whether anything has changed.
struct Part {
    json: Vec<u8>,
    timeless: Vec<u8>,
}

impl Part {
    fn of<A: Serialize + Clone>(
        answer: &A,
        without_time: impl FnOnce(&mut A),
    ) -> Result<Part, Failure> {
        let json = written(answer)?;
        let mut timeless = answer.clone();
        without_time(&mut timeless);
        let timeless = written(&timeless)?;
        Ok(Part { json, timeless })
    }

    fn constant<A: Serialize>(answer: &A) -> Result<Part, Failure> {
        let json = written(answer)?;
        let timeless = json.clone();
        Ok(Part { json, timeless })
    }
}

/// The present moment.
pub(super) struct Now {
    /// Members of the document that every tab gets.
    parts: Vec<(&'static str, Part)>,
    /// What processes hold; `None` for a fleet.
    stats: Option<BTreeMap<u32, Part>>,
}

impl Now {
    /// The document for a tab that follows these processes.
    pub(super) fn json(&self, pids: &[u32]) -> Vec<u8> {
        self.document(pids, |part| &part.json)
    }

    /// The same without the moment.
    pub(super) fn timeless(&self, pids: &[u32]) -> Vec<u8> {
        self.document(pids, |part| &part.timeless)
    }

    fn document(&self, pids: &[u32], of: impl Fn(&Part) -> &[u8]) -> Vec<u8> {
        let mut document = vec![b'{'];
        let mut member = |name: &str, json: &[u8]| {
            if document.len() > 1 {
                document.push(b',');
            }
            document.extend_from_slice(format!("\"{name}\":").as_bytes());
            document.extend_from_slice(json);
        };
        for (name, part) in &self.parts {
            member(name, of(part));
        }
        if let Some(stats) = &self.stats {
            let mut each = Vec::new();
            for (pid, part) in stats.iter().filter(|(pid, _)| pids.contains(pid)) {
                each.extend_from_slice(if each.is_empty() { b"{" } else { b"," });
                each.extend_from_slice(format!("\"{pid}\":").as_bytes());
                each.extend_from_slice(of(part));
            }
            each.extend_from_slice(if each.is_empty() { b"{}" } else { b"}" });
            member("stats", &each);
        }
        document.push(b'}');
        document
    }
}

/// Asks for the present moment, with what these processes hold.
pub(super) async fn now(source: &Source<'_>, pids: &BTreeSet<u32>) -> Result<Now, Failure> {
    if let Some(fleet) = source.fleet() {
        let replies = fleet.ask(of_node).await.any()?;
        let of = |time: bool| {
            let answer = |(list, devices): &(v1::ListResponse, v1::DevicesResponse)| {
                let mut devices = devices.clone();
                if !time {
                    forget_time(&mut devices);
                }
                Ok(serde_json::json!({"list": list, "devices": devices}))
            };
            written(&replies.document(answer, Vec::new())?)
        };
        let part = Part {
            json: of(true)?,
            timeless: of(false)?,
        };
        return Ok(Now {
            parts: vec![("fleet", part)],
            stats: None,
        });
    }
    source.ask(async |client| of_one(client, pids).await).await
}

async fn of_one(client: &Client, pids: &BTreeSet<u32>) -> Result<Now, Failure> {
    let list = Part::constant(&client.list().await?)?;
    let devices = async |mut rpc: Rpc, request| rpc.devices(request).await;
    let devices = client.ask(v1::DevicesRequest::default(), devices).await;
    let devices = part(devices, forget_time)?;
    let mut stats = BTreeMap::new();
    for pid in pids {
        let answer = part(client.stats(*pid).await, |answer| {
            (answer.as_of, answer.as_of_boot_ns, answer.as_of_event) = (0, 0, None);
        })?;
        stats.insert(*pid, answer);
    }
    Ok(Now {
        parts: vec![("list", list), ("devices", devices)],
        stats: Some(stats),
    })
}

/// An answer, or the error that takes its place. Trouble with the daemon as a whole stays an error.
fn part<A: Serialize + Clone>(
    answer: Result<A, Failure>,
    without_time: impl FnOnce(&mut A),
) -> Result<Part, Failure> {
    match answer {
        Ok(answer) => Part::of(&answer, without_time),
        Err(failure) if failure.is_of_the_node() => Err(failure),
        Err(failure) if failure.exit() == Exit::Unreachable => Err(failure),
        Err(failure) => Part::constant(&error_document(&failure)?),
    }
}

async fn of_node(asking: &Asking<'_>) -> Result<(v1::ListResponse, v1::DevicesResponse), Failure> {
    let list = crate::fleet::list(asking).await?;
    let devices = async |mut rpc: Rpc, request| rpc.devices(request).await;
    let devices = asking.ask(v1::DevicesRequest::default(), devices).await?;
    Ok((list, devices))
}

fn forget_time(devices: &mut v1::DevicesResponse) {
    (devices.as_of, devices.as_of_boot_ns) = (0, 0);
}
