//! Reports that one sends on: figures of snapshots, and the files that show them.
//!
//! Owns: the figures of torchtitan's memory analysis, XProf's memory profile and mosaic's peak, from segments, blocks, trace and
//! stacks ([`Figures`]); and how each is written: a page, text, plots, JSON and protobuf ([`files`]). Refuses: to read or write anything,
//! to ask anybody, and to read a clock.

mod contents;
mod course;
mod decided;
mod figures;
mod mosaic;
mod page;
mod picture;
mod plots;
mod room;
mod rules;
mod titan;
mod xprof;

pub use contents::{Leak, Live, Others, Report};
pub use decided::Row;
pub use figures::{DeviceCourse, Figures, MOST_TOP, Point, Sums, Top};
pub use mosaic::{Held, Peak};
pub use picture::{Action, Block, Entry, Frame, Known, Picture, Segment, State, Trace};
pub use plots::PlotError;
pub use rules::RuleSets;
pub use titan::{Compared, together};
pub use xprof::{MOST_EVENTS, Profile, space};

impl Report {
    /// Compares the report with another run, and returns the two files that say the difference.
    ///
    /// # Errors
    /// Where the difference cannot be written as JSON.
    pub fn compare(&mut self, name: &str, others: &[Figures]) -> Result<Vec<File>, ReportError> {
        let compared = titan::compare(others, &self.ranks);
        let text = titan::comparison((name, &self.name), &compared);
        self.compared = Some((name.to_owned(), compared));
        let mut files = vec![("comparison.txt".to_owned(), text.into_bytes())];
        let peak = |ranks: &[Figures]| ranks.iter().find_map(|rank| rank.peak.clone());
        if let (Some(base), Some(peak)) = (peak(others), peak(&self.ranks)) {
            files.push(("diff.json".to_owned(), mosaic::diff_json(&base, &peak)?));
        }
        Ok(files)
    }
}

/// A file: its path in the report's folder, and its content.
pub type File = (String, Vec<u8>);

/// Why a report cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A plot cannot be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// Figures cannot be written as JSON.
    #[error("the figures cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// Makes all files of a report, except those of [`Report::compare`] and [`space`].
///
/// # Errors
/// Where a plot cannot be drawn or figures cannot be written.
pub fn files(report: &Report) -> Result<Vec<File>, ReportError> {
    let ranks = &report.ranks;
    let profiles = || {
        ranks.iter().flat_map(|rank| {
            let of_rank = rank.profiles.iter();
            of_rank.map(|(device, profile)| (rank.rank, *device, profile))
        })
    };
    let mut files = vec![
        ("report.html".to_owned(), page::page(report).into_bytes()),
        (
            "analysis_report.txt".to_owned(),
            titan::report(&report.name, ranks).into_bytes(),
        ),
    ];
    files.extend(plots::all_plots(ranks)?);
    if profiles().next().is_some() {
        files.push((
            "memory_profile.json".to_owned(),
            xprof::profile_json(profiles())?,
        ));
        files.push((
            "memory_profile.pb".to_owned(),
            xprof::profile_pb(profiles()),
        ));
    }
    let peaks: Vec<&Peak> = ranks.iter().filter_map(|rank| rank.peak.as_ref()).collect();
    if !peaks.is_empty() {
        files.push(("peak.json".to_owned(), mosaic::peak_json(&peaks)?));
    }
    Ok(files)
}
