//! Draws a page into a window of any size. Pure: the model in, cells of a buffer out.

use super::model::{Model, Now, Shown, View};
use super::page::{Cell, Column, Page, Tone};
use crate::render::bars::bars;
use crate::render::table::shortened;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

/// The smallest window that something can be shown in.
const LEAST_WIDTH: u16 = 40;
const LEAST_HEIGHT: u16 = 10;
/// Sentences above a table take at most this share of the window.
const SENTENCES: usize = 3;
/// Rows that a table keeps before a chart gets any.
const ROWS_BEFORE_CHARTS: usize = 8;
/// Largest number of lines of a chart's bars.
const TALLEST: usize = 8;
/// Widest column of texts where there is room.
const WIDEST: usize = 100;

/// Colours that people tell apart who see red and green alike: blue and yellow only, and never alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    pub(super) has_colours: bool,
}

impl Palette {
    /// As the environment says: `NO_COLOR` takes the colours away.
    pub(super) fn of_environment() -> Palette {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Palette {
            has_colours: !no_colour,
        }
    }

    fn coloured(self, style: Style, colour: Color) -> Style {
        match self.has_colours {
            true => style.fg(colour),
            false => style,
        }
    }

    fn tone(self, tone: Tone) -> Style {
        let style = Style::default();
        match tone {
            Tone::Plain => style,
            Tone::Quiet => style.add_modifier(Modifier::DIM),
            Tone::Loud => self.coloured(style.add_modifier(Modifier::BOLD), Color::Yellow),
        }
    }

    fn head(self) -> Style {
        self.coloured(
            Style::default().add_modifier(Modifier::BOLD),
            Color::LightBlue,
        )
    }

    fn bars(self) -> Style {
        self.coloured(Style::default(), Color::LightBlue)
    }
}

const HELP: &[(&str, &str)] = &[
    ("1 … 6, Tab", "the views"),
    (
        "↑ ↓ PgUp PgDn Home End",
        "the cursor (also k j g G), stays with its row",
    ),
    ("Enter", "further in: leaks, the line's stack, its holder"),
    ("Esc, Backspace", "back"),
    ("[ ]", "the process before, the next one"),
    ("< >", "order by another column"),
    ("r", "turn the order round"),
    ("/", "show only rows with a text; Esc shows all"),
    ("l", "show lines and frames of libraries, or hide them"),
    ("space", "pause, and go on"),
    ("← →", "while paused: earlier, later"),
    ("y", "copy file:number, by the terminal (OSC 52)"),
    ("Ctrl-L, Ctrl-Z", "draw anew; suspend"),
    ("q", "quit"),
];

/// Draws everything.
pub(super) fn draw(model: &Model, now: Now, palette: Palette, buffer: &mut Buffer) {
    let area = buffer.area;
    let mut pen = Pen {
        buffer,
        area,
        palette,
    };
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        pen.line(0, "window too small", Style::default());
        let least = format!("{LEAST_WIDTH}×{LEAST_HEIGHT} needed");
        pen.line(1, &least, Style::default());
        return;
    }
    let shown = model.shown();
    pen.bar(model.view());
    pen.about(&shown.page);
    if model.has_help() {
        pen.help();
    } else {
        pen.page(&shown);
    }
    pen.feet(model, now, &shown);
}

struct Pen<'b> {
    buffer: &'b mut Buffer,
    area: Rect,
    palette: Palette,
}

