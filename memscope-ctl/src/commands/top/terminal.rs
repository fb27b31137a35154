//! The terminal: taken at the beginning, and given back as it was, however the program ends.

use crate::failure::Failure;
use crossterm::clipboard::CopyToClipboard;
use crossterm::cursor::{Hide, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Position, Rect};
use std::io::{self, Stdout};
use std::sync::Once;
use tokio::sync::mpsc::Sender;

use super::model::Key;

/// What comes from the terminal.
pub(super) enum Input {
    Key(Key),
    /// The window has another size.
    Resized,
    /// Nothing will come any more.
    Closed,
}

/// The terminal while the view has it. It is given back when this is dropped, and before a panic is told.
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn take() -> Result<Screen, Failure> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let told = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                told(panic);
            }));
        });
        enter().inspect_err(|_| give_back()).map_err(cannot)?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()));
        let terminal = terminal.inspect_err(|_| give_back()).map_err(cannot)?;
        Ok(Screen { terminal })
    }

    /// Lets go of the terminal for a while.
    pub(super) fn leave(&mut self) {
        give_back();
    }

    /// Takes it again, and draws all of it anew.
    pub(super) fn again(&mut self) -> Result<(), Failure> {
        enter().map_err(cannot)?;
        let size = self.terminal.size().map_err(cannot)?;
        // To clear it by `clear` would ask the terminal where its cursor is, and the answer would come to the thread that reads keys.
        let area = Rect::from((Position::ORIGIN, size));
        self.terminal.resize(area).map_err(cannot)
    }

    /// Gives the terminal a text for its clipboard (the sequence OSC 52).
    pub(super) fn copy(&mut self, text: &str) -> Result<(), Failure> {
        let copy = CopyToClipboard::to_clipboard_from(text);
        crossterm::execute!(io::stdout(), copy).map_err(cannot)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

pub(super) fn cannot(source: io::Error) -> Failure {
    Failure::Output {
        what: "the terminal cannot be used for a view".into(),
        source,
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    crossterm::execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Makes the terminal what it was. It may be gone, which is no reason to complain.
fn give_back() {
    let _ = crossterm::execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// Reads keys in a thread of its own, until nobody listens any more or the terminal is gone.
pub(super) fn listen(to: Sender<Input>) {
    std::thread::spawn(move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) => match named(key) {
                    Some(key) => Input::Key(key),
                    None => continue,
                },
                Ok(Event::Resize(..)) => Input::Resized,
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => Input::Closed,
            };
            let is_last = matches!(input, Input::Closed);
            if to.blocking_send(input).is_err() || is_last {
                return;
            }
        }
    });
}

fn named(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Key::Interrupt),
            KeyCode::Char('z') => Some(Key::Suspend),
            KeyCode::Char('l') => Some(Key::Redraw),
            _ => None,
        };
    }
    Some(match key.code {
        KeyCode::Char(letter) => Key::Char(letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        _ => return None,
    })
}
