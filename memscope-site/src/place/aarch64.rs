//! 64-bit Arm: not yet. Kernels up to 6.12 emulate no instruction that functions begin with, and
//! eight registers carry arguments, so the rules are others than on x86-64.

use super::{Code, Emulation, PlaceError, Placement, Wants};

pub(super) fn place(
    _code: &Code<'_>,
    _wants: Wants,
    _emulation: Emulation,
) -> Result<Placement, PlaceError> {
    Err(PlaceError::Unsupported("aarch64"))
}
