//! The pages of the book: their fenced blocks, and the commands in these.

use std::path::{Path, PathBuf};

use crate::places::root;

/// A page in Markdown.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its path from the workspace on.
    pub name: String,
    /// Its lines.
    pub lines: Vec<String>,
}

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    /// The page's name.
    pub page: String,
    /// Index of its first line, below the fence, among the page's lines.
    pub first: usize,
    /// What stands behind the opening fence.
    pub language: String,
    /// The program that its commands ask about, if a comment above it names one.
    pub program: Option<String>,
    /// Its lines.
    pub lines: Vec<String>,
}

/// A command of a block or of a table.
#[derive(Clone, Debug)]
pub struct Command {
    /// `PAGE:LINE`.
    pub place: String,
    /// As it is written, without `$ ` and without the comment behind it.
    pub text: String,
    /// The lines of output that a block shows beneath it; none where it is only named.
    pub output: Option<Vec<String>>,
}

/// README.md and every page of docs/, except the evidence: that is a record of what was run at that time, with the
/// versions of that time, and nothing that a reader is told to type.
pub fn pages() -> Vec<Page> {
    let mut pages = all_pages();
    pages.retain(|page| !page.name.starts_with("docs/evidence/"));
    pages
}

/// README.md and every page of docs/.
pub fn all_pages() -> Vec<Page> {
    let mut files = vec![root().join("README.md")];
    collect(&root().join("docs"), &mut files);
    files.sort();
    files.iter().map(|file| Page::read(file)).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the book") {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            files.push(path);
        }
    }
}

impl Page {
    fn read(file: &Path) -> Page {
        let text = std::fs::read_to_string(file).expect("a page can be read");
        let name = file.strip_prefix(root()).expect("a page of ours");
        Page {
            name: name.to_str().expect("a name in UTF-8").to_owned(),
            lines: text.lines().map(str::to_owned).collect(),
        }
    }

    /// Its fenced blocks, in order.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut open = None;
        for (at, line) in self.lines.iter().enumerate() {
            let Some(language) = line.strip_prefix("```") else {
                if let Some(block) = &mut open {
                    let Block { lines, .. } = block;
                    lines.push(line.clone());
                }
                continue;
            };
            match open.take() {
                Some(block) => blocks.push(block),
                None => {
                    open = Some(Block {
                        page: self.name.clone(),
                        first: at + 1,
                        language: language.trim().to_owned(),
                        program: at
                            .checked_sub(1)
                            .and_then(|above| program(&self.lines[above])),
                        lines: Vec::new(),
                    });
                }
            }
        }
        assert!(
            open.is_none(),
            "{}: a fenced block is never closed",
            self.name
        );
        blocks
    }

    /// Its lines without those of fenced blocks and their fences, which are empty instead.
    pub fn prose(&self) -> Vec<String> {
        let mut inside = false;
        let lines = self.lines.iter().map(|line| {
            let fence = line.starts_with("```");
            inside ^= fence;
            if inside || fence {
                String::new()
            } else {
                line.clone()
            }
        });
        lines.collect()
    }

    /// Every piece of code in a paragraph, list or table, with the number of the line that it begins in, and whether that
    /// is a table's. A piece may go on in the next line.
    pub fn spans(&self) -> Vec<(usize, bool, String)> {
        let prose = self.prose();
        let text = prose.join("\n");
        let mut spans = Vec::new();
        let mut at = 0;
        while let Some(found) = text[at..].find('`') {
            let begin = at + found;
            let ticks = text[begin..].bytes().take_while(|byte| *byte == b'`');
            let fence = "`".repeat(ticks.count());
            let inside = begin + fence.len();
            let Some(length) = text[inside..].find(&fence) else {
                break;
            };
            let line = text[..begin].matches('\n').count();
            let words: Vec<&str> = text[inside..inside + length].split_whitespace().collect();
            spans.push((line + 1, prose[line].starts_with('|'), words.join(" ")));
            at = inside + length + fence.len();
        }
        spans
    }

    /// The commands in its tables: whole pieces of code that begin with one of memscope's programs.
    pub fn commands_of_tables(&self) -> Vec<Command> {
        let spans = self.spans().into_iter();
        let commands = spans.filter(|(_, table, text)| *table && words_of_ours(text).is_some());
        commands
            .map(|(line, _, text)| Command {
                place: format!("{}:{line}", self.name),
                // In a table a bar has to be escaped.
                text: text.replace("\\|", "|"),
                output: None,
            })
            .collect()
    }
}

/// The words of a command line behind `memscope-ctl` and before any pipe, if that is what is run.
pub fn words_of_ours(text: &str) -> Option<Vec<String>> {
    let text = text.strip_prefix("sudo ").unwrap_or(text);
    let words = shell_words(text.strip_prefix("memscope-ctl ")?);
    let end = words.iter().position(|word| word == "||");
    Some(words[..end.unwrap_or(words.len())].to_vec())
}

/// The program that `<!-- program: NAME -->` names.
fn program(line: &str) -> Option<String> {
    let inside = line.strip_prefix("<!-- program: ")?.strip_suffix(" -->")?;
    Some(inside.to_owned())
}

impl Block {
    /// Its commands. Where some begin with `$ `, all do, and what follows each is its output. Otherwise each line is a
    /// command. A block in a language has none: `text` marks drawings.
    pub fn commands(&self) -> Vec<Command> {
        if !self.language.is_empty() {
            return Vec::new();
        }
        let place = |at: usize| format!("{}:{}", self.page, self.first + at + 1);
        let mut commands: Vec<Command> = Vec::new();
        let shows = self.lines.iter().any(|line| line.starts_with("$ "));
        for (at, line) in self.lines.iter().enumerate() {
            if let Some(text) = line.strip_prefix("$ ") {
                commands.push(Command {
                    place: place(at),
                    text: text.to_owned(),
                    output: Some(Vec::new()),
                });
            } else if !shows && !line.trim().is_empty() {
                commands.push(Command {
                    place: place(at),
                    text: without_comment(line).to_owned(),
                    output: None,
                });
            } else if let Some(Command {
                output: Some(output),
                ..
            }) = commands.last_mut()
            {
                output.push(line.clone());
            }
        }
        for output in commands
            .iter_mut()
            .filter_map(|command| command.output.as_mut())
        {
            while output.last().is_some_and(|line| line.trim().is_empty()) {
                output.pop();
            }
        }
        commands
    }
}

/// A command line without the comment at its end. A `#` inside of a word or in quotes begins none.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        match quote {
            Some(open) if open == letter => quote = None,
            Some(_) => {}
            None if letter == '\'' || letter == '"' => quote = Some(letter),
            None if letter == '#' && before == ' ' => return line[..at].trim(),
            None => {}
        }
        before = letter;
    }
    line.trim()
}

/// The words of a command line, as a shell makes them of what the book has: spaces, and both kinds of quotes.
pub fn shell_words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut quote = None;
    let mut inside = false;
    for letter in line.chars() {
        match quote {
            Some(open) if open == letter => quote = None,
            None if letter == '\'' || letter == '"' => {
                quote = Some(letter);
                if !inside {
                    words.push(String::new());
                }
                inside = true;
            }
            None if letter.is_whitespace() => inside = false,
            _ => {
                if !inside {
                    words.push(String::new());
                }
                inside = true;
                words.last_mut().expect("a word was begun").push(letter);
            }
        }
    }
    words
}
