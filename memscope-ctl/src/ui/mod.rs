//! A page for the browser of the person who started this program.
//!
//! Owns: who may enter (the token, the cookie, the names of this host), connections and their limits, the files of the page, how
//! answers are sent. Refuses: what is asked of the daemon, which is the command's (`commands/ui`).

pub(crate) mod assets;
pub(crate) mod browser;
pub(crate) mod connections;
pub(crate) mod door;
pub(crate) mod exact;
pub(crate) mod reply;
mod secret;
