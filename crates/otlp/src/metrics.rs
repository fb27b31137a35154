//! From metrics to requests with data points.
//!
//! Only what grows is a monotonic sum. All sums are cumulative: what is lost on the way costs resolution and no counts.

use crate::attributes::attributes;
use crate::scope;
use memscope_metrics::{Kind, Metric, Sample};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric as Sent, NumberDataPoint, ResourceMetrics, ScopeMetrics,
    Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

/// Bytes of data points in one request: collectors refuse messages of more than 4 MiB as they come.
pub const LARGEST_REQUEST_BYTES: usize = 1 << 20;

/// When the numbers were so, and how moments of boot time are told to the outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When the metrics were taken, in nanoseconds since 1970.
    pub taken_unix_ns: u64,
    /// When the daemon was started, in nanoseconds of boot time.
    pub daemon_since_boot_ns: u64,
    /// What 0 of boot time is, in nanoseconds since 1970. It must stay the same while the daemon runs, and for one that goes on after it: a
    /// counter that begins at another moment than before counts as a new one.
    pub boot_unix_ns: u64,
}

impl Moment {
    /// From when on a counter counts, in nanoseconds since 1970. If the clock was set back since then, it is the moment itself.
    fn begin_of(&self, sample: &Sample) -> u64 {
        let since = sample.since_boot_ns.unwrap_or(self.daemon_since_boot_ns);
        self.boot_unix_ns
            .saturating_add(since)
            .min(self.taken_unix_ns)
    }
}

/// A request, and how much is in it.
#[derive(Clone, Debug)]
pub struct MetricsRequest {
    /// The message.
    pub message: ExportMetricsServiceRequest,
    /// Number of data points.
    pub points: u64,
}

/// The requests that tell of these metrics, each with at most about [`LARGEST_REQUEST_BYTES`].
#[must_use]
pub fn metrics_requests(
    metrics: &[Metric],
    resource: &Resource,
    moment: &Moment,
) -> Vec<MetricsRequest> {
    let mut requests = Vec::new();
    let mut sent: Vec<Sent> = Vec::new();
    let (mut points, mut bytes) = (0, 0);
    for metric in metrics {
        let mut part = Vec::new();
        for sample in &metric.samples {
            let one = point(metric, sample, moment);
            let length = one.encoded_len();
            if points > 0 && bytes + length > LARGEST_REQUEST_BYTES {
                sent.extend(with_points(metric, std::mem::take(&mut part)));
                requests.push(request(std::mem::take(&mut sent), points, resource));
                (points, bytes) = (0, 0);
            }
            part.push(one);
            points += 1;
            bytes += length;
        }
        sent.extend(with_points(metric, part));
    }
    if points > 0 {
        requests.push(request(sent, points, resource));
    }
    requests
}

fn point(metric: &Metric, sample: &Sample, moment: &Moment) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(&sample.labels),
        start_time_unix_nano: match metric.family.kind {
            Kind::Gauge => 0,
            Kind::UpDown | Kind::Counter => moment.begin_of(sample),
        },
        time_unix_nano: moment.taken_unix_ns,
        value: Some(Value::AsDouble(sample.value)),
        ..NumberDataPoint::default()
    }
}

/// The metric with these points; `None` without any.
fn with_points(metric: &Metric, data_points: Vec<NumberDataPoint>) -> Option<Sent> {
    if data_points.is_empty() {
        return None;
    }
    let family = metric.family;
    let sum = |data_points, is_monotonic| {
        Data::Sum(Sum {
            data_points,
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
            is_monotonic,
        })
    };
    let data = match family.kind {
        Kind::Gauge => Data::Gauge(Gauge { data_points }),
        Kind::UpDown => sum(data_points, false),
        Kind::Counter => sum(data_points, true),
    };
    Some(Sent {
        name: family.name.to_owned(),
        description: family.help.to_owned(),
        unit: family.unit.ucum().to_owned(),
        data: Some(data),
        ..Sent::default()
    })
}

