//! What the daemon begins with: nothing, or what the one before it has left.
//!
//! Owns: the decision what can be taken over. A daemon that was killed, or that handed over, has left a journal, pinned maps and
//! links, and the list of what was traced. All of it is taken over in the same boot if the maps have the shapes that this build knows. What
//! does not fit is removed, and that is said; the processes are then attached anew. After a reboot, and after a clean stop, only the
//! rules are in force again. Refuses: the work itself (`tracer/take_over`, `memscope_log::LeftJournal`).

use std::collections::BTreeSet;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::Decoder;
use memscope_log::{ClockPair, Journal, LeftJournal};

use crate::config::{Config, PinDir};
use crate::messages::Severity;
use crate::probe::links::LinkSite;
use crate::probe::load;
use crate::probe::pins::{PinError, Pins};
use crate::replay;
use crate::tracer::{Keeping, Kept, Since, TakeOver, read_kept, write_kept};
use crate::{clock, error_chain};

/// About as many segments does a full journal have at most.
const SEGMENTS: u64 = 512;

/// What the daemon begins with.
pub struct Beginning {
    /// Epoch of the journal and of the events.
    pub epoch: u64,
    /// The journal, if one is written.
    pub journal: Option<Journal>,
    /// Decodes the records that come.
    pub decoder: Decoder,
    /// The state so far.
    pub ledger: Ledger,
    /// Where maps and links are pinned; `None`: they end with the daemon.
    pub pins: Option<Pins>,
    /// What there is to be taken over.
    pub left: Option<TakeOver>,
    /// Writes down what is traced from now on.
    pub keeping: Keeping,
    /// What users should know of it.
    pub words: Vec<(Severity, String)>,
}

/// Looks at what is there, and puts it in order.
pub fn begin(config: &Config, ledger_config: LedgerConfig) -> Result<Beginning> {
    // What lies there is of all users' processes.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&config.state_dir)
        .with_context(|| format!("cannot make {}", config.state_dir.display()))?;
    let journal = config.state_dir.join("journal");
    // What another memscoped has pinned must not be removed while it runs.
    if memscope_log::is_in_use(&journal).unwrap_or(false) {
        return Err(memscope_log::JournalError::InUse { path: journal }.into());
    }
    let mut words = Vec::new();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default();
    let mut kept = match read_kept(&config.state_dir) {
        Ok(kept) => kept,
        Err(error) => {
            words.push((
                Severity::Warning,
                format!(
                    "what an earlier memscoped has left is not taken over: {}",
                    error_chain(&error)
                ),
            ));
            None
        }
    };
    let shapes = load::shapes()?;
    let mut pins = open_pins(config, &mut words);
    let goes_on = kept
        .as_ref()
        .is_some_and(|kept| kept.boot_id == boot && !kept.stopped);
    let resumed = match (&kept, goes_on && config.journal_mib > 0) {
        (Some(kept), true) => resume(config, kept, &boot, ledger_config.clone(), &mut words)?,
        _ => None,
    };
    let fits = kept.as_ref().is_some_and(|kept| {
        let same_place = kept.pins.as_deref() == pins.as_ref().map(Pins::dir);
        same_place && kept.shapes == shapes && pins.as_ref().is_some_and(load::has_all_maps)
    });
    let taken_over = resumed.is_some() && fits;
    let untold = match (&mut kept, &resumed) {
        (Some(kept), Some(resumed)) => take_untold(kept, resumed),
        _ => BTreeSet::new(),
    };
    if !taken_over {
        remove_leftovers(kept.as_ref(), &mut pins, &mut words);
        // What this one pins before it has written down what it traces is for nobody to take over.
        if let Some(kept) = &mut kept
            && kept.pins.take().is_some()
            && let Err(error) = write_kept(&config.state_dir, kept)
        {
            let why = "what is traced could not be written down";
            words.push((Severity::Error, format!("{why}: {error}")));
        }
    }
    let position = resumed.as_ref().map(|one| one.ring_position);
    let is_resumed = resumed.is_some();
    let (epoch, journal, decoder, ledger) = match resumed {
        Some(mut one) => {
            // It has the limits of the one before.
            one.ledger.set_config(ledger_config);
            (one.epoch, Some(one.journal), one.decoder, one.ledger)
        }
        None => {
            let epoch = clock::boot_ns();
            let journal = new_journal(config, epoch, &boot, &mut words)?;
            (
                epoch,
                journal,
                Decoder::new(epoch),
                Ledger::new(ledger_config),
            )
        }
    };
    let earlier = kept.as_ref().filter(|_| is_resumed);
    let since = Since::after(earlier.and_then(|kept| kept.since), taken_over);
    let left = kept.map(|mut kept| {
        if !goes_on {
            kept.forget_processes();
        }
        TakeOver {
            kept,
            resumed: is_resumed,
            ring_position: position.filter(|_| taken_over),
            untold,
        }
    });
    Ok(Beginning {
        keeping: Keeping::new(&config.state_dir, boot, epoch, shapes, since),
        epoch,
        journal,
        decoder,
        ledger,
        pins,
        left,
        words,
    })
}

