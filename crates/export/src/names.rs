//! Names and frames of stacks as the wire has them: each is sent once, and named by its place afterwards. A thousand stacks of a hundred
//! frames each have only some thousand different frames.

use memscope_ledger::report::{Frame, FrameKind, Stack};
use memscope_proto::v1;
use std::collections::HashMap;
use std::sync::Arc;

/// The names and frames so far. The first name of all is empty.
pub struct Names {
    /// Those that have not been taken yet.
    strings: Vec<String>,
    frames: Vec<v1::StackFrame>,
    string_places: HashMap<Arc<str>, u32>,
    frame_places: HashMap<Frame, u32>,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            strings: vec![String::new()],
            frames: Vec::new(),
            string_places: HashMap::from([("".into(), 0)]),
            frame_places: HashMap::new(),
        }
    }
}

impl Names {
    /// Whether the frame has a place already.
    #[must_use]
    pub fn knows(&self, frame: &Frame) -> bool {
        self.frame_places.contains_key(frame)
    }

    /// The place of a frame, which it gets if it has none.
    pub fn frame(&mut self, frame: &Frame) -> u32 {
        if let Some(place) = self.frame_places.get(frame) {
            return *place;
        }
        let made = v1::StackFrame {
            kind: match frame.kind {
                FrameKind::Python => v1::FrameKind::Python.into(),
                FrameKind::Native => v1::FrameKind::Native.into(),
            },
            name: self.string(&frame.name),
            file: self.string(&frame.file),
            line: frame.line,
        };
        let place = self.frame_places.len() as u32;
        self.frames.push(made);
        self.frame_places.insert(frame.clone(), place);
        place
    }

    /// The places of all frames of a stack, innermost first.
    pub fn frames(&mut self, stack: &Stack) -> Vec<u32> {
        stack.frames.iter().map(|frame| self.frame(frame)).collect()
    }

    fn string(&mut self, text: &Arc<str>) -> u32 {
        if let Some(place) = self.string_places.get(text) {
            return *place;
        }
        let place = self.string_places.len() as u32;
        self.strings.push(text.to_string());
        self.string_places.insert(Arc::clone(text), place);
        place
    }

    /// Takes the names and frames that came since the last time. Places go on behind them.
    pub fn take(&mut self) -> (Vec<String>, Vec<v1::StackFrame>) {
        (
            std::mem::take(&mut self.strings),
            std::mem::take(&mut self.frames),
        )
    }
}

/// Why a stack has no frames; `None`: it has some.
#[must_use]
pub fn missing(is_empty: bool, why: Option<&'static str>) -> Option<String> {
    is_empty.then(|| why.unwrap_or("unknown").to_owned())
}