fn request(metrics: Vec<Sent>, points: u64, resource: &Resource) -> MetricsRequest {
    let of_scope = ScopeMetrics {
        scope: Some(scope()),
        metrics,
        ..ScopeMetrics::default()
    };
    let of_resource = ResourceMetrics {
        resource: Some(resource.clone()),
        scope_metrics: vec![of_scope],
        ..ResourceMetrics::default()
    };
    MetricsRequest {
        message: ExportMetricsServiceRequest {
            resource_metrics: vec![of_resource],
        },
        points,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::resource::{Host, resource};
    use memscope_metrics::{FAMILIES, Family};
    use memscope_tests::limits::{Met, constant};

    const MOMENT: Moment = Moment {
        taken_unix_ns: 1_000_000,
        daemon_since_boot_ns: 70,
        boot_unix_ns: 900_000,
    };

    fn family(name: &str) -> &'static Family {
        let mut all = FAMILIES.iter();
        all.find(|family| family.name == name).copied().unwrap()
    }

    fn one(name: &str, since_boot_ns: Option<u64>) -> Metric {
        Metric {
            family: family(name),
            samples: vec![Sample {
                labels: vec![("pid", "7".to_owned())],
                value: 0.5,
                since_boot_ns,
            }],
        }
    }

    fn sent(metric: Metric) -> Sent {
        let requests = metrics_requests(&[metric], &Resource::default(), &MOMENT);
        let message = requests[0].message.clone();
        message.resource_metrics[0].scope_metrics[0].metrics[0].clone()
    }

    #[test]
    fn what_only_grows_is_monotonic_and_says_since_when() {
        let allocations = sent(one("memscope.allocations", Some(5)));
        let Some(Data::Sum(sum)) = allocations.data else {
            panic!("no sum")
        };
        assert!(sum.is_monotonic);
        assert_eq!(sum.aggregation_temporality, 2, "cumulative");
        assert_eq!(sum.data_points[0].start_time_unix_nano, 900_005);
        assert_eq!(sum.data_points[0].time_unix_nano, 1_000_000);
        let Some(Data::Sum(sum)) = sent(one("memscope.records", None)).data else {
            panic!("no sum")
        };
        assert_eq!(sum.data_points[0].start_time_unix_nano, 900_070);
        // A clock that was set back gives no beginning after the end.
        let Some(Data::Sum(sum)) = sent(one("memscope.allocations", Some(u64::MAX))).data else {
            panic!("no sum")
        };
        assert_eq!(sum.data_points[0].start_time_unix_nano, 1_000_000);
        let Some(Data::Sum(sum)) = sent(one("hw.gpu.memory.usage", None)).data else {
            panic!("no sum")
        };
        assert!(!sum.is_monotonic);
        for name in ["memscope.allocated", "memscope.steps"] {
            let Some(Data::Gauge(gauge)) = sent(one(name, None)).data else {
                panic!("{name} is no gauge")
            };
            assert_eq!(gauge.data_points[0].start_time_unix_nano, 0);
        }
    }

    /// What OpenTelemetry's specification says that an exporter for Prometheus makes of a name, its unit and its kind.
    fn as_an_exporter_names_it(metric: &Sent) -> String {
        let mut name = metric.name.replace('.', "_");
        let word = |unit: &str| match unit {
            "By" => "bytes".to_owned(),
            "s" => "seconds".to_owned(),
            other => panic!("{other} is no unit of ours"),
        };
        let is_sum = matches!(&metric.data, Some(Data::Sum(sum)) if sum.is_monotonic);
        match metric.unit.split_once('/') {
            None if metric.unit.is_empty() => {}
            None if metric.unit == "1" => name.push_str(if is_sum { "" } else { "_ratio" }),
            None => name.push_str(&format!("_{}", word(&metric.unit))),
            Some((above, "s")) => name.push_str(&format!("_{}_per_second", word(above))),
            Some((_, below)) => panic!("{below} is no unit of ours"),
        }
        if is_sum {
            name.push_str("_total");
        }
        name
    }

    #[test]
    fn an_exporter_for_prometheus_gives_prometheus_names_back() {
        for family in FAMILIES {
            let sent = sent(one(family.name, None));
            assert_eq!(as_an_exporter_names_it(&sent), family.full_name());
        }
    }

    #[test]
    fn many_points_are_divided_and_none_is_lost() {
        let samples: Vec<Sample> = (0..20_000)
            .map(|number| Sample {
                labels: vec![("pid", number.to_string()), ("program", "x".repeat(200))],
                value: f64::from(number),
                since_boot_ns: None,
            })
            .collect();
        let metrics = ["memscope.allocated", "memscope.steps"].map(|name| Metric {
            family: family(name),
            samples: samples.clone(),
        });
        let of = resource("1", &Host::default());
        let requests = metrics_requests(&metrics, &of, &MOMENT);
        assert!(requests.len() > 5);
        let mut values = Vec::new();
        for request in &requests {
            let bytes = request.message.encoded_len();
            assert!(bytes < LARGEST_REQUEST_BYTES * 11 / 10, "{bytes}");
            let mut points = 0;
            for metric in &request.message.resource_metrics[0].scope_metrics[0].metrics {
                let found = match metric.data.as_ref().unwrap() {
                    Data::Sum(sum) => &sum.data_points,
                    Data::Gauge(gauge) => &gauge.data_points,
                    _ => panic!("no such thing"),
                };
                assert!(!found.is_empty());
                points += found.len() as u64;
                for point in found {
                    let Some(Value::AsDouble(value)) = point.value else {
                        panic!("no number")
                    };
                    values.push((metric.name.clone(), value.to_bits()));
                }
            }
            assert_eq!(points, request.points);
        }
        assert_eq!(values.len(), 40_000);
        values.sort();
        values.dedup();
        assert_eq!(values.len(), 40_000);
        assert!(metrics_requests(&[], &of, &MOMENT).is_empty());
        Met {
            what: "bytes of data points in one OTLP request",
            most: constant("crates/otlp/src/metrics.rs", "LARGEST_REQUEST_BYTES"),
            beyond: "the rest is in further requests",
            told: "nothing is missing",
            test: "many_points_are_divided_and_none_is_lost",
        }
        .is_told();
    }
}
