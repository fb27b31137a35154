//! Five plots as PNG, drawn with `plotters`.
//!
//! The font is DejaVu Sans, which is part of the program: plots look the same on machines that have no fonts at all.

use crate::figures::Figures;
use crate::titan::{all, largest, one_line, together};
use memscope_units::bytes;
use plotters::backend::BitMapBackend;
use plotters::prelude::{
    AreaSeries, ChartBuilder, Circle, Color, IntoDrawingArea, IntoFont, PathElement, RGBColor,
    Rectangle, SeriesLabelPosition, Text, WHITE,
};
use plotters::series::LineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, FontStyle, TextStyle, register_font};
use std::fmt::Display;

type Area<'a> = plotters::drawing::DrawingArea<BitMapBackend<'a>, plotters::coord::Shift>;

const WIDTH: u32 = 1200;
const FONT: &str = "sans-serif";
const LABELS: i32 = 400;
/// Room for the number right of a bar.
const NUMBERS: i32 = 130;
const ROW: i32 = 26;
const TOP: i32 = 70;
/// Most characters of a label.
const MOST_LABEL: usize = 48;
/// Most ranks and courses that are drawn.
const MOST_DRAWN: usize = 64;
const COLOURS: [RGBColor; 2] = [RGBColor(38, 98, 168), RGBColor(222, 148, 56)];

const PALETTE: [RGBColor; 8] = [
    COLOURS[0],
    RGBColor(196, 60, 60),
    RGBColor(54, 140, 84),
    RGBColor(128, 84, 168),
    COLOURS[1],
    RGBColor(64, 158, 170),
    RGBColor(160, 96, 60),
    RGBColor(96, 96, 96),
];

/// Why a plot cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The library that draws refuses.
    #[error("the plot cannot be drawn: {0}")]
    Draw(String),
    /// The picture cannot be written as PNG.
    #[error("the plot cannot be written as PNG")]
    Encode(#[from] png::EncodingError),
}

fn drawn<T, E: Display>(result: Result<T, E>) -> Result<T, PlotError> {
    result.map_err(|error| PlotError::Draw(error.to_string()))
}

/// Draws all plots: names of files, and their content.
pub(crate) fn all_plots(ranks: &[Figures]) -> Result<Vec<(String, Vec<u8>)>, PlotError> {
    let registered = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    registered.map_err(|_| PlotError::Draw("its font cannot be read".to_owned()))?;
    let by_rank: Vec<Bar> = ranks
        .iter()
        .take(MOST_DRAWN)
        .map(|rank| Bar {
            label: format!("rank {}", rank.rank),
            parts: vec![rank.sums.allocated, rank.sums.cache()],
        })
        .collect();
    let categories = together(ranks.iter().flat_map(|rank| &rank.categories));
    let categories: Vec<Bar> = categories
        .iter()
        .map(|row| Bar::one(row.name.clone(), row.bytes))
        .collect();
    let top: Vec<Bar> = (1..)
        .zip(largest(ranks))
        .map(|(place, top)| {
            Bar::one(
                format!("{place}  {}  {}", top.category, top.line),
                top.bytes,
            )
        })
        .collect();
    let mut sizes = std::collections::BTreeMap::<u32, (u64, u64)>::new();
    for (size, (active, free)) in ranks.iter().flat_map(|rank| &rank.sizes) {
        let sum = sizes.entry(*size).or_default();
        *sum = (sum.0.saturating_add(*active), sum.1.saturating_add(*free));
    }
    let sizes: Vec<Bar> = sizes
        .into_iter()
        .map(|(size, (active, free))| Bar {
            label: format!("blocks from {}", bytes(1 << size)),
            parts: vec![active, free],
        })
        .collect();
    let sums = all(ranks);
    let efficiency = sums.efficiency();
    let efficiency =
        efficiency.map_or_else(String::new, |share| format!(", efficiency {share:.2} %"));
    let beyond = more(ranks.len(), "ranks");
    let overview = format!("Allocated and cache by rank{efficiency}{beyond}");
    let named = |name: &str, file: Vec<u8>| (format!("{name}.png"), file);
    Ok(vec![
        named(
            "memory_overview",
            bars(&overview, &["allocated", "cache"], &by_rank)?,
        ),
        named(
            "memory_by_category",
            bars("Allocated by category", &[], &categories)?,
        ),
        named("top_allocations", bars("The largest blocks", &[], &top)?),
        named(
            "fragmentation",
            bars(
                "Blocks by size: handed out, and free",
                &["handed out", "free"],
                &sizes,
            )?,
        ),
        named("memory_timeline", timeline(ranks)?),
    ])
}

