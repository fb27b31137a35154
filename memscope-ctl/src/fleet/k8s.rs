//! The nodes behind a service of Kubernetes, as the EndpointSlices that belong to it name them.
//!
//! Owns: which endpoint is which node, and which of several is asked. Refuses: to talk to the API server. `kubectl` does that, in a pod with
//! its service account and elsewhere with whatever the user's configuration says (certificates, plugins, proxies), so that no credential
//! of a cluster passes through here.

use super::program::said;
use crate::address::Address;
use crate::failure::{Exit, Failure};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};

/// What is asked for: `[NAMESPACE/]SERVICE[:PORT]`.
#[derive(Debug, PartialEq, Eq)]
struct Service<'a> {
    /// Without one it is the namespace that kubectl is set to.
    namespace: Option<&'a str>,
    name: &'a str,
    port: Port<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port<'a> {
    /// The service's only one.
    Only,
    Number(u16),
    /// One of the service's, by its name.
    Named(&'a str),
}

/// Objects as the API's `discovery.k8s.io/v1` has them; what is not needed is left out.
#[derive(Deserialize)]
struct List {
    items: Vec<Slice>,
}

#[derive(Deserialize)]
struct Slice {
    metadata: Metadata,
    #[serde(rename = "addressType")]
    address_type: String,
    // A slice without endpoints has `null` here.
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<SlicePort>>,
}

#[derive(Deserialize)]
struct Metadata {
    namespace: String,
}

#[derive(Deserialize)]
struct Endpoint {
    /// Any of them will do, says the API.
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
    #[serde(rename = "nodeName")]
    node: Option<String>,
    #[serde(rename = "targetRef")]
    target: Option<Target>,
}

#[derive(Default, Deserialize)]
struct Conditions {
    terminating: Option<bool>,
}

#[derive(Deserialize)]
struct Target {
    name: Option<String>,
}

#[derive(Deserialize)]
struct SlicePort {
    name: Option<String>,
    port: Option<u16>,
    protocol: Option<String>,
}

/// The nodes of `[NAMESPACE/]SERVICE[:PORT]`, each with its name and address.
pub(super) async fn nodes_of(source: &str) -> Result<Vec<(String, Address)>, Failure> {
    let service = parse(source)?;
    let of = format!("kubernetes.io/service-name={}", service.name);
    let mut words = vec!["get", "endpointslices.discovery.k8s.io", "--selector", &of];
    words.extend(["--output", "json", "--request-timeout", "20s"]);
    words.extend(service.namespace.iter().flat_map(|it| ["--namespace", it]));
    let hint = "try it: kubectl get endpointslices; it has to be installed here, and its user or service account may have to be \
                allowed to list endpointslices.discovery.k8s.io";
    let text = said("kubectl", &words, "kubernetes", hint).await?;
    nodes(&service, &text)
}

fn parse(source: &str) -> Result<Service<'_>, Failure> {
    let wrong = |what: String| {
        Failure::Usage {
        what,
        hint: "write k8s:NAMESPACE/SERVICE:PORT, as k8s:memscope/memscoped:9465; NAMESPACE and PORT can be left out".into(),
    }
    };
    let (name, port) = match source.split_once(':') {
        None => (source, Port::Only),
        Some((name, port)) => match port.parse::<u16>() {
            Ok(0) => {
                return Err(wrong(format!(
                    "\"k8s:{source}\" has no port between 1 and 65535"
                )));
            }
            Ok(number) => (name, Port::Number(number)),
            Err(_) => (name, Port::Named(port)),
        },
    };
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, name),
    };
    let named = match port {
        Port::Named(name) => Some(name),
        Port::Only | Port::Number(_) => None,
    };
    // Nothing that kubectl could take for an option, and nothing that adds to the selector.
    let is_label = |text: &str| {
        let letters = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        !text.is_empty() && text.len() <= 63 && !text.starts_with('-') && text.bytes().all(letters)
    };
    let mut labels = namespace.into_iter().chain([name]).chain(named);
    match labels.find(|text| !is_label(text)) {
        Some(text) => Err(wrong(format!("\"{text}\" is no name of Kubernetes"))),
        None => Ok(Service {
            namespace,
            name,
            port,
        }),
    }
}

/// An endpoint that can be asked.
struct Found {
    pod: Option<String>,
    address: Address,
    terminating: bool,
}

