//! Metrics as OpenMetrics text.

use crate::family::{Kind, Unit};
use crate::fold::{Labels, Metric, Sample};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text::encode,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as WrittenUnit};
use std::fmt;

/// What an HTTP answer says its body is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics that are written as they are.
#[derive(Debug)]
struct Taken(Vec<Metric>);

impl Collector for Taken {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in &self.0 {
            let family = metric.family;
            let unit = written(family.unit);
            let kind = match family.kind {
                Kind::Gauge | Kind::UpDown => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
            };
            let name = family.base_name();
            let mut described =
                encoder.encode_descriptor(&name, family.help, unit.as_ref(), kind)?;
            for sample in &metric.samples {
                let row = Row {
                    sample,
                    kind: family.kind,
                };
                row.encode(described.encode_family(&escaped(&sample.labels))?)?;
            }
        }
        Ok(())
    }
}

/// Labels with their values escaped as OpenMetrics wants it: the library writes them as they are, and a program chooses its own name.
fn escaped(labels: &Labels) -> Labels {
    let escape = |value: &str| {
        let mut text = String::with_capacity(value.len());
        for letter in value.chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text
    };
    labels
        .iter()
        .map(|(name, value)| (*name, escape(value)))
        .collect()
}

fn written(unit: Unit) -> Option<WrittenUnit> {
    match unit {
        Unit::None => None,
        Unit::Bytes => Some(WrittenUnit::Bytes),
        Unit::Seconds => Some(WrittenUnit::Seconds),
        Unit::Ratio | Unit::BytesPerSecond => Some(WrittenUnit::Other(unit.suffix().to_owned())),
    }
}

struct Row<'a> {
    sample: &'a Sample,
    kind: Kind,
}

impl EncodeMetric for Row<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self.kind {
            Kind::Gauge | Kind::UpDown => encoder.encode_gauge(&self.sample.value),
            Kind::Counter => encoder.encode_counter::<NoLabelSet, _, f64>(&self.sample.value, None),
        }
    }

    fn metric_type(&self) -> MetricType {
        match self.kind {
            Kind::Gauge | Kind::UpDown => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
        }
    }
}

/// Writes metrics as OpenMetrics text, the end mark included.
///
/// # Errors
/// Only if the text cannot be put together, which no input is known to cause.
pub fn open_metrics(metrics: Vec<Metric>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Taken(metrics)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::FAMILIES;

    #[test]
    fn what_is_written_is_open_metrics() {
        let family = |name: &str| {
            let mut all = FAMILIES.iter();
            all.find(|family| family.full_name() == name)
                .copied()
                .unwrap()
        };
        let sample = |labels: Labels, value| Sample {
            labels,
            value,
            since_boot_ns: None,
        };
        let hostile = "a\"b\\c\nd{}".to_owned();
        let metrics = vec![
            Metric {
                family: family("memscope_allocated_bytes"),
                samples: vec![
                    sample(vec![("pid", "7".into()), ("program", hostile)], 5e9),
                    sample(vec![("pid", "8".into())], 0.0),
                ],
            },
            Metric {
                family: family("memscope_out_of_memory_total"),
                samples: vec![sample(Labels::new(), 3.0)],
            },
            Metric {
                family: family("memscope_fragmentation_ratio"),
                samples: vec![sample(Labels::new(), 0.25)],
            },
        ];
        let text = open_metrics(metrics).unwrap();
        let expected = r#"# HELP memscope_allocated_bytes Bytes that the process's allocator has handed out.
# TYPE memscope_allocated_bytes gauge
# UNIT memscope_allocated_bytes bytes
memscope_allocated_bytes{pid="7",program="a\"b\\c\nd{}"} 5000000000.0
memscope_allocated_bytes{pid="8"} 0.0
# HELP memscope_out_of_memory Allocations that failed because the device was full, as the framework reported them.
# TYPE memscope_out_of_memory counter
memscope_out_of_memory_total{} 3.0
# HELP memscope_fragmentation_ratio The part of the reserved bytes that is not handed out.
# TYPE memscope_fragmentation_ratio gauge
# UNIT memscope_fragmentation_ratio ratio
memscope_fragmentation_ratio{} 0.25
# EOF
"#;
        assert_eq!(text, expected);
    }
}
