//! The word in which Ascend's driver is told about an allocation.
//!
//! `halMemAlloc` takes it as its flags (`ascend_hal.h` of the driver, open source in CANN's repository). `halMemCreate`
//! takes a structure instead; what it says is put into the same word, with [`CREATED`] set.

/// Bits 0 to 9: the driver's number of the device.
pub const DEVICE_MASK: u64 = 0x3ff;
/// Bits 10 to 13: whose memory, one of the `SPACE_*`.
pub const SPACE_SHIFT: u32 = 10;
/// As many bits.
pub const SPACE_MASK: u64 = 0xf;
/// Memory that host and device address alike; it lies on the device.
pub const SPACE_SVM: u64 = 0;
/// The device's.
pub const SPACE_DEVICE: u64 = 1;
/// The host's.
pub const SPACE_HOST: u64 = 2;
/// The device's, for its image and video units.
pub const SPACE_DVPP: u64 = 3;
/// Huge pages (2 MiB).
pub const HUGE: u64 = 1 << 17;
/// Giant pages (1 GiB).
pub const GIANT: u64 = 1 << 31;
/// Ours: the word was made of a `drv_mem_prop`. The driver leaves the bit free.
pub const CREATED: u64 = 1 << 48;
/// Ours, with [`CREATED`]: the kind of memory (`drv_mem_type`), three bits.
pub const MEMORY_SHIFT: u32 = 49;
/// As many bits.
pub const MEMORY_MASK: u64 = 7;
/// Bits 56 to 63: the component that asked.
pub const MODULE_SHIFT: u32 = 56;

/// The word of a `drv_mem_prop`: side, device, module, page type and memory type, its first five numbers.
#[inline(always)]
pub const fn of_properties(properties: [u32; 5]) -> u64 {
    let [side, device, module, page, memory] = properties;
    // MEM_HOST_SIDE 0, MEM_DEV_SIDE 1, MEM_HOST_NUMA_SIDE 2.
    let space = if side == 1 { SPACE_DEVICE } else { SPACE_HOST };
    let pages = match page {
        1 => HUGE,
        2 => GIANT,
        _ => 0,
    };
    (device as u64 & DEVICE_MASK)
        | (space << SPACE_SHIFT)
        | pages
        | CREATED
        | ((memory as u64 & MEMORY_MASK) << MEMORY_SHIFT)
        | ((module as u64 & 0xff) << MODULE_SHIFT)
}

const _: () = {
    let word = of_properties([1, 5, 33, 2, 4]);
    assert!(word & DEVICE_MASK == 5 && (word >> SPACE_SHIFT) & SPACE_MASK == SPACE_DEVICE);
    assert!(word & GIANT != 0 && word & HUGE == 0 && word & CREATED != 0);
    assert!((word >> MEMORY_SHIFT) & MEMORY_MASK == 4 && word >> MODULE_SHIFT == 33);
};