/// The nodes that the slices name. All endpoints are asked, those that are not ready as well: a node of which memscoped does not answer has to
/// be told of as such. One that is being ended is left out if there is another one on its node.
fn nodes(service: &Service<'_>, text: &str) -> Result<Vec<(String, Address)>, Failure> {
    let list: List = serde_json::from_str(text).map_err(|error| Failure::Refused {
        exit: Exit::Failed,
        code: "kubernetes".into(),
        what: format!("what kubectl printed is no list of EndpointSlices: {error}"),
        hint: Some("is `kubectl` the program of that name? try: kubectl version".into()),
    })?;
    let mut by_node: BTreeMap<String, Vec<Found>> = BTreeMap::new();
    let mut seen = HashSet::new();
    // A pod of two families is in a slice of each, and is one pod.
    let (mut first, second): (Vec<&Slice>, Vec<&Slice>) = list
        .items
        .iter()
        .partition(|slice| slice.address_type != "IPv6");
    first.extend(second);
    for slice in first {
        let endpoints = slice.endpoints.iter().flatten();
        let mut endpoints = endpoints.peekable();
        if endpoints.peek().is_none() {
            continue;
        }
        let port = port_of(service, slice)?;
        for endpoint in endpoints {
            let Some(text) = endpoint.addresses.first() else {
                continue;
            };
            let pod = endpoint
                .target
                .as_ref()
                .and_then(|target| target.name.clone());
            let who = pod.clone().unwrap_or_else(|| text.clone());
            if !seen.insert((slice.metadata.namespace.clone(), who)) {
                continue;
            }
            let node = endpoint.node.clone().unwrap_or_else(|| text.clone());
            by_node.entry(node).or_default().push(Found {
                pod,
                address: address(service, slice, text, port)?,
                terminating: endpoint.conditions.terminating == Some(true),
            });
        }
    }
    let mut nodes = Vec::new();
    for (node, mut found) in by_node {
        if found.iter().any(|one| !one.terminating) {
            found.retain(|one| !one.terminating);
        }
        let several = found.len() > 1;
        nodes.extend(found.into_iter().map(|one| {
            let name = match one.pod.filter(|_| several) {
                Some(pod) => format!("{node}/{pod}"),
                None if several => format!("{node}/{}", one.address),
                None => node.clone(),
            };
            (name, one.address)
        }));
    }
    if nodes.is_empty() {
        return Err(Failure::Usage {
            what: format!("the service {} has no endpoints", service.name),
            hint: "is it in this namespace, and do its pods run? try: kubectl get endpointslices --all-namespaces".into(),
        });
    }
    Ok(nodes)
}

fn port_of(service: &Service<'_>, slice: &Slice) -> Result<u16, Failure> {
    let ports = || {
        let all = slice.ports.iter().flatten();
        all.filter(|port| port.protocol.as_deref().is_none_or(|it| it == "TCP"))
    };
    let called = |port: &SlicePort| {
        let name = port.name.as_deref().filter(|name| !name.is_empty());
        let number = port.port.map(|number| number.to_string());
        [name.map(str::to_owned), number]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" = ")
    };
    let wrong = |what: &str| Failure::Usage {
        what: format!("the service {} {what}", service.name),
        hint: match ports().map(called).collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => {
                "name the port of memscoped, as in k8s:memscope/memscoped:9465".into()
            }
            some => format!("name one: {some}"),
        },
    };
    let number = |port: &SlicePort| port.port.filter(|number| *number > 0);
    match service.port {
        Port::Number(number) => Ok(number),
        Port::Named(name) => {
            let found = ports().find(|port| port.name.as_deref() == Some(name));
            let found = found.and_then(number);
            found.ok_or_else(|| wrong(&format!("has no port \"{name}\"")))
        }
        Port::Only => {
            let mut all = ports();
            let only = all.next().filter(|_| all.next().is_none());
            only.and_then(number)
                .ok_or_else(|| wrong("does not have one port"))
        }
    }
}

