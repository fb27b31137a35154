//! Lists with commas, in which brackets may have commas of their own.

/// The parts between commas that lie in no brackets, without the spaces around them; `None` where the brackets do not fit together.
pub(super) fn parts<'t>(text: &'t str, opening: &[u8], closing: &[u8]) -> Option<Vec<&'t str>> {
    let mut parts = Vec::new();
    let mut depth = 0usize;
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if opening.contains(&byte) {
            depth += 1;
        } else if closing.contains(&byte) {
            depth = depth.checked_sub(1)?;
        } else if byte == b',' && depth == 0 {
            parts.push(text[from..at].trim());
            from = at + 1;
        }
    }
    let last = text[from..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    (depth == 0).then_some(parts)
}