/// One bar, made of parts.
struct Bar {
    label: String,
    parts: Vec<u64>,
}

impl Bar {
    fn one(label: String, bytes: u64) -> Bar {
        Bar {
            label,
            parts: vec![bytes],
        }
    }
}

fn picture(
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), PlotError>,
) -> Result<Vec<u8>, PlotError> {
    let mut pixels = vec![255; WIDTH as usize * height as usize * 3];
    {
        let root = BitMapBackend::with_buffer(&mut pixels, (WIDTH, height)).into_drawing_area();
        drawn(root.fill(&WHITE))?;
        draw(&root)?;
        drawn(root.present())?;
    }
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, WIDTH, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(file)
}

fn text(size: i32, horizontal: HPos) -> TextStyle<'static> {
    TextStyle::from((FONT, size).into_font())
        .color(&BLACK)
        .pos(Pos::new(horizontal, VPos::Center))
}

fn shortened(label: &str) -> String {
    let label = one_line(label);
    match label.char_indices().nth(MOST_LABEL) {
        Some((end, _)) => format!("{}…", label.get(..end).unwrap_or_default()),
        None => label,
    }
}

fn bars(title: &str, legend: &[&str], rows: &[Bar]) -> Result<Vec<u8>, PlotError> {
    let count = i32::try_from(rows.len().max(1)).unwrap_or(1);
    let height = u32::try_from(TOP + count * ROW + 20).unwrap_or(600);
    let sum = |bar: &Bar| bar.parts.iter().fold(0u64, |a, b| a.saturating_add(*b));
    let most = rows.iter().map(sum).max().unwrap_or(0).max(1);
    let wide = f64::from(WIDTH as i32 - LABELS - NUMBERS);
    picture(height, |root| {
        drawn(root.draw(&Text::new(title.to_owned(), (20, 24), text(22, HPos::Left))))?;
        for (at, (name, colour)) in (0i32..).zip(legend.iter().zip(COLOURS)) {
            let x = LABELS + at * 160;
            drawn(root.draw(&Rectangle::new([(x, 46), (x + 14, 60)], colour.filled())))?;
            drawn(root.draw(&Text::new(
                (*name).to_owned(),
                (x + 20, 53),
                text(15, HPos::Left),
            )))?;
        }
        if rows.is_empty() {
            return drawn(root.draw(&Text::new(
                "nothing".to_owned(),
                (20, TOP),
                text(15, HPos::Left),
            )));
        }
        for (at, bar) in (0i32..).zip(rows) {
            let y = TOP + at * ROW;
            let label = Text::new(
                shortened(&bar.label),
                (LABELS - 10, y + ROW / 2),
                text(14, HPos::Right),
            );
            drawn(root.draw(&label))?;
            let (mut done, mut x) = (0u64, LABELS);
            for (part, colour) in bar.parts.iter().zip(COLOURS) {
                done = done.saturating_add(*part);
                let end = LABELS + (wide * done as f64 / most as f64) as i32;
                drawn(root.draw(&Rectangle::new(
                    [(x, y + 3), (end, y + ROW - 3)],
                    colour.filled(),
                )))?;
                x = end;
            }
            let parts: Vec<String> = bar.parts.iter().map(|part| bytes(*part)).collect();
            let number = Text::new(
                parts.join(" + "),
                (x + 8, y + ROW / 2),
                text(13, HPos::Left),
            );
            drawn(root.draw(&number))?;
        }
        Ok(())
    })
}

