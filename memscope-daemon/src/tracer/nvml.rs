//! Memory of devices, from NVML where it is installed. NVML is loaded at run time and never required.
//!
//! A process numbers its devices in its own way: `CUDA_VISIBLE_DEVICES` chooses among them, and CUDA puts the fastest
//! first unless `CUDA_DEVICE_ORDER` says otherwise. It is certain which device of the machine is meant if there is
//! only one, if the order is that of the bus and the process was not given a part of the machine, or if devices are
//! named by their UUIDs. Otherwise free memory is not reported, and the size only if all devices have the same.

use memscope_ledger::event::{DeviceTotal, ProcessFacts};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;

/// NVML. Loading it is tried only once.
#[derive(Default)]
pub struct Machine {
    nvml: Option<Option<Nvml>>,
}

/// A device of the machine, with its memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Device {
    uuid: String,
    total: u64,
    free: u64,
    reserved: u64,
    /// What the asked process uses, if that is told.
    used: Option<u64>,
}

impl Machine {
    fn loaded(&mut self) -> Option<&Nvml> {
        self.nvml
            .get_or_insert_with(|| match Nvml::init() {
                Ok(nvml) => Some(nvml),
                Err(error) => {
                    tracing::debug!(%error, "NVML is not there; what is free comes from the calls seen");
                    None
                }
            })
            .as_ref()
    }

    /// Number of devices of the machine.
    pub fn devices(&mut self) -> Option<usize> {
        Some(self.loaded()?.device_count().ok()? as usize)
    }

    /// The memory of each device that the process can see, as far as it is certain which device it is.
    pub fn of_process(&mut self, facts: &ProcessFacts) -> Vec<DeviceTotal> {
        let Some(devices) = self.loaded().and_then(|nvml| by_bus(nvml, facts.pid)) else {
            return Vec::new();
        };
        let value = |wanted: &str| {
            let found = facts.environment.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.as_str())
        };
        // A container or a job that was given a part of the machine has its own numbers for devices.
        let given = value("NVIDIA_VISIBLE_DEVICES").is_some_and(|given| given != "all");
        let in_job = facts
            .environment
            .iter()
            .any(|(name, _)| name.starts_with("SLURM_"));
        let in_order = value("CUDA_DEVICE_ORDER") == Some("PCI_BUS_ID") && !given && !in_job;
        of_devices(&devices, value("CUDA_VISIBLE_DEVICES"), in_order)
    }
}

/// The machine's devices in the order of the bus, with what this process uses of them; `None` if one of them cannot be read.
fn by_bus(nvml: &Nvml, pid: u32) -> Option<Vec<Device>> {
    let mut devices = Vec::new();
    for index in 0..nvml.device_count().ok()? {
        let device = nvml.device_by_index(index).ok()?;
        let at = device.pci_info().ok()?;
        let memory = device.memory_info().ok()?;
        let found = Device {
            uuid: device.uuid().ok()?,
            total: memory.total,
            free: memory.free,
            reserved: memory.reserved,
            used: used_by(&device, pid),
        };
        devices.push(((at.domain, at.bus, at.device), found));
    }
    devices.sort_by_key(|(at, _)| *at);
    Some(devices.into_iter().map(|(_, device)| device).collect())
}

/// What a process uses of a device. NVML tells it of each process, except on a part of a device (MIG) and in some virtual machines.
fn used_by(device: &nvml_wrapper::Device<'_>, pid: u32) -> Option<u64> {
    let processes = device.running_compute_processes().ok()?;
    let mut own = processes.iter().filter(|process| process.pid == pid);
    match own.next()?.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    }
}

fn of_devices(devices: &[Device], visible: Option<&str>, in_order: bool) -> Vec<DeviceTotal> {
    let certain = in_order || devices.len() == 1;
    let same = devices.windows(2).all(|two| two[0].total == two[1].total);
    let told = |ordinal: usize, device: &Device, certain: bool| {
        (certain || same).then(|| DeviceTotal {
            device: ordinal as i32,
            total_bytes: device.total,
            free_bytes: certain.then_some(device.free),
            reserved_bytes: certain.then_some(device.reserved),
            process_bytes: device.used.filter(|_| certain),
        })
    };
    let Some(list) = visible else {
        let each = devices.iter().enumerate();
        return each
            .filter_map(|(ordinal, device)| told(ordinal, device, certain))
            .collect();
    };
    let mut found = Vec::new();
    // CUDA ends the list at the first name that it does not know.
    for (ordinal, name) in list.split(',').map(str::trim).enumerate() {
        let next = match name.parse::<usize>() {
            Ok(index) => devices.get(index).map(|device| (device, certain)),
            Err(_) => by_uuid(devices, name).map(|device| (device, true)),
        };
        let Some((device, certain)) = next else {
            break;
        };
        found.extend(told(ordinal, device, certain));
    }
    found
}

/// CUDA also accepts the beginning of a UUID if only one device's UUID begins with it.
fn by_uuid<'a>(devices: &'a [Device], name: &str) -> Option<&'a Device> {
    if !name.starts_with("GPU-") {
        return None;
    }
    let mut found = devices.iter().filter(|d| d.uuid.starts_with(name));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(uuid: &str, total: u64, free: u64) -> Device {
        Device {
            uuid: uuid.to_owned(),
            total,
            free,
            ..Device::default()
        }
    }

    fn seen(
        devices: &[Device],
        visible: Option<&str>,
        in_order: bool,
    ) -> Vec<(i32, u64, Option<u64>)> {
        of_devices(devices, visible, in_order)
            .into_iter()
            .map(|d| (d.device, d.total_bytes, d.free_bytes))
            .collect()
    }

    #[test]
    fn which_device_is_meant() {
        let one = [device("GPU-aa11", 80, 30)];
        assert_eq!(seen(&one, None, false), [(0, 80, Some(30))]);
        assert_eq!(seen(&one, Some("0"), false), [(0, 80, Some(30))]);
        assert_eq!(seen(&one, Some(""), false), []);
        assert_eq!(seen(&one, Some("1"), false), []);
        assert_eq!(seen(&one, Some("MIG-aa11"), false), []);

        let alike = [device("GPU-aa11", 80, 30), device("GPU-aa22", 80, 50)];
        let sizes = [(0, 80, None), (1, 80, None)];
        assert_eq!(seen(&alike, None, false), sizes, "which is which?");
        assert_eq!(seen(&alike, Some("1"), false), [(0, 80, None)]);
        assert_eq!(seen(&alike, Some("1"), true), [(0, 80, Some(50))]);
        assert_eq!(
            seen(&alike, Some("GPU-aa22, GPU-aa1"), false),
            [(0, 80, Some(50)), (1, 80, Some(30))]
        );
        assert_eq!(seen(&alike, Some("GPU-aa"), false), [], "either of them");
        assert_eq!(seen(&alike, Some("1,7,0"), true), [(0, 80, Some(50))]);

        let other = [device("GPU-aa11", 80, 30), device("GPU-aa22", 40, 20)];
        assert_eq!(seen(&other, None, false), []);
        assert_eq!(
            seen(&other, None, true),
            [(0, 80, Some(30)), (1, 40, Some(20))]
        );
    }
}