/// The address, of which the certificate must have the service's name, as those that are made in a cluster do.
fn address(
    service: &Service<'_>,
    slice: &Slice,
    text: &str,
    port: u16,
) -> Result<Address, Failure> {
    let wrong = || Failure::Refused {
        exit: Exit::Failed,
        code: "kubernetes".into(),
        what: format!(
            "{text:?}, an address of the service {}, is none",
            service.name
        ),
        hint: Some("kubectl get endpointslices shows what is wrong".into()),
    };
    let host = match slice.address_type.as_str() {
        "FQDN" => match Address::parse(&format!("{text}:{port}")) {
            Ok(Address::Host { host, .. }) => host,
            Ok(_) | Err(_) => return Err(wrong()),
        },
        "IPv6" => text.parse::<Ipv6Addr>().map_err(|_| wrong())?.to_string(),
        _ => text.parse::<IpAddr>().map_err(|_| wrong())?.to_string(),
    };
    Ok(Address::Host {
        host,
        port,
        verified_as: Some(format!("{}.{}.svc", service.name, slice.metadata.namespace)),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn endpoint(node: &str, pod: &str, address: &str, ready: bool, terminating: bool) -> Value {
        json!({
            "addresses": [address],
            "conditions": {"ready": ready, "serving": ready, "terminating": terminating},
            "nodeName": node,
            "targetRef": {"kind": "Pod", "name": pod, "namespace": "memscope", "uid": format!("uid-{pod}")},
        })
    }

    fn slice(family: &str, endpoints: Value, ports: Value) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": family,
            "metadata": {
                "generateName": "memscoped-",
                "labels": {"kubernetes.io/service-name": "memscoped", "service.kubernetes.io/headless": ""},
                "name": "memscoped-x7k2p",
                "namespace": "memscope",
            },
            "endpoints": endpoints,
            "ports": ports,
        })
    }

    fn listed(slices: &[Value]) -> String {
        json!({"apiVersion": "v1", "kind": "List", "items": slices, "metadata": {"resourceVersion": ""}}).to_string()
    }

    fn one_port() -> Value {
        json!([{"name": "grpc", "port": 9465, "protocol": "TCP"}])
    }

    fn shown(source: &str, slices: &[Value]) -> Result<Vec<(String, String)>, String> {
        let service = parse(source).map_err(|failure| failure.what())?;
        let found = nodes(&service, &listed(slices));
        let found = found.map_err(|failure| {
            format!(
                "{} — {}",
                failure.what(),
                failure.hint().unwrap_or_default()
            )
        })?;
        Ok(found
            .into_iter()
            .map(|(name, address)| (name, address.to_string()))
            .collect())
    }

    fn pair(name: &str, address: &str) -> (String, String) {
        (name.to_owned(), address.to_owned())
    }

    #[test]
    fn what_can_be_asked_for() {
        let read = |text| parse(text).unwrap();
        let all = |namespace, name, port| Service {
            namespace,
            name,
            port,
        };
        assert_eq!(read("a/b:9465"), all(Some("a"), "b", Port::Number(9465)));
        assert_eq!(read("b:9465"), all(None, "b", Port::Number(9465)));
        assert_eq!(read("a/b"), all(Some("a"), "b", Port::Only));
        assert_eq!(read("b:grpc"), all(None, "b", Port::Named("grpc")));
        for text in [
            "",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "a/b:",
            "a/b:0",
            "a/b:99999 ",
            "-A",
            "--all-namespaces",
            "a/-b",
            "-n/b",
            "b,x=y",
            "b=c",
            "B",
            "a b",
            "ä",
            "a/b:9465:1",
            "a\n",
            "b:-x",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse(&"x".repeat(64)).is_err());
    }

    #[test]
    fn nodes_of_several_slices_by_their_names() {
        let first = json!([
            endpoint("node-2", "memscoped-b", "10.0.0.2", true, false),
            endpoint("node-1", "memscoped-a", "10.0.0.1", true, false),
        ]);
        // One that is not ready is asked, and one of which nothing is said.
        let second = json!([
            endpoint("node-3", "memscoped-c", "10.0.0.3", false, false),
            {"addresses": ["10.0.0.4", "10.0.0.44"], "conditions": {}},
        ]);
        let empty = slice("IPv4", Value::Null, Value::Null);
        let slices = [
            slice("IPv4", first, one_port()),
            empty,
            slice("IPv4", second, one_port()),
        ];
        let expected = [
            pair("10.0.0.4", "10.0.0.4:9465"),
            pair("node-1", "10.0.0.1:9465"),
            pair("node-2", "10.0.0.2:9465"),
            pair("node-3", "10.0.0.3:9465"),
        ];
        for source in ["memscope/memscoped:9465", "memscoped", "memscoped:grpc"] {
            assert_eq!(shown(source, &slices).unwrap(), expected, "{source}");
        }
        assert_eq!(shown("memscoped:7", &slices).unwrap()[1].1, "10.0.0.1:7");
    }

    #[test]
    fn the_certificate_has_the_name_of_the_service() {
        let slices = [slice(
            "IPv4",
            json!([endpoint("n", "p", "10.0.0.1", true, false)]),
            one_port(),
        )];
        let found = nodes(&parse("memscoped").unwrap(), &listed(&slices)).unwrap();
        let Address::Host { verified_as, .. } = &found[0].1 else {
            unreachable!()
        };
        assert_eq!(verified_as.as_deref(), Some("memscoped.memscope.svc"));
    }

    #[test]
    fn a_pod_of_two_families_is_asked_once() {
        let four = json!([endpoint("node-1", "memscoped-a", "10.0.0.1", true, false)]);
        let six = json!([
            endpoint("node-1", "memscoped-a", "fd00::1", true, false),
            endpoint("node-2", "memscoped-b", "fd00::2", true, false),
        ]);
        let slices = [
            slice("IPv6", six, one_port()),
            slice("IPv4", four, one_port()),
        ];
        assert_eq!(
            shown("memscoped", &slices).unwrap(),
            [
                pair("node-1", "10.0.0.1:9465"),
                pair("node-2", "[fd00::2]:9465")
            ]
        );
    }

    #[test]
    fn the_old_pod_of_an_update_is_left_out_and_the_last_one_is_not() {
        let all = json!([
            endpoint("node-1", "old", "10.0.0.1", false, true),
            endpoint("node-1", "new", "10.0.0.2", false, false),
            endpoint("node-2", "last", "10.0.0.3", false, true),
            endpoint("node-3", "a", "10.0.0.4", true, false),
            endpoint("node-3", "b", "10.0.0.5", true, false),
        ]);
        assert_eq!(
            shown("memscoped", &[slice("IPv4", all, one_port())]).unwrap(),
            [
                pair("node-1", "10.0.0.2:9465"),
                pair("node-2", "10.0.0.3:9465"),
                pair("node-3/a", "10.0.0.4:9465"),
                pair("node-3/b", "10.0.0.5:9465"),
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let one = json!([endpoint("n", "p", "10.0.0.1", true, false)]);
        let two = json!([{"name": "grpc", "port": 9465, "protocol": "TCP"}, {"name": "metrics", "port": 9464}]);
        let said = |source, slices: &[Value]| shown(source, slices).unwrap_err();
        let several = slice("IPv4", one.clone(), two);
        assert!(
            said("memscoped", std::slice::from_ref(&several))
                .ends_with("does not have one port — name one: grpc = 9465, metrics = 9464")
        );
        assert!(said("memscoped:web", &[several]).contains("has no port \"web\""));
        assert!(
            said("memscoped", &[slice("IPv4", one, Value::Null)])
                .contains("does not have one port")
        );
        assert!(said("memscoped", &[]).starts_with("the service memscoped has no endpoints"));
        for (family, address) in [
            ("IPv4", "10.0.0.1; rm"),
            ("IPv6", "10.0.0.1"),
            ("FQDN", "a b"),
            ("IPv4", "\u{1b}[2J"),
        ] {
            let hostile = json!([endpoint("n", "p", address, true, false)]);
            let said = said("memscoped", &[slice(family, hostile, one_port())]);
            assert!(said.contains("is none"), "{said}");
            assert!(!said.contains('\u{1b}'), "{said:?}");
        }
        let service = parse("memscoped").unwrap();
        for text in ["", "{}", "[]", "No resources found", "{\"items\": 7}"] {
            let failure = nodes(&service, text).unwrap_err();
            assert!(
                failure.what().contains("no list of EndpointSlices"),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn nothing_printed_ends_the_program(text in ".*", at in any::<prop::sample::Index>()) {
            let service = parse("memscoped").unwrap();
            let _ = nodes(&service, &text);
            let mut whole = listed(&[slice("IPv4", json!([endpoint("n", "p", "10.0.0.1", true, false)]), one_port())]);
            let at = whole.floor_char_boundary(at.index(whole.len()));
            whole.insert_str(at, &text);
            let _ = nodes(&service, &whole);
        }
    }
}
