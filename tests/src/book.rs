//! The book's commands: which there are, running them, and comparing what they print with what the pages show.
//!
//! A page is README.md or a page of docs/. A *listed* command stands in a block or a table without its output, a *shown* one
//! begins with `$ ` and has its output beneath it.

mod links;
mod mask;
mod messages;
mod page;
mod rewrite;
mod scenes;
mod stage;

pub use links::{broken_links, pages_without_one_place};
pub use mask::{masked, shows};
pub use messages::Sources;
pub use page::{Block, Command, Page, all_pages, pages, shell_words, words_of_ours};
pub use rewrite::shortened;
pub use scenes::Scene;
pub use stage::Stage;