impl Pen<'_> {
    fn width(&self) -> usize {
        usize::from(self.area.width)
    }

    /// Writes a text, cut to `most` terminal columns, at a place of the window; gives the column behind it.
    fn put(&mut self, column: usize, row: usize, text: &str, most: usize, style: Style) -> usize {
        let (Ok(x), Ok(y)) = (u16::try_from(column), u16::try_from(row)) else {
            return column;
        };
        if x >= self.area.width || y >= self.area.height {
            return column;
        }
        let most = most.min(self.width() - column);
        let (x, y) = (self.area.x + x, self.area.y + y);
        let (end, _) = self.buffer.set_stringn(x, y, text, most, style);
        usize::from(end - self.area.x)
    }

    fn line(&mut self, row: usize, text: &str, style: Style) {
        let text = shortened(text, self.width());
        self.put(0, row, &text, self.width(), style);
    }

    /// The names of all views with their keys; the one that is shown stands between brackets, and inverted.
    fn bar(&mut self, here: View) {
        let mut column = 0;
        let is_wide = self.width() >= 78;
        for (index, view) in View::ALL.into_iter().enumerate() {
            let is_here = view == here;
            let name = match is_wide || is_here {
                true => format!("{} {}", index + 1, view.name()),
                false => (index + 1).to_string(),
            };
            let (text, style) = match is_here {
                true => (
                    format!("[{name}]"),
                    self.palette.head().add_modifier(Modifier::REVERSED),
                ),
                false => (format!(" {name} "), Style::default()),
            };
            column = self.put(column, 0, &text, self.width(), style);
        }
        let right = "? help";
        let at = self.width() - right.len();
        if column < at {
            self.put(at, 0, right, right.len(), self.palette.tone(Tone::Quiet));
        }
    }

    /// Whose page it is, and the moment that it describes.
    fn about(&mut self, page: &Page) {
        let moment = page.as_of.map(crate::units::moment);
        let moment = moment.map_or_else(String::new, |at| format!("as of {at}"));
        let room = self.width().saturating_sub(moment.width() + 2);
        let about = shortened(&page.about, room);
        self.put(0, 1, &about, room, self.palette.head());
        let at = self.width().saturating_sub(moment.width());
        if !moment.is_empty() && room > 0 {
            self.put(
                at,
                1,
                &moment,
                moment.width(),
                self.palette.tone(Tone::Quiet),
            );
        }
    }

    fn help(&mut self) {
        let width = HELP.iter().map(|(keys, _)| keys.width()).max().unwrap_or(0);
        for (index, (keys, what)) in HELP.iter().enumerate() {
            let row = index + 3;
            if row + 2 >= usize::from(self.area.height) {
                return;
            }
            self.put(1, row, keys, width, self.palette.head());
            let room = self.width().saturating_sub(width + 4);
            let what = shortened(what, room);
            self.put(width + 4, row, &what, room, Style::default());
        }
    }

    /// The sentences, the table and the charts, between the two lines at the top and the two at the bottom.
    fn page(&mut self, shown: &Shown) {
        let page = &shown.page;
        let height = usize::from(self.area.height);
        let bottom = height - 2;
        let mut row = 2;
        let most = height / SENTENCES;
        for say in &page.says {
            let style = self.palette.tone(say.tone);
            for line in textwrap::wrap(&say.text, self.width()) {
                if row < 2 + most {
                    self.put(0, row, &line, self.width(), style);
                    row += 1;
                }
            }
        }
        if page.rows.is_empty() {
            let nothing = textwrap::wrap(&page.nothing, self.width());
            for line in nothing.iter().take(bottom.saturating_sub(row + 1)) {
                row += 1;
                self.put(0, row, line, self.width(), Style::default());
            }
            return;
        }
        let charts = self.charts_height(page, bottom.saturating_sub(row));
        self.table(shown, row, bottom - charts);
        self.charts(page, bottom - charts, charts);
    }

    /// Lines that the charts get: what the table does not need.
    fn charts_height(&self, page: &Page, room: usize) -> usize {
        let count = page.charts.len();
        if count == 0 {
            return 0;
        }
        let table = (page.rows.len() + 1).min(room);
        let spare = room.saturating_sub(table.min(ROWS_BEFORE_CHARTS.max(room / 2)));
        // Each chart has a title, and bars in at least one line.
        let each = (spare / count).min(TALLEST + 1);
        match each {
            0 | 1 => 0,
            each => each * count,
        }
    }

    fn charts(&mut self, page: &Page, top: usize, height: usize) {
        let each = height.checked_div(page.charts.len()).unwrap_or(0);
        if each < 2 {
            return;
        }
        for (index, chart) in page.charts.iter().enumerate() {
            let row = top + index * each;
            self.line(row, &chart.title, self.palette.tone(Tone::Quiet));
            let newest = chart.levels.len().saturating_sub(self.width());
            let levels = chart.levels.get(newest..).unwrap_or_default();
            for (line, text) in bars(levels, each - 1).iter().enumerate() {
                self.put(0, row + 1 + line, text, self.width(), self.palette.bars());
            }
        }
    }

    /// The table between two lines of the window.
    fn table(&mut self, shown: &Shown, top: usize, bottom: usize) {
        let page = &shown.page;
        let has_head = page.columns.iter().any(|column| !column.title.is_empty());
        let first = top + usize::from(has_head);
        let room = bottom.saturating_sub(first);
        if room == 0 {
            return;
        }
        let places = places(page, shown.sort, self.width());
        if has_head {
            for (index, column, width) in &places {
                let Some(of) = page.columns.get(*index) else {
                    continue;
                };
                let mark = match (shown.sort == Some(*index), shown.is_reversed) {
                    (false, _) => "",
                    (true, false) => "▾",
                    (true, true) => "▴",
                };
                let title = format!("{}{mark}", of.title);
                let title = aligned(&shortened(&title, *width), *width, of.is_right);
                let style = self.palette.tone(Tone::Quiet).add_modifier(Modifier::BOLD);
                self.put(*column, top, &title, *width, style);
            }
        }
        let cursor = shown.cursor.unwrap_or_default();
        // The cursor is kept in the middle while there is more on both sides.
        let begin = cursor.saturating_sub(room / 2);
        let begin = begin.min(page.rows.len().saturating_sub(room));
        for (line, row) in page.rows.iter().skip(begin).take(room).enumerate() {
            let y = first + line;
            let is_here = shown.cursor == Some(begin + line);
            for (index, column, width) in &places {
                let (Some(of), Some(cell)) = (page.columns.get(*index), row.cells.get(*index))
                else {
                    continue;
                };
                self.cell(cell, of, *column, y, *width);
            }
            if is_here {
                self.invert(y);
            }
        }
    }

    fn cell(&mut self, cell: &Cell, of: &Column, column: usize, row: usize, width: usize) {
        if cell.levels.is_empty() {
            let text = aligned(&shortened(&cell.text, width), width, of.is_right);
            self.put(column, row, &text, width, self.palette.tone(cell.tone));
            return;
        }
        let newest = cell.levels.len().saturating_sub(width);
        let levels = cell.levels.get(newest..).unwrap_or_default();
        if let Some(text) = bars(levels, 1).first() {
            self.put(column, row, text, width, self.palette.bars());
        }
    }

    /// The row with the cursor.
    fn invert(&mut self, row: usize) {
        let Ok(row) = u16::try_from(row) else {
            return;
        };
        let line = Rect::new(self.area.x, self.area.y + row, self.area.width, 1);
        self.buffer
            .set_style(line, Style::default().add_modifier(Modifier::REVERSED));
    }

    /// The state, and the keys.
    fn feet(&mut self, model: &Model, now: Now, shown: &Shown) {
        let bottom = usize::from(self.area.height);
        let mut status = model.status(now);
        if status.is_empty() && !shown.page.limits.is_empty() {
            let codes = shown.page.limits.join(", ");
            status.push(format!(
                "not exact: {codes} (memscope-ctl stats says what that means)"
            ));
        }
        let place = shown.cursor.map_or_else(String::new, |cursor| {
            format!("{}/{}", cursor + 1, shown.page.rows.len())
        });
        let room = self.width() - place.width().min(self.width());
        let status = shortened(&status.join("; "), room.saturating_sub(1));
        self.put(0, bottom - 2, &status, room, self.palette.tone(Tone::Loud));
        self.put(
            room,
            bottom - 2,
            &place,
            place.width(),
            self.palette.tone(Tone::Quiet),
        );
        let keys = "Enter open  Esc back  / filter  < > order  space pause  y copy  ? help  q quit";
        self.line(bottom - 1, keys, self.palette.tone(Tone::Quiet));
    }
}

