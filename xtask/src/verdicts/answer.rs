//! The parts of the answer of `memscope-ctl --json leaks` that are read. A key that an older version does not write is
//! absent, which is not the same as null.

use serde::{Deserialize, Deserializer};

/// The answer about one process.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Answer {
    /// Of the process that was asked about, what tells whether it has ended.
    #[serde(default)]
    pub process: Process,
    /// The steps that were counted.
    pub steps: Option<Steps>,
    /// Groups of live blocks.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// The Python objects that hold what grows, those that hold most first.
    #[serde(default)]
    pub holders: Vec<Holder>,
}

/// The process that was asked about.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Process {
    /// When it ended; null while it goes on.
    pub ended_boot_ns: Option<u64>,
}

/// A Python object that holds what grows.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Holder {
    /// The way to what it holds.
    #[serde(default)]
    pub path: String,
    /// The way to the container, if there is one.
    pub container: Option<String>,
    /// Number of its elements.
    pub length: Option<u64>,
}

impl Holder {
    /// The way to the container, else to what is held, without the graph.
    pub fn name(&self) -> &str {
        let path = self.container.as_deref().unwrap_or(&self.path);
        path.strip_suffix(".grad_fn").unwrap_or(path)
    }
}

/// How many steps were counted since the attach, and how.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Steps {
    /// Number of steps; null if it is unknown.
    pub count: Option<u64>,
    /// Word for the source from which they were counted.
    #[serde(default)]
    pub source: String,
}

/// A group of live blocks.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Group {
    /// Word for the verdict about the group.
    #[serde(default)]
    pub verdict: String,
    /// Confidence of the verdict, from 0 to 1.
    pub confidence: Option<f64>,
    /// Size of each block in bytes.
    pub size_bytes: Option<u64>,
    /// Number of live blocks.
    pub live_count: Option<u64>,
    /// The user's line that allocated the blocks. The outer option is `None` if the key is absent.
    #[serde(default, deserialize_with = "present")]
    pub line: Option<Option<Line>>,
    /// The stack that allocated the blocks, innermost frame first. `None` if the key is absent.
    pub frames: Option<Vec<Line>>,
    /// Reason for the verdict, in a sentence.
    #[serde(default)]
    pub reason: String,
}

/// A line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Line {
    /// Path of the file.
    #[serde(default)]
    pub file: String,
    /// Number of the line; frames of compiled code may have none.
    pub line: Option<u64>,
}

impl Line {
    /// Number of the line if it is in the script with this file name.
    fn within(&self, script: &str) -> Option<u64> {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        self.line.filter(|_| name == script)
    }
}

fn present<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Option<Line>>, D::Error> {
    Option::deserialize(input).map(Some)
}

/// What an answer says about the origin of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupPlace {
    /// Nothing, because this version does not report it.
    Unsaid,
    /// A line that the answer names as the user's; the number is `None` if it is in another file than the script.
    Line(String, Option<u64>),
    /// The answer names no line; these lines of the script are in the stack.
    Frames(Vec<u64>),
}

impl Answer {
    /// The groups that are said to grow.
    pub fn growing(&self) -> impl Iterator<Item = &Group> {
        self.groups
            .iter()
            .filter(|group| group.verdict == "growing")
    }
}

impl Group {
    /// The origin of the group, as lines of the script with this file name.
    pub fn place(&self, script: &str) -> GroupPlace {
        if let Some(Some(line)) = &self.line {
            let number = line
                .line
                .map_or("?".to_owned(), |number| number.to_string());
            let name = line.file.rsplit('/').next().unwrap_or_default();
            return GroupPlace::Line(format!("{name}:{number}"), line.within(script));
        }
        match (&self.line, &self.frames) {
            (None, None) => GroupPlace::Unsaid,
            (_, frames) => GroupPlace::Frames(
                frames
                    .iter()
                    .flatten()
                    .filter_map(|frame| frame.within(script))
                    .collect(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(text: &str) -> serde_json::Result<Group> {
        serde_json::from_str(text)
    }

    #[test]
    fn absent_is_not_null() -> serde_json::Result<()> {
        let old = group(r#"{"verdict": "growing", "size_bytes": 512, "unknown": [1]}"#)?;
        assert_eq!(old.place("a.py"), GroupPlace::Unsaid);
        let null = group(r#"{"verdict": "growing", "line": null, "confidence": null}"#)?;
        assert_eq!(null.place("a.py"), GroupPlace::Frames(vec![]));
        let frames = group(
            r#"{"line": null, "frames": [{"file": "/x/torch/nn.py", "line": 3}, {"file": "", "name": "malloc"},
                {"file": "/y/a.py", "line": 7, "name": "step"}, {"file": "/y/b.py", "line": 9}]}"#,
        )?;
        assert_eq!(frames.place("a.py"), GroupPlace::Frames(vec![7]));
        Ok(())
    }

    #[test]
    fn a_line_is_the_scripts_or_another_files() -> serde_json::Result<()> {
        let said =
            group(r#"{"line": {"file": "/y/a.py", "line": 7, "name": "step"}, "frames": []}"#)?;
        assert_eq!(
            said.place("a.py"),
            GroupPlace::Line("a.py:7".to_owned(), Some(7))
        );
        assert_eq!(
            said.place("y.py"),
            GroupPlace::Line("a.py:7".to_owned(), None)
        );
        Ok(())
    }

    #[test]
    fn only_what_grows_is_an_accusation() -> serde_json::Result<()> {
        let answer: Answer = serde_json::from_str(
            r#"{"steps": {"count": null, "source": "unknown"},
                "groups": [{"verdict": "steady"}, {"verdict": "growing", "size_bytes": 4}, {"verdict": "undecided"}]}"#,
        )?;
        let sizes: Vec<Option<u64>> = answer.growing().map(|group| group.size_bytes).collect();
        assert_eq!(sizes, [Some(4)]);
        assert_eq!(answer.steps.and_then(|steps| steps.count), None);
        Ok(())
    }
}