/// What a title adds where there are more than are drawn.
fn more(count: usize, what: &str) -> String {
    match count.saturating_sub(MOST_DRAWN) {
        0 => String::new(),
        more => format!(", and {more} more {what}, which are not drawn"),
    }
}

fn timeline(ranks: &[Figures]) -> Result<Vec<u8>, PlotError> {
    let mut courses: Vec<_> = ranks
        .iter()
        .flat_map(|rank| rank.courses.iter().map(move |course| (rank.rank, course)))
        .collect();
    let beyond = more(courses.len(), "courses");
    courses.truncate(MOST_DRAWN);
    picture(640, |root| {
        let most = courses.iter().flat_map(|(_, course)| &course.points);
        let most = most
            .map(|p| p.reserved.map_or(p.allocated, |r| r.max(p.allocated)))
            .max();
        let Some(most) = most else {
            let said = match ranks.iter().any(|rank| rank.lacks_a_course) {
                true => "The course is not known: the page says why.",
                false => "There is no trace: the course is not known.",
            };
            return drawn(root.draw(&Text::new(said.to_owned(), (20, 40), text(18, HPos::Left))));
        };
        let entries = courses.iter().flat_map(|(_, course)| &course.points);
        let entries = entries.map(|point| point.entry).max().unwrap_or(0).max(1);
        let top = (most as f64 * 1.05).max(1.0);
        let mut chart = drawn(
            ChartBuilder::on(root)
                .caption(
                    format!("Handed out over the entries of the trace{beyond}"),
                    text(22, HPos::Left),
                )
                .margin(16)
                .x_label_area_size(40)
                .y_label_area_size(110)
                .build_cartesian_2d(0f64..entries as f64, 0f64..top),
        )?;
        drawn(
            chart
                .configure_mesh()
                .label_style((FONT, 14))
                .y_label_formatter(&|level| bytes(*level as u64))
                .x_label_formatter(&|entry| format!("{entry:.0}"))
                .x_desc("entry of the trace")
                .axis_desc_style((FONT, 14))
                .draw(),
        )?;
        let is_one = courses.len() == 1;
        for (place, (rank, course)) in courses.iter().enumerate() {
            let colour = *PALETTE.get(place % PALETTE.len()).unwrap_or(&COLOURS[0]);
            let level =
                |point: &crate::figures::Point| (point.entry as f64, point.allocated as f64);
            let points = course.points.iter().map(level);
            let label = format!("rank {rank}, device {}", course.device);
            if is_one {
                let area = AreaSeries::new(points, 0.0, colour.mix(0.3));
                drawn(chart.draw_series(area.border_style(colour)))?;
                let reserved = course
                    .points
                    .iter()
                    .filter_map(|p| Some((p.entry as f64, p.reserved? as f64)));
                let line = LineSeries::new(reserved, COLOURS[1].stroke_width(2));
                let line = drawn(chart.draw_series(line))?.label("reserved");
                line.legend(|(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], COLOURS[1].stroke_width(2))
                });
            } else {
                let line =
                    drawn(chart.draw_series(LineSeries::new(points, colour.stroke_width(1))))?;
                line.label(label)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
            }
            let peak = (course.peak.entry as f64, course.peak.allocated as f64);
            drawn(chart.draw_series([Circle::new(peak, 4, colour.filled())]))?;
        }
        drawn(
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .background_style(WHITE.mix(0.8))
                .label_font((FONT, 13))
                .draw(),
        )
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_title_says_how_many_are_not_drawn() {
        assert_eq!(super::more(64, "ranks"), "");
        let said = super::more(512, "ranks");
        assert_eq!(said, ", and 448 more ranks, which are not drawn");
    }
}
