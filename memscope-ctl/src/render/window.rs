//! Size of the window that is printed to.

/// Columns that are assumed where the width is not known.
const COLUMNS: usize = 100;

/// Size of a window.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) columns: Option<usize>,
    /// Lines of the window; `None` where the length of the output is not limited.
    pub(crate) lines: Option<usize>,
}

impl Window {
    /// Number of intervals of a course that fit into a line.
    pub(crate) fn intervals(self) -> usize {
        let columns = self.columns.unwrap_or(COLUMNS);
        // A blank stands before the course, and behind it the values of its top and bottom.
        columns.saturating_sub(13).clamp(10, 1000)
    }
}
