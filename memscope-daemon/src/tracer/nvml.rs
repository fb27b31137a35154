//! Devices and their memory, from NVML where it is installed. NVML is loaded at run time and never required.
//!
//! A process numbers its devices in its own way: `CUDA_VISIBLE_DEVICES` chooses among them, and CUDA puts the fastest
//! first unless `CUDA_DEVICE_ORDER` says otherwise. It is certain which device of the machine is meant if there is
//! only one, if the order is that of the bus and the process was not given a part of the machine, if devices are
//! named by their UUIDs, or if the process can see one device only and NVML says that it runs on one only. Where a
//! device is divided (MIG), CUDA gives a process one part at most, and which part is certain if the process names it by
//! its UUID. Otherwise free memory is not reported, and the size only if all devices have the same. NVML also says on which
//! devices the process runs: what follows from that for the process's numbers is the ledger's to find.

use memscope_ledger::event::{DeviceTotal, Hardware, ProcessFacts, RunsOn};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

/// NVML. Loading it is tried only once.
#[derive(Default)]
pub struct Machine {
    nvml: Option<Option<Nvml>>,
}

/// What NVML says about the devices of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// The memory of each device that the process can see, as far as it is certain which device it is.
    pub memory: Vec<DeviceTotal>,
    /// Where the process has a context.
    pub runs_on: RunsOn,
}

/// A device of the machine, or a part of one, with its memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Device {
    hardware: Hardware,
    total: u64,
    free: u64,
    reserved: u64,
    /// The processes that have a context on it, with what each uses, if that is told; `None` if NVML does not tell processes.
    tenants: Option<Vec<(u32, Option<u64>)>>,
    /// Whether the asked process has a context on it; `None` if NVML does not tell processes.
    runs: Option<bool>,
    /// What the asked process uses, if that is told.
    used: Option<u64>,
    /// The parts into which it is divided, if it is.
    parts: Option<Vec<Device>>,
}

impl Device {
    /// The part that this is, or the parts, or the device as a whole: what a process can be given.
    fn places(&self) -> &[Device] {
        self.parts.as_deref().unwrap_or(std::slice::from_ref(self))
    }

    /// The same for one process.
    fn of_process(&self, pid: u32) -> Device {
        let own = self.tenants.iter().flatten().find(|(one, _)| *one == pid);
        let parts = self.parts.as_ref().map(|parts| {
            let parts = parts.iter().map(|part| part.of_process(pid));
            parts.collect()
        });
        Device {
            hardware: self.hardware.clone(),
            total: self.total,
            free: self.free,
            reserved: self.reserved,
            tenants: None,
            runs: self.tenants.as_ref().map(|_| own.is_some()),
            used: own.and_then(|(_, used)| *used),
            parts,
        }
    }
}

/// What NVML says of the whole machine at one moment. It takes some forty calls where there are eight devices.
pub struct Look(Option<Vec<Device>>);

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

    /// What NVML says now.
    pub fn look(&mut self) -> Look {
        Look(self.loaded().and_then(by_bus))
    }
}

impl Look {
    /// What it says about the devices of a process.
    pub fn of_process(&self, facts: &ProcessFacts) -> Told {
        let Some(devices) = &self.0 else {
            return Told::default();
        };
        let devices: Vec<Device> = devices
            .iter()
            .map(|one| one.of_process(facts.pid))
            .collect();
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
        told(&devices, value("CUDA_VISIBLE_DEVICES"), in_order)
    }
}

/// The machine's devices in the order of the bus, with the processes that use them; `None` if one of them cannot be read.
fn by_bus(nvml: &Nvml) -> Option<Vec<Device>> {
    let mut devices = Vec::new();
    for index in 0..nvml.device_count().ok()? {
        let device = nvml.device_by_index(index).ok()?;
        let at = device.pci_info().ok()?;
        let hardware = Hardware {
            uuid: device.uuid().ok()?,
            mig_uuid: None,
            // Functions of a device other than the first are none that NVML knows.
            pci_address: Some(format!(
                "{:04x}:{:02x}:{:02x}.0",
                at.domain, at.bus, at.device
            )),
        };
        let parts = parts(&device, &hardware).ok()?;
        // Of a divided device NVML lists the processes part by part.
        let whole = read(&device, hardware, parts.is_none()).ok()?;
        devices.push(((at.domain, at.bus, at.device), Device { parts, ..whole }));
    }
    devices.sort_by_key(|(at, _)| *at);
    Some(devices.into_iter().map(|(_, device)| device).collect())
}

