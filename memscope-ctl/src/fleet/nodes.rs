//! The list of nodes: a file with an address a line, standard input, the addresses of a name, or what Slurm or Kubernetes says.

use super::{k8s, slurm};
use crate::address::Address;
use crate::failure::Failure;
use std::collections::HashSet;
use std::io::{self, Read};
use std::path::PathBuf;
use tokio::net::lookup_host;

/// Bytes of a list that are read: it is no list if there are more.
const LIST_MOST: u64 = 16 << 20;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// What the tables show: the name in the list, else the address.
    pub(crate) name: String,
    pub(crate) address: Address,
}

impl Node {
    fn at(name: Option<&str>, address: Address) -> Node {
        Node {
            name: name.map_or_else(|| address.to_string(), str::to_owned),
            address,
        }
    }
}

/// Reads the nodes that `--fleet` names, each once.
pub(crate) async fn read(source: &str) -> Result<Vec<Node>, Failure> {
    let nodes = match source.split_once(':') {
        Some(("dns", name)) => resolve(name).await?,
        Some(("slurm", job)) => of_job(job).await?,
        Some(("k8s", service)) => {
            let found = k8s::nodes_of(service).await?.into_iter();
            found
                .map(|(name, address)| Node { name, address })
                .collect()
        }
        _ => {
            let text = text_of(source).map_err(|source_of| Failure::NoNodeList {
                path: PathBuf::from(source),
                source: source_of,
            })?;
            parse(source, &text)?
        }
    };
    if nodes.is_empty() {
        return Err(Failure::Usage {
            what: format!("{source} names no node"),
            hint: "write an address a line: unix:PATH, HOST:PORT or recording:PATH".into(),
        });
    }
    Ok(nodes)
}

fn text_of(source: &str) -> io::Result<String> {
    let mut text = String::new();
    let read = match source {
        "-" => io::stdin().take(LIST_MOST + 1).read_to_string(&mut text)?,
        path => std::fs::File::open(path)?
            .take(LIST_MOST + 1)
            .read_to_string(&mut text)?,
    };
    match read as u64 > LIST_MOST {
        true => Err(io::Error::other(format!(
            "it has more than {LIST_MOST} bytes"
        ))),
        false => Ok(text),
    }
}

/// Reads the lines of a list; `source` names it in errors.
fn parse(source: &str, text: &str) -> Result<Vec<Node>, Failure> {
    let (mut seen, mut names) = (HashSet::new(), HashSet::new());
    let mut nodes = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let node = node(line).map_err(|error| {
            let error = error.to_string();
            let (what, hint) = memscope_proto::split_message(&error);
            Failure::Usage {
                what: format!("line {} of {source}: {what}", number + 1),
                hint: hint
                    .unwrap_or("write NAME ADDRESS, or ADDRESS alone")
                    .to_owned(),
            }
        })?;
        if !seen.insert(node.address.clone()) {
            continue;
        }
        if !names.insert(node.name.clone()) {
            return Err(Failure::Usage {
                what: format!(
                    "line {} of {source}: the name {} is taken",
                    number + 1,
                    node.name
                ),
                hint: "give each address a name of its own".into(),
            });
        }
        nodes.push(node);
    }
    Ok(nodes)
}

/// `ADDRESS` or `NAME ADDRESS`. Paths may contain blanks, so a line that begins with one is an address as a whole.
fn node(line: &str) -> Result<Node, crate::address::AddressError> {
    let is_path = line.starts_with("unix:") || line.starts_with("recording:");
    let words = line.split_once(char::is_whitespace);
    match words.filter(|_| !is_path) {
        None => Ok(Node::at(None, Address::parse(line)?)),
        Some((name, address)) => Ok(Node::at(Some(name), Address::parse(address.trim())?)),
    }
}

