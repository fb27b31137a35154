//! Total memory of devices, from NVML where it is installed. Loaded at run time, never required.

use std::collections::HashSet;

use memscope_ledger::event::ProcessFacts;
use nvml_wrapper::Nvml;

/// NVML, tried once.
#[derive(Default)]
pub struct Totals {
    nvml: Option<Option<Nvml>>,
    said: HashSet<(u32, u64)>,
}

impl Totals {
    fn loaded(&mut self) -> Option<&Nvml> {
        self.nvml
            .get_or_insert_with(|| match Nvml::init() {
                Ok(nvml) => Some(nvml),
                Err(error) => {
                    tracing::debug!(%error, "NVML is not there; totals come from the calls seen");
                    None
                }
            })
            .as_ref()
    }

    /// Number of devices of the machine.
    pub fn devices(&mut self) -> Option<usize> {
        Some(self.loaded()?.device_count().ok()? as usize)
    }

    /// (ordinal in the process, bytes) of each device that the process can see; empty when it was
    /// said before, when NVML is not there, or when the environment names devices in a way that
    /// cannot be translated.
    pub fn of_process(&mut self, pid: u32, facts: &ProcessFacts) -> Vec<(i32, u64)> {
        if !self.said.insert((pid, facts.start_ticks)) {
            return Vec::new();
        }
        let Some(nvml) = self.loaded() else {
            return Vec::new();
        };
        let visible = facts
            .environment
            .iter()
            .find(|(name, _)| name == "CUDA_VISIBLE_DEVICES")
            .map(|(_, value)| value.as_str());
        totals(nvml, visible).unwrap_or_default()
    }
}

/// CUDA numbers devices by speed unless CUDA_DEVICE_ORDER says otherwise, NVML by bus: where the
/// totals differ among devices and only numbers are given, nothing is said.
fn totals(nvml: &Nvml, visible: Option<&str>) -> Option<Vec<(i32, u64)>> {
    let count = nvml.device_count().ok()?;
    let mut by_index = Vec::new();
    for index in 0..count {
        by_index.push(nvml.device_by_index(index).ok()?.memory_info().ok()?.total);
    }
    let same = by_index.windows(2).all(|pair| pair[0] == pair[1]);
    match visible {
        None if same => Some((0i32..).zip(by_index).collect()),
        None => None,
        Some(list) => (0i32..)
            .zip(list.split(',').map(str::trim))
            .map(|(ordinal, name)| {
                let total = match name.parse::<u32>() {
                    Ok(index) if same => by_index.get(index as usize).copied(),
                    Ok(_) => None,
                    Err(_) => nvml
                        .device_by_uuid(name)
                        .ok()
                        .and_then(|d| d.memory_info().ok())
                        .map(|m| m.total),
                }?;
                Some((ordinal, total))
            })
            .collect(),
    }
}