/// The parts of a device (MIG); `None` if it is not divided.
fn parts(
    device: &nvml_wrapper::Device<'_>,
    whole: &Hardware,
) -> Result<Option<Vec<Device>>, NvmlError> {
    const DIVIDED: u32 = 1;
    match device.mig_mode() {
        Ok(mode) if mode.current == DIVIDED => {}
        Ok(_) | Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut parts = Vec::new();
    for index in 0..device.mig_device_count()? {
        let part = match device.mig_device_by_index(index) {
            Ok(part) => part,
            // The count is that of the most parts that there can be.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
            Err(error) => return Err(error),
        };
        let hardware = Hardware {
            mig_uuid: Some(part.uuid()?),
            ..whole.clone()
        };
        parts.push(read(&part, hardware, true)?);
    }
    Ok(Some(parts))
}

/// The memory of a device or of a part of one. Who uses it NVML tells of each process, except in some virtual machines, and of a part
/// only to those who may know it.
fn read(
    device: &nvml_wrapper::Device<'_>,
    hardware: Hardware,
    of_processes: bool,
) -> Result<Device, NvmlError> {
    let memory = device.memory_info()?;
    let processes = match of_processes {
        true => device.running_compute_processes().ok(),
        false => None,
    };
    let tenants = processes.map(|all| {
        let all = all.into_iter().map(|process| {
            let used = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            (process.pid, used)
        });
        all.collect()
    });
    Ok(Device {
        hardware,
        total: memory.total,
        free: memory.free,
        reserved: memory.reserved,
        tenants,
        ..Device::default()
    })
}

/// What is told of the devices that a process can see, and where it runs.
fn told(devices: &[Device], visible: Option<&str>, in_order: bool) -> Told {
    let places: Vec<&Device> = devices.iter().flat_map(Device::places).collect();
    // One place of which nobody tells can be the one that matters.
    let told_of_all = places.iter().all(|place| place.runs.is_some());
    let runs = places
        .iter()
        .filter(|place| told_of_all && place.runs == Some(true));
    let runs: Vec<&Device> = runs.copied().collect();
    let runs_on = RunsOn {
        devices: runs.iter().map(|place| place.hardware.clone()).collect(),
    };
    let same = places.windows(2).all(|two| two[0].total == two[1].total);
    let mut seen = of_devices(devices, visible, in_order || devices.len() == 1);
    let found = |place: &&Device| {
        let mut sure = seen.iter().filter(|seen| seen.certain);
        sure.any(|seen| seen.device.hardware == place.hardware)
    };
    if !runs.iter().all(found) {
        match (&mut seen[..], &runs[..]) {
            ([only], [place]) if visible.is_some() && !only.certain => {
                (only.device, only.certain) = (place, true);
            }
            // The process runs where it could not, so it set other variables than those it was started with.
            (all, _) if all.iter().all(|seen| seen.certain) => {
                all.iter_mut().for_each(|seen| seen.certain = false);
            }
            // It may run on those of which it is not certain which they are.
            _ => {}
        }
    }
    let memory = seen.into_iter().filter(|seen| seen.certain || same);
    let memory = memory.map(
        |Seen {
             ordinal,
             device,
             certain,
         }| DeviceTotal {
            device: ordinal,
            total_bytes: device.total,
            free_bytes: certain.then_some(device.free),
            reserved_bytes: certain.then_some(device.reserved),
            process_bytes: device.used.filter(|_| certain),
            hardware: certain.then(|| device.hardware.clone()),
        },
    );
    Told {
        memory: memory.collect(),
        runs_on,
    }
}

/// A device by the number that a process has for it, and whether it is certain that it means this one.
struct Seen<'a> {
    ordinal: i32,
    device: &'a Device,
    certain: bool,
}