/// A text in a column of this width.
fn aligned(text: &str, width: usize, is_right: bool) -> String {
    let blanks = " ".repeat(width.saturating_sub(text.width()));
    match is_right {
        true => format!("{blanks}{text}"),
        false => text.to_owned(),
    }
}

/// Chooses the columns that fit into a window, with the place and the width of each.
fn places(page: &Page, sort: Option<usize>, width: usize) -> Vec<(usize, usize, usize)> {
    /// Blanks between two columns.
    const GAP: usize = 2;
    let mut chosen: Vec<(usize, &Column, usize)> = Vec::new();
    for (index, column) in page.columns.iter().enumerate() {
        let cells = || page.rows.iter().filter_map(|row| row.cells.get(index));
        let widest = cells().map(|cell| cell.text.width()).max().unwrap_or(0);
        // A column in which nothing stands takes no room.
        let is_empty = widest == 0 && cells().all(|cell| cell.levels.is_empty());
        if !is_empty || sort == Some(index) {
            // The mark of the order may stand beside the title.
            let title = column.title.width() + usize::from(!column.title.is_empty());
            chosen.push((index, column, title.max(widest)));
        }
    }
    let least =
        |(_, column, widest): &(usize, &Column, usize)| match (column.is_right, column.grows) {
            (true, _) => *widest,
            (false, true) => column.least,
            (false, false) => (*widest).min(column.least),
        };
    let needs = |chosen: &[(usize, &Column, usize)]| {
        let each: usize = chosen.iter().map(|one| least(one) + GAP).sum();
        each.saturating_sub(GAP)
    };
    while needs(&chosen) > width {
        let rank = |(index, column, _): &(usize, &Column, usize)| match sort == Some(*index) {
            true => 0,
            false => column.rank,
        };
        let last = chosen.iter().enumerate().max_by_key(|(_, one)| rank(one));
        match last {
            Some((place, one)) if rank(one) > 0 => {
                chosen.remove(place);
            }
            _ => break,
        }
    }
    // What is left goes to the texts first, one after the other, and then to the courses.
    let mut spare = width.saturating_sub(needs(&chosen));
    let mut widths: Vec<usize> = chosen.iter().map(least).collect();
    for (width, (_, column, widest)) in widths.iter_mut().zip(&chosen) {
        if !column.grows {
            let more = (*widest)
                .min(WIDEST.max(column.least))
                .saturating_sub(*width)
                .min(spare);
            let whole = if chosen.len() == 1 { spare } else { more };
            *width += whole;
            spare -= whole;
        }
    }
    if let Some(place) = chosen.iter().position(|(_, column, _)| column.grows) {
        let longest = page
            .rows
            .iter()
            .filter_map(|row| row.cells.get(chosen[place].0));
        let longest = longest.map(|cell| cell.levels.len()).max().unwrap_or(0);
        let more = longest.saturating_sub(widths[place]).min(spare);
        widths[place] += more;
    }
    let mut column = 0;
    let mut places = Vec::new();
    for ((index, _, _), wide) in chosen.iter().zip(widths) {
        if column < width {
            places.push((*index, column, wide.min(width - column)));
        }
        column += wide + GAP;
    }
    places
}
