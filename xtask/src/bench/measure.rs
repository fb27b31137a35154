//! What all benchmarks share: the environment that they run in, the time of an allocation and its free, and the median.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::options::Options;
use crate::live::Python;
use crate::setup::{self, torch};
use crate::sim;

/// Microseconds for an allocation and its free, as the median of several runs. `words` are the number of pairs and,
/// optionally, the depth of the Python frames.
pub fn pairs(python: &mut Python, words: &str) -> Result<f64> {
    python.ask_json(&format!("pairs {words}"))?["median"]
        .as_f64()
        .context("no median in the answer")
}

/// The environment with PyTorch, and the variables that set up its device.
pub fn ground(options: &Options) -> Result<(PathBuf, Vec<(String, String)>)> {
    if options.real_device {
        return Ok((torch::locate(None)?, Vec::new()));
    }
    setup::run(&setup::Options {
        torch: Some(Vec::new()),
        ..setup::Options::default()
    })?;
    let variables = sim::environment(&sim::Options::default())?;
    Ok((torch::locate(None)?, variables))
}

/// The median; NaN if there is no value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
