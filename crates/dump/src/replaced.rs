//! A file that comes in the place of another one, whole or not at all.
//!
//! Owns: where it comes if links lead there, and who may read it. Refuses: to let anybody read it who could not read what it
//! replaces.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// As many links lead to a file at most; the kernel follows as many.
const LINKS: usize = 40;

/// The file that a path means: a link stays, and what it leads to is replaced, also where nothing is there yet.
///
/// # Errors
/// The links lead nowhere.
pub fn meant(path: &Path) -> io::Result<PathBuf> {
    let lost = match std::fs::canonicalize(path) {
        Ok(path) => return Ok(path),
        Err(error) => error,
    };
    let mut place = path.to_owned();
    for _ in 0..LINKS {
        let Ok(next) = std::fs::read_link(&place) else {
            return Ok(place);
        };
        // A link is relative to the folder that it is in.
        place = place.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(lost)
}

/// A temporary file in the folder of `path`, for whoever may read what is there. Of a new file, the umask decides.
///
/// # Errors
/// It cannot be made there.
pub fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let old = std::fs::metadata(path).ok();
    let mode = old.as_ref().map_or(0o666, |old| old.mode() & 0o777);
    let file = tempfile::Builder::new()
        .prefix(".memscope-")
        .permissions(Permissions::from_mode(mode & 0o666))
        .tempfile_in(folder)?;
    // A file of the same owner keeps its mode whatever the umask; one of another owner gives no more than that.
    if old.is_some_and(|old| {
        file.as_file()
            .metadata()
            .is_ok_and(|new| new.uid() == old.uid())
    }) {
        file.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(file)
}
