//! The attributes with which Ascend's driver is asked for memory, and the components of CANN that ask for it.
//!
//! Owns: the words for components, pages and kinds of memory. Refuses: their encoding in bits, which the decoder knows.

use serde::{Deserialize, Serialize};

/// Where memory of Ascend's driver lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HalSpace {
    /// Device memory at an address that is shared with the host.
    #[default]
    Svm,
    /// Device memory.
    Device,
    /// Page-locked host memory.
    Host,
    /// Device memory for the device's image and video units.
    Dvpp,
    /// A number that this version of memscope does not know.
    Other(u8),
}

impl HalSpace {
    /// The word for it in answers and files.
    pub const fn name(self) -> &'static str {
        match self {
            HalSpace::Svm => "svm",
            HalSpace::Device => "device",
            HalSpace::Host => "host",
            HalSpace::Dvpp => "dvpp",
            HalSpace::Other(_) => "other",
        }
    }
}

/// Size of the pages of an allocation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum HalPage {
    /// Pages of 4 KiB, or of the system's usual size.
    #[default]
    Normal,
    /// Pages of 2 MiB.
    Huge,
    /// Pages of 1 GiB.
    Giant,
}

impl HalPage {
    /// The word for it, the same as in msMemScope's files.
    pub const fn name(self) -> &'static str {
        match self {
            HalPage::Normal => "normal",
            HalPage::Huge => "huge",
            HalPage::Giant => "giant",
        }
    }

    /// The page size with this name.
    pub fn from_name(name: &str) -> Option<HalPage> {
        [HalPage::Normal, HalPage::Huge, HalPage::Giant]
            .into_iter()
            .find(|page| page.name() == name)
    }
}

/// The component of CANN that asked for memory, by its number in the driver.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct HalModule(pub u8);

impl HalModule {
    /// Name of the component. The driver calls those that it has retired "reserved"; they keep their earlier names
    /// here.
    pub fn name(self) -> &'static str {
        NAMES.get(usize::from(self.0)).copied().unwrap_or("UNKNOWN")
    }

    /// Name of the component in msMemScope's files, whose table is older than the driver's.
    pub fn dump_name(self) -> &'static str {
        match self.0 {
            0 => "SLOG",
            27 => "ROS",
            37 => "LP",
            75.. => "UNKNOWN",
            _ => self.name(),
        }
    }

    /// The component with this name in the driver or in msMemScope's files.
    pub fn from_name(name: &str) -> Option<HalModule> {
        let all = || (0..=u8::MAX).map(HalModule);
        all()
            .find(|module| module.name() == name)
            .or_else(|| all().find(|module| module.dump_name() == name))
    }
}

/// Names of components by number. Most are those in the driver's `ascend_hal_define.h` (CANN, open source). Numbers
/// that it leaves out have the names of earlier tables, as msMemScope still writes them.
const NAMES: [&str; 77] = [
    "UNKNOWN",
    "IDEDD",
    "IDEDH",
    "HCCL",
    "FMK",
    "HIAIENGINE",
    "DVPP",
    "RUNTIME",
    "CCE",
    "HDC",
    "DRV",
    "MDCFUSION",
    "MDCLOCATION",
    "MDCPERCEPTION",
    "MDCFSM",
    "MDCCOMMON",
    "MDCMONITOR",
    "MDCBSWP",
    "MDCDEFAULT",
    "MDCSC",
    "MDCPNC",
    "MLL",
    "DEVMM",
    "KERNEL",
    "LIBMEDIA",
    "CCECPU",
    "ASCENDDK",
    "HCCP_SCHEDULE",
    "HCCP",
    "ROCE",
    "TEFUSION",
    "PROFILING",
    "DP",
    "APP",
    "TS",
    "TSDUMP",
    "AICPU",
    "AICPU_SCHEDULE",
    "TDT",
    "FE",
    "MD",
    "MB",
    "ME",
    "IMU",
    "IMP",
    "GE",
    "MDCFUSA",
    "CAMERA",
    "ASCENDCL",
    "TEEOS",
    "ISP",
    "SIS",
    "HSM",
    "DSS",
    "PROCMGR",
    "BBOX",
    "AIVECTOR",
    "TBE",
    "FV",
    "MDCMAP",
    "TUNE",
    "HSS",
    "FFTS",
    "OP",
    "UDF",
    "HICAID",
    "TSYNC",
    "AUDIO",
    "TPRT",
    "ASCENDCKERNEL",
    "ASYS",
    "ATRACE",
    "RTC",
    "SYSMONITOR",
    "AML",
    "MBUFF",
    "CUSTOM_SCHEDULE",
];

/// The attributes with which the driver was asked for an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HalFacts {
    /// The driver's number of the device. With `ASCEND_RT_VISIBLE_DEVICES` it may differ from the program's number.
    pub device: u16,
    /// Where the memory lies.
    pub space: HalSpace,
    /// Size of its pages.
    pub page: HalPage,
    /// Component that asked for it.
    pub module: HalModule,
    /// It was created as physical memory (`halMemCreate`), which has an address only once it is mapped.
    pub created: bool,
    /// Kind of physical memory (`drv_mem_type`: 0 HBM, 1 DDR, 2 and 3 the same for peers, 4 the scheduler's), where the
    /// call names it.
    pub memory: Option<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_by_number() {
        for (number, name) in [
            (0, "UNKNOWN"),
            (3, "HCCL"),
            (7, "RUNTIME"),
            (33, "APP"),
            (36, "AICPU"),
            (45, "GE"),
            (48, "ASCENDCL"),
            (54, "PROCMGR"),
            (60, "TUNE"),
            (63, "OP"),
            (74, "AML"),
            (76, "CUSTOM_SCHEDULE"),
            (77, "UNKNOWN"),
            (255, "UNKNOWN"),
        ] {
            assert_eq!(HalModule(number).name(), name, "{number}");
        }
        assert_eq!(HalModule(0).dump_name(), "SLOG");
        assert_eq!(HalModule(75).dump_name(), "UNKNOWN");
        for number in 0..77 {
            let module = HalModule(number);
            assert_eq!(HalModule::from_name(module.name()), Some(module));
        }
        assert_eq!(HalModule::from_name("SLOG"), Some(HalModule(0)));
        assert_eq!(HalModule::from_name("ROS"), Some(HalModule(27)));
        assert_eq!(HalModule::from_name("nobody"), None);
    }
}
