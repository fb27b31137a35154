//! Makes the sources of a library that stands in for another: functions in C that only return a result, and the linker
//! script that exports them under the names and versions of the real ones.

use std::fmt::Write as _;

use anyhow::Result;

use crate::elf::Exports;

/// C source of a library whose functions return the expression `result(name)`. Functions that, by their names, return
/// a text return one.
pub fn stub_source<'a>(
    names: impl Iterator<Item = &'a String>,
    result: impl Fn(&str) -> String,
) -> String {
    let mut text = String::new();
    for name in names {
        let says = ["ErrorString", "ErrorName", "LastError", "StatusString"];
        let line = if says.iter().any(|end| name.ends_with(end)) {
            format!("const char *{name}(void) {{ return \"this library is not there\"; }}\n")
        } else {
            format!("int {name}(void) {{ return {}; }}\n", result(name))
        };
        text.push_str(&line);
    }
    text
}

/// The linker script that exports these functions under their symbol versions.
pub fn version_script(exports: &Exports) -> Result<String> {
    let mut versions: Vec<Option<&String>> = exports.values().map(Option::as_ref).collect();
    versions.sort();
    versions.dedup();
    let mut text = String::new();
    for version in versions {
        writeln!(
            text,
            "{} {{\n  global:",
            version.map(String::as_str).unwrap_or_default()
        )?;
        for name in exports
            .iter()
            .filter(|(_, of)| of.as_ref() == version)
            .map(|(name, _)| name)
        {
            writeln!(text, "    {name};")?;
        }
        writeln!(text, "  local: *;\n}};")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_script_has_a_node_for_each_version() -> Result<()> {
        let exports: Exports = [
            ("b".to_owned(), Some("V2".to_owned())),
            ("a".to_owned(), Some("V1".to_owned())),
        ]
        .into_iter()
        .collect();
        let script = version_script(&exports)?;
        assert_eq!(
            script,
            "V1 {\n  global:\n    a;\n  local: *;\n};\nV2 {\n  global:\n    b;\n  local: *;\n};\n"
        );
        Ok(())
    }
}