/// The nodes of `JOB:PORT`, a job of Slurm.
async fn of_job(job: &str) -> Result<Vec<Node>, Failure> {
    let parts = job.split_once(':');
    let port = parts.and_then(|(job, port)| Some((job, port.parse::<u16>().ok()?)));
    let Some((job, port)) = port.filter(|(_, port)| *port > 0) else {
        return Err(Failure::Usage {
            what: format!("\"slurm:{job}\" is no job with a port"),
            hint: "write slurm:JOB:PORT, as slurm:1234:9465".into(),
        });
    };
    let names = slurm::nodes_of(job).await?;
    let at = |name: String| {
        let address = Address::parse(&format!("{name}:{port}")).ok()?;
        Some(Node::at(Some(&name), address))
    };
    // Parts of a job, and jobs of an array, may share a node, which is named for each of them.
    let mut seen = HashSet::new();
    let nodes = names.into_iter().filter_map(at);
    Ok(nodes
        .filter(|node| seen.insert(node.address.clone()))
        .collect())
}

/// All addresses of `NAME:PORT`. Their certificates must have the name.
async fn resolve(name: &str) -> Result<Vec<Node>, Failure> {
    let usage = |what: String, hint: &str| Failure::Usage {
        what,
        hint: hint.into(),
    };
    let Ok(Address::Host { host, port, .. }) = Address::parse(name) else {
        let what = format!("\"dns:{name}\" is no name with a port");
        return Err(usage(
            what,
            "write dns:NAME:PORT, as dns:memscoped.cluster:9465",
        ));
    };
    let found = lookup_host((host.as_str(), port)).await.map_err(|error| {
        let what = format!("the name {host} has no addresses: {error}");
        usage(
            what,
            "does this machine's resolver know it? try: getent ahosts NAME",
        )
    })?;
    let mut seen = HashSet::new();
    let nodes = found
        .filter(|one| seen.insert(*one))
        .map(|one| Address::Host {
            host: one.ip().to_string(),
            port: one.port(),
            verified_as: Some(host.clone()),
        });
    Ok(nodes.map(|address| Node::at(None, address)).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_kind() {
        let text = "# the fleet\n\n  node7 10.0.0.7:9465 \nunix:/run/a b.sock\n[::1]:9465\n\
                    10.0.0.7:9465\r\nreplayed\trecording:/x y\n";
        let nodes = parse("f", text).unwrap();
        let shown: Vec<_> = nodes
            .iter()
            .map(|node| (node.name.as_str(), node.address.to_string()))
            .collect();
        assert_eq!(
            shown,
            [
                // The same address below is asked once.
                ("node7", "10.0.0.7:9465".to_owned()),
                ("/run/a b.sock", "/run/a b.sock".to_owned()),
                ("[::1]:9465", "[::1]:9465".to_owned()),
                ("replayed", "/x y".to_owned()),
            ]
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        let failure = parse("nodes.txt", "node1 10.0.0.1:9465\n\nnode2 10.0.0.2\n").unwrap_err();
        assert!(
            failure
                .what()
                .starts_with("line 3 of nodes.txt: \"10.0.0.2\""),
            "{}",
            failure.what()
        );
        assert!(failure.hint().unwrap().contains("HOST:PORT"));
        let failure = parse("f", "a unix:/1\na unix:/2\n").unwrap_err();
        assert_eq!(failure.what(), "line 2 of f: the name a is taken");
    }

    #[tokio::test]
    async fn a_name_stands_for_its_addresses() {
        let nodes = read("dns:localhost:9465").await.unwrap();
        assert!(nodes.iter().all(|node| {
            match &node.address {
                Address::Host {
                    host,
                    port: 9465,
                    verified_as,
                } => {
                    host.parse::<std::net::IpAddr>()
                        .is_ok_and(|ip| ip.is_loopback())
                        && verified_as.as_deref() == Some("localhost")
                }
                _ => false,
            }
        }));
        assert!(!nodes.is_empty());
        assert!(read("dns:localhost").await.is_err());
    }
}