/// The place for pins, if there is one.
fn open_pins(config: &Config, words: &mut Vec<(Severity, String)>) -> Option<Pins> {
    let dir = pin_dir(config)?;
    if config.journal_mib == 0 {
        words.push((
            Severity::Info,
            "without a journal nothing outlives memscoped: after a crash it attaches anew"
                .to_owned(),
        ));
        return None;
    }
    match Pins::open(&dir) {
        Ok(pins) => Some(pins),
        Err(error) => {
            words.push((
                Severity::Warning,
                format!(
                    "probes end with memscoped, so that a crash or an upgrade loses records: {}",
                    error_chain(&error)
                ),
            ));
            None
        }
    }
}

/// Where the pins of a daemon with this state directory belong; `None`: it wants none.
fn pin_dir(config: &Config) -> Option<PathBuf> {
    match &config.pin_dir {
        PinDir::None => None,
        PinDir::At(dir) => Some(dir.clone()),
        PinDir::Usual => {
            let state = std::path::absolute(&config.state_dir).ok()?;
            Some(Path::new("/sys/fs/bpf/memscope").join(name_of(&state)))
        }
    }
}

/// A name for a directory's pins. Names in a BPF file system must not have a dot; the number keeps two directories apart whose names
/// come to the same.
fn name_of(dir: &Path) -> String {
    let bytes = dir.as_os_str().as_encoded_bytes();
    let plain = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(*byte),
        _ => '-',
    };
    let words: String = bytes.iter().take(100).map(plain).collect();
    let number = crc32fast::hash(bytes);
    format!("{}-{number:08x}", words.trim_matches('-'))
}

/// The journal of an earlier daemon, opened again, and what its records have led to.
struct Resumed {
    epoch: u64,
    journal: Journal,
    decoder: Decoder,
    ledger: Ledger,
    ring_position: u64,
}

