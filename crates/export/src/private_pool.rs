//! The id of a private pool.

/// A pool's id. `(0, 0)` is the default pool, and also stands for a pool that is not known.
pub(crate) type Pool = (u64, u64);
pub(crate) const DEFAULT_POOL: Pool = (0, 0);
