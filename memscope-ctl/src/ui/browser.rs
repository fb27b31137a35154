//! Opens the page in the browser of the person, where there is one.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use tempfile::NamedTempFile;
use tokio::process::Command;

/// What opens a file with the program that the person has chosen for it.
const OPENER: &str = "xdg-open";

/// A page that leads to the address. It must stay until the browser has read it.
pub(crate) struct Opened {
    _page: NamedTempFile,
}

/// Asks the desktop to open the address. `None`: there is no desktop, or this is root, and programs of root have no business in the desktop
/// of another user.
///
/// The address has the token in it. Every user of the machine can read the words of a command line, so the browser is given a file
/// that only this user can read, which leads to the address.
pub(crate) fn open(address: &str) -> Option<Opened> {
    let is_there = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let has_desktop = is_there("DISPLAY") || is_there("WAYLAND_DISPLAY");
    if !has_desktop || rustix::process::geteuid().is_root() {
        return None;
    }
    let page = page(address).ok()?;
    let child = Command::new(OPENER)
        .arg(page.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    // tokio waits for a child that nobody waits for, so that nothing is left of it.
    child.ok().map(|_| Opened { _page: page })
}

fn page(address: &str) -> io::Result<NamedTempFile> {
    let mut page = tempfile::Builder::new()
        .prefix("memscope-ui-")
        .suffix(".html")
        .permissions(Permissions::from_mode(0o600))
        .tempfile()?;
    write!(
        page,
        "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
         <meta http-equiv=\"refresh\" content=\"0;url={address}\"><title>memscope</title>"
    )?;
    page.flush()?;
    Ok(page)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_this_user_can_read_the_page() {
        let page = page("ADDRESS").unwrap();
        let mode = page.as_file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(page.path()).unwrap();
        assert!(text.contains("url=ADDRESS\""), "{text}");
    }
}
