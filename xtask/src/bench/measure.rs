//! What all benchmarks share: the ground that they run on, the time of an allocation and its free, and the median.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::options::Options;
use crate::live::Python;
use crate::setup::{self, torch};
use crate::sim;

/// Microseconds of an allocation and its free, the median of several runs; `words`: how many, and how many frames deep.
pub fn pairs(python: &mut Python, words: &str) -> Result<f64> {
    python.ask_json(&format!("pairs {words}"))?["median"]
        .as_f64()
        .context("no median in the answer")
}

/// The environment with PyTorch, and the variables that make its device.
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

/// The middle one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