fn of_devices<'a>(devices: &'a [Device], visible: Option<&str>, in_order: bool) -> Vec<Seen<'a>> {
    // Among divided devices CUDA counts by rules of its own.
    let divided = devices.iter().any(|device| device.parts.is_some());
    let mut seen = Vec::new();
    let mut see = |device: &'a Device, certain| {
        seen.push(Seen {
            ordinal: seen.len() as i32,
            device,
            certain,
        });
    };
    let Some(list) = visible else {
        let counted = devices.iter().filter(|_| !divided);
        counted.for_each(|device| see(device, in_order));
        return seen;
    };
    // CUDA ends the list at the first name that it does not know.
    for name in list.split(',').map(str::trim) {
        let next = match name.parse::<usize>() {
            Ok(_) if divided => None,
            Ok(index) => devices.get(index).map(|device| (device, in_order)),
            Err(_) => by_uuid(devices, name).map(|device| (device, true)),
        };
        let Some((device, certain)) = next else {
            break;
        };
        see(device, certain);
        if device.hardware.mig_uuid.is_some() {
            break;
        }
    }
    seen
}

/// CUDA also accepts the beginning of a device's UUID if only one device's UUID begins with it; a part (MIG) is named in full. A part can
/// also be named by its device and two numbers (`MIG-GPU-…/1/0`), which NVML tells in place of a UUID where the driver knows no other.
fn by_uuid<'a>(devices: &'a [Device], name: &str) -> Option<&'a Device> {
    if name.starts_with("MIG-") {
        let mut parts = devices
            .iter()
            .flat_map(|device| device.parts.iter().flatten());
        return parts.find(|part| part.hardware.mig_uuid.as_deref() == Some(name));
    }
    if !name.starts_with("GPU-") {
        return None;
    }
    let mut found = devices
        .iter()
        .filter(|device| device.hardware.uuid.starts_with(name));
    // Which part of a divided device a process gets that names the whole is CUDA's choice.
    let first = found.next().filter(|device| device.parts.is_none())?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(uuid: &str, total: u64, free: u64) -> Device {
        Device {
            hardware: Hardware {
                uuid: uuid.to_owned(),
                ..Hardware::default()
            },
            total,
            free,
            runs: Some(false),
            ..Device::default()
        }
    }

    fn running(device: Device) -> Device {
        Device {
            runs: Some(true),
            used: Some(7),
            ..device
        }
    }

    /// A device that is divided into parts of 10 bytes.
    fn divided(uuid: &str, parts: &[(&str, bool)]) -> Device {
        let parts = parts.iter().map(|(mig, runs)| Device {
            hardware: Hardware {
                uuid: uuid.to_owned(),
                mig_uuid: Some((*mig).to_owned()),
                pci_address: None,
            },
            total: 10,
            free: 4,
            runs: Some(*runs),
            ..Device::default()
        });
        Device {
            parts: Some(parts.collect()),
            ..device(uuid, 80, 30)
        }
    }

    fn seen(
        devices: &[Device],
        visible: Option<&str>,
        in_order: bool,
    ) -> Vec<(i32, u64, Option<u64>)> {
        let told = told(devices, visible, in_order).memory.into_iter();
        told.map(|d| (d.device, d.total_bytes, d.free_bytes))
            .collect()
    }

    fn names(devices: &[Device], visible: Option<&str>, in_order: bool) -> Vec<Option<String>> {
        let told = told(devices, visible, in_order).memory.into_iter();
        told.map(|d| d.hardware.map(|hardware| hardware.name().to_owned()))
            .collect()
    }

    fn some(names: &[&str]) -> Vec<Option<String>> {
        names.iter().map(|name| Some((*name).to_owned())).collect()
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
    #[test]
    fn which_hardware_a_number_means() {
        let two = [device("GPU-aa11", 80, 30), device("GPU-aa22", 80, 50)];
        assert_eq!(names(&two, None, true), some(&["GPU-aa11", "GPU-aa22"]));
        assert_eq!(
            names(&two, Some("1,0"), true),
            some(&["GPU-aa22", "GPU-aa11"])
        );
        assert_eq!(names(&two, None, false), [None, None], "fastest first");
        assert_eq!(
            names(&two, Some("GPU-aa2,0"), false),
            [some(&["GPU-aa22"])[0].clone(), None]
        );

        // It can see one device and runs on one.
        let runs = [two[0].clone(), running(two[1].clone())];
        assert_eq!(names(&runs, Some("0"), false), some(&["GPU-aa22"]));
        assert_eq!(seen(&runs, Some("0"), false), [(0, 80, Some(50))]);
        assert_eq!(
            names(&runs, Some("0,1"), false),
            [None, None],
            "either number"
        );

        // Of the other device it is not told who runs there.
        let mut half = runs.clone();
        half[0].runs = None;
        assert_eq!(names(&half, Some("0"), false), [None]);
        assert_eq!(told(&half, None, false).runs_on, RunsOn::default());

        // The one that it named is certain all the same.
        let runs = [running(two[0].clone()), two[1].clone()];
        let named = some(&["GPU-aa22"])[0].clone();
        assert_eq!(names(&runs, Some("GPU-aa22,0"), false), [named, None]);
    }

    #[test]
    fn one_look_at_the_machine_serves_all_processes() {
        let with = |device: Device, tenants: &[(u32, Option<u64>)]| Device {
            tenants: Some(tenants.to_vec()),
            ..device
        };
        let whole = with(device("GPU-aa11", 80, 30), &[(7, Some(5)), (8, None)]);
        let mut parted = divided("GPU-aa22", &[("MIG-1", false), ("MIG-2", false)]);
        if let Some([one, other]) = parted.parts.as_deref_mut() {
            *one = with(one.clone(), &[]);
            *other = with(other.clone(), &[(7, Some(6))]);
        }
        let of = |pid: u32| {
            let facts = ProcessFacts {
                pid,
                ..ProcessFacts::default()
            };
            let told = Look(Some(vec![whole.clone(), parted.clone()])).of_process(&facts);
            let runs_on = told.runs_on.devices.iter();
            runs_on.map(|one| one.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of(7), ["GPU-aa11", "MIG-2"]);
        assert_eq!(of(8), ["GPU-aa11"]);
        assert_eq!(of(9), [""; 0]);
        let used = |pid: u32| (whole.of_process(pid).runs, whole.of_process(pid).used);
        assert_eq!(used(7), (Some(true), Some(5)));
        assert_eq!(used(8), (Some(true), None));
        assert_eq!(used(9), (Some(false), None));
        // Where NVML does not tell processes, nothing is said of any.
        assert_eq!(device("GPU-aa11", 80, 30).of_process(7).runs, None);
        assert_eq!(
            Look(None).of_process(&ProcessFacts::default()),
            Told::default()
        );
    }

    #[test]
    fn a_process_that_runs_where_its_variables_do_not_let_it_changed_them() {
        let runs = [
            device("GPU-aa11", 80, 30),
            running(device("GPU-aa22", 80, 50)),
        ];
        for list in ["0", "GPU-aa11"] {
            let told = told(&runs, Some(list), true);
            assert_eq!(told.memory[0].hardware, None, "{list}");
            assert_eq!(told.memory[0].free_bytes, None, "{list}");
            assert_eq!(told.memory[0].process_bytes, None, "{list}");
            assert_eq!(told.runs_on.devices, [runs[1].hardware.clone()]);
        }
    }

    #[test]
    fn a_part_is_known_by_its_uuid_only() {
        let parts = [("MIG-1", false), ("MIG-2", false)];
        let machine = [divided("GPU-aa11", &parts), device("GPU-aa22", 80, 50)];
        assert_eq!(names(&machine, Some("MIG-2"), false), some(&["MIG-2"]));
        assert_eq!(seen(&machine, Some("MIG-2"), false), [(0, 10, Some(4))]);
        // CUDA gives a process one part.
        assert_eq!(
            names(&machine, Some("MIG-2,MIG-1"), false),
            some(&["MIG-2"])
        );
        assert_eq!(
            names(&machine, Some("GPU-aa22"), false),
            some(&["GPU-aa22"])
        );
        for (list, in_order) in [
            (None, true),
            (Some("0"), true),
            (Some("1"), true),
            (Some("GPU-aa11"), false),
            (Some("MIG-"), false),
            (Some("MIG-GPU-aa11/1/0"), false),
        ] {
            assert_eq!(names(&machine, list, in_order), [], "{list:?}");
        }
        // Where it runs is told all the same, and not of the device as a whole.
        let running = [divided("GPU-aa11", &[("MIG-1", false), ("MIG-2", true)])];
        let told = told(&running, None, true);
        assert_eq!(told.runs_on.devices[0].name(), "MIG-2");
        assert_eq!(told.runs_on.devices[0].uuid, "GPU-aa11");
        assert!(told.memory.is_empty());
    }
}
