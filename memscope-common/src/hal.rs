//! The word of flags that describes an allocation to Ascend's driver.
//!
//! `halMemAlloc` takes it as its flags (`ascend_hal.h` of the driver, open source in CANN's repository). `halMemCreate`
//! takes a structure instead; we put its contents into the same word, with [`CREATED`] set.

/// Bits 0 to 9: the number by which the driver knows the device.
pub const DEVICE_MASK: u64 = 0x3ff;
/// Bits 10 to 13: on which side the memory lies, one of the `SPACE_*` constants below.
pub const SPACE_SHIFT: u32 = 10;
/// Mask of these four bits, after the shift.
pub const SPACE_MASK: u64 = 0xf;
/// Memory that host and device use by the same address; it lies on the device.
pub const SPACE_SVM: u64 = 0;
/// Memory of the device.
pub const SPACE_DEVICE: u64 = 1;
/// Memory of the host.
pub const SPACE_HOST: u64 = 2;
/// Memory of the device for its image and video units.
pub const SPACE_DVPP: u64 = 3;
/// The memory consists of huge pages (2 MiB).
pub const HUGE: u64 = 1 << 17;
/// The memory consists of giant pages (1 GiB).
pub const GIANT: u64 = 1 << 31;
/// A bit of our own, which the driver leaves free: the word was made from a `drv_mem_prop`.
pub const CREATED: u64 = 1 << 48;
/// Bits 49 to 51, our own and valid only with [`CREATED`]: the kind of memory (`drv_mem_type`).
pub const MEMORY_SHIFT: u32 = 49;
/// Mask of these three bits, after the shift.
pub const MEMORY_MASK: u64 = 7;
/// Bits 56 to 63: the software component that asked for the memory.
pub const MODULE_SHIFT: u32 = 56;

/// Makes the word from the first five numbers of a `drv_mem_prop`: side, device, module, page type and memory type.
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