/// Goes on with the journal of an earlier daemon; `None` if it cannot be gone on with.
fn resume(
    config: &Config,
    kept: &Kept,
    boot: &str,
    ledger_config: LedgerConfig,
    words: &mut Vec<(Severity, String)>,
) -> Result<Option<Resumed>> {
    let dir = config.state_dir.join("journal");
    let mut not_taken = |why: String| {
        words.push((
            Severity::Warning,
            format!("the state of the memscoped before is not taken over: {why}"),
        ));
    };
    let left = match LeftJournal::open(&dir, journal_config(config, kept.epoch, boot)) {
        Ok(left) => left,
        Err(error @ memscope_log::JournalError::InUse { .. }) => return Err(error.into()),
        Err(error) => {
            not_taken(error_chain(&error));
            return Ok(None);
        }
    };
    let replayed = match replay::replay_left(left.epoch_dir(), ledger_config) {
        Ok(replayed) if replayed.begins_late => {
            not_taken(
                "its journal is too small for it (--journal-mib N makes it larger)".to_owned(),
            );
            return Ok(None);
        }
        Ok(replayed) => replayed,
        Err(error) => {
            not_taken(error_chain(&error));
            return Ok(None);
        }
    };
    let mut decoder = replayed.decoder;
    let read = decoder.next_sequence();
    let journal = match left.reopen(read) {
        Ok(journal) => journal,
        Err(error) => {
            not_taken(error_chain(&error));
            return Ok(None);
        }
    };
    // Readers were told of records that the journal could not take. Their numbers are not given again.
    let untaken = journal.next_sequence().saturating_sub(read);
    decoder.seek(journal.next_sequence());
    if !replayed.warnings.is_empty() {
        words.push((
            Severity::Warning,
            format!(
                "a part of the journal is missing, and counts as lost: {}",
                replayed.warnings.join("; ")
            ),
        ));
    }
    if untaken > 0 {
        words.push((
            Severity::Warning,
            format!(
                "the journal of the memscoped before had stopped: {untaken} records are not in it, and count as lost"
            ),
        ));
    }
    Ok(Some(Resumed {
        epoch: kept.epoch,
        journal,
        decoder,
        ledger: replayed.ledger,
        ring_position: replayed.ring_position,
    }))
}

/// Takes the numbers of functions that no record explains out of what was kept: they would be given to the same functions, and never
/// explained. Returns the handles of the processes that have probes with such a number, and of those that no record has.
fn take_untold(kept: &mut Kept, resumed: &Resumed) -> BTreeSet<u32> {
    let known = resumed.ledger.processes().into_iter();
    let known: BTreeSet<u32> = known.map(|one| one.handle.0).collect();
    let is_explained = |number: u32| resumed.decoder.site(number).is_some();
    let sites = std::mem::take(&mut kept.sites).into_iter();
    let (explained, not): (Vec<_>, Vec<_>) = sites.partition(|site| is_explained(site.3));
    kept.sites = explained;
    let is_of = |link: &LinkSite| {
        not.iter().any(|(file, offset, _, _)| {
            let is_there = link.offsets.contains(offset);
            is_there && link.file.as_ref().is_none_or(|of| of == file)
        })
    };
    let processes = kept.processes.iter();
    let untold =
        processes.filter(|one| !known.contains(&one.handle) || one.links.iter().any(is_of));
    untold.map(|one| one.handle).collect()
}

fn journal_config(config: &Config, epoch: u64, boot: &str) -> memscope_log::Config {
    let (boot_ns, unix_ns) = clock::pair();
    let boot_id = memscope_log::boot_id(boot).unwrap_or_default();
    let mut journal = memscope_log::Config::new(epoch, boot_id, ClockPair { boot_ns, unix_ns });
    journal.total_bytes = config.journal_mib << 20;
    journal.segment_bytes = segment_bytes(journal.total_bytes);
    journal
}

/// Size of a segment in a journal of this size, in bytes. Whoever reads the journal opens all segments and their states, so a large journal
/// has larger ones, and not more. A small one has smaller ones, since the oldest goes as a whole.
fn segment_bytes(journal_bytes: u64) -> u64 {
    let usual = (journal_bytes / 16).clamp(256 << 10, 8 << 20);
    usual.max(journal_bytes / SEGMENTS).min(1 << 30)
}

fn new_journal(
    config: &Config,
    epoch: u64,
    boot: &str,
    words: &mut Vec<(Severity, String)>,
) -> Result<Option<Journal>> {
    if config.journal_mib == 0 {
        return Ok(None);
    }
    let dir = config.state_dir.join("journal");
    let created = Journal::create_or_wait(&dir, journal_config(config, epoch, boot));
    let (journal, failed) = created.context("the journal could not be started (--state-dir DIR puts it elsewhere, --journal-mib 0 does without)")?;
    if let Some(error) = failed {
        words.push((
            Severity::Error,
            format!(
                "the journal waits for its disk, and tracing begins without it: {}",
                error_chain(&error)
            ),
        ));
    }
    Ok(Some(journal))
}

