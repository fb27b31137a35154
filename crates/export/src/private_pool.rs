//! How a private pool is named.

/// A pool's id; `(0, 0)` is the default one, and stands also for one that is not told.
pub(crate) type Pool = (u64, u64);
pub(crate) const DEFAULT_POOL: Pool = (0, 0);
