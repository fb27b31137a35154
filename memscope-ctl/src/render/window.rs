//! How much room there is for what is printed.

/// Columns where nobody says how many there are.
const COLUMNS: usize = 100;

/// How large the window is.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) columns: Option<usize>,
    /// None: what is printed has no end.
    pub(crate) lines: Option<usize>,
}

impl Window {
    /// Intervals of a course that fit.
    pub(crate) fn intervals(self) -> usize {
        let columns = self.columns.unwrap_or(COLUMNS);
        // A blank before it, and what its top and bottom are behind it.
        columns.saturating_sub(13).clamp(10, 1000)
    }
}
