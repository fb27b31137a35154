//! Who sends: the resource of every request.

use crate::attributes::text;
use opentelemetry_proto::tonic::resource::v1::Resource;

/// What is known of the machine on which the daemon runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Name of the machine.
    pub name: String,
    /// What tells the machine from all others, such as the content of /etc/machine-id; `None`: not known.
    pub id: Option<String>,
}

/// The resource: the daemon `memscoped` in this version on this machine.
///
/// `service.instance.id` is the name of the machine. Prometheus makes its label `instance` of it, and there is one daemon on a machine.
#[must_use]
pub fn resource(version: &str, host: &Host) -> Resource {
    let mut attributes = vec![
        text("service.name", "memscoped"),
        text("service.version", version),
        text("service.instance.id", host.name.as_str()),
        text("host.name", host.name.as_str()),
        text("os.type", "linux"),
    ];
    attributes.extend(host.id.as_deref().map(|id| text("host.id", id)));
    Resource {
        attributes,
        ..Resource::default()
    }
}
