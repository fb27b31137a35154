//! What Ascend's driver is told about an allocation, and the components of CANN that ask it.
//!
//! Owns: the words for components, pages and places. Refuses: the bits in which they travel, which the decoder knows.

use serde::{Deserialize, Serialize};

/// Whose memory it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HalSpace {
    /// The device's, with an address that the host shares.
    #[default]
    Svm,
    /// The device's.
    Device,
    /// The host's, page-locked.
    Host,
    /// The device's, for its image and video units.
    Dvpp,
    /// Another number, which this version does not know.
    Other(u8),
}

impl HalSpace {
    /// The word for it.
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

/// How large its pages are.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum HalPage {
    /// 4 KiB, or what the system has.
    #[default]
    Normal,
    /// 2 MiB.
    Huge,
    /// 1 GiB.
    Giant,
}

impl HalPage {
    /// The word for it, as msMemScope has it.
    pub const fn name(self) -> &'static str {
        match self {
            HalPage::Normal => "normal",
            HalPage::Huge => "huge",
            HalPage::Giant => "giant",
        }
    }

    /// The page type of this name.
    pub fn from_name(name: &str) -> Option<HalPage> {
        [HalPage::Normal, HalPage::Huge, HalPage::Giant]
            .into_iter()
            .find(|page| page.name() == name)
    }
}

/// The component of CANN that asked for memory: a number of the driver's.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct HalModule(pub u8);

impl HalModule {
    /// Its name. The driver calls those that it has retired "reserved"; they go by the names that they had.
    pub fn name(self) -> &'static str {
        NAMES.get(usize::from(self.0)).copied().unwrap_or("UNKNOWN")
    }

    /// Its name in msMemScope's files, whose table is older than the driver's.
    pub fn dump_name(self) -> &'static str {
        match self.0 {
            0 => "SLOG",
            27 => "ROS",
            37 => "LP",
            75.. => "UNKNOWN",
            _ => self.name(),
        }
    }

    /// The component that has this name in the driver or in msMemScope's files.
    pub fn from_name(name: &str) -> Option<HalModule> {
        let all = || (0..=u8::MAX).map(HalModule);
        all()
            .find(|module| module.name() == name)
            .or_else(|| all().find(|module| module.dump_name() == name))
    }
}

/// By number. Today's names are those of the driver's `ascend_hal_define.h` (CANN, open source), the numbers that it
/// leaves out have the names of earlier tables, as msMemScope still writes them.
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

/// What the driver was told about an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HalFacts {
    /// The driver's number of the device, which `ASCEND_RT_VISIBLE_DEVICES` may make another than the program's.
    pub device: u16,
    /// Whose memory.
    pub space: HalSpace,
    /// Its pages.
    pub page: HalPage,
    /// Who asked.
    pub module: HalModule,
    /// It was made as physical memory (`halMemCreate`), which has an address only when it is mapped.
    pub created: bool,
    /// Kind of physical memory (`drv_mem_type`: 0 HBM, 1 DDR, 2 and 3 the same for peers, 4 the scheduler's), where that
    /// was said.
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