/// Removes pins that are not taken over: their probes would write for nobody.
fn remove_leftovers(
    kept: Option<&Kept>,
    pins: &mut Option<Pins>,
    words: &mut Vec<(Severity, String)>,
) {
    let earlier = kept.and_then(|kept| kept.pins.clone());
    let own = pins.as_ref().map(|pins| pins.dir().to_owned());
    let mut places: Vec<PathBuf> = earlier.into_iter().chain(own.clone()).collect();
    places.dedup();
    for dir in places {
        match remove_pins(&dir) {
            Ok(0) => {}
            Ok(count) => words.push((
                Severity::Warning,
                if kept.is_some_and(|kept| kept.stopped) {
                    format!(
                        "{count} maps and probes that an earlier memscoped had pinned in {} were removed: it was killed while it stopped",
                        dir.display()
                    )
                } else {
                    format!(
                        "{count} maps and probes that an earlier memscoped had pinned in {} were removed: this one cannot take them over, \
                         and attaches what was traced anew",
                        dir.display()
                    )
                },
            )),
            Err(error) => words.push((
                Severity::Error,
                format!(
                    "what an earlier memscoped has pinned could not be removed: {}",
                    error_chain(&error)
                ),
            )),
        }
    }
    // The directory has gone with them.
    if let Some(dir) = own {
        *pins = Pins::open(&dir).ok();
    }
}

fn remove_pins(dir: &Path) -> Result<usize, PinError> {
    if !dir.exists() {
        return Ok(0);
    }
    Pins::open(dir)?.remove_all()
}

/// Removes what an earlier daemon has left pinned: `memscoped --cleanup`. Gives what was done, in words.
pub fn clean_up(config: &Config) -> Result<String> {
    let journal = config.state_dir.join("journal");
    if memscope_log::is_in_use(&journal).unwrap_or(false) {
        anyhow::bail!(
            "a memscoped is running with the state directory {}; stop it first (it then removes its probes itself)",
            config.state_dir.display()
        );
    }
    let kept = read_kept(&config.state_dir).unwrap_or_default();
    let earlier = kept.as_ref().and_then(|kept| kept.pins.clone());
    let mut places: Vec<PathBuf> = earlier.into_iter().chain(pin_dir(config)).collect();
    places.dedup();
    let mut removed = 0;
    for dir in places {
        removed += remove_pins(&dir)?;
    }
    if let Some(kept) = kept {
        crate::tracer::write_stopped(&config.state_dir, kept)
            .with_context(|| format!("cannot write in {}", config.state_dir.display()))?;
    }
    Ok(match removed {
        0 => "nothing was left behind".to_owned(),
        removed => format!("{removed} pinned maps and probes removed; nothing is traced any more"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_journal_has_no_more_files() {
        for mib in (0..20).map(|power| 1 << power) {
            let bytes: u64 = mib << 20;
            let segment = segment_bytes(bytes);
            assert!(bytes / segment <= SEGMENTS, "{mib} MiB");
            assert!((256 << 10..=1 << 30).contains(&segment), "{mib} MiB");
            assert!(segment * 2 <= bytes, "{mib} MiB");
        }
        // The one that there is without a setting.
        assert_eq!(segment_bytes(256 << 20), 8 << 20);
    }

    #[test]
    fn names_of_pins_have_no_dot_and_tell_directories_apart() {
        let usual = name_of(Path::new("/var/lib/memscope"));
        assert!(usual.starts_with("var-lib-memscope-"), "{usual}");
        let one = name_of(Path::new("/tmp/.a/b"));
        let other = name_of(Path::new("/tmp/-a/b"));
        assert!(!one.contains('.') && one != other, "{one} {other}");
    }
}
