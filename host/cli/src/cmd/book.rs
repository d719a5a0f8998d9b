//! `bulkhead book`: the book in a browser. The driver performs it.

use clap::Subcommand;

/// The program that renders it.
pub const RENDERER: &str = "mdbook";
/// Advice on how to install that.
pub const ADVICE: &str = "`cargo install --locked mdbook` brings it; the pages can be read as they are, too, from docs/SUMMARY.md on";

/// Render the book, which mdBook does, as out/book
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead book                       # out/book/index.html
  bulkhead book --open                # and a browser shows it

`mdbook serve docs` renders it anew as pages change.")]
pub struct Args {
    /// Show it in a browser
    #[arg(long)]
    pub open: bool,
    /// A step, which mdBook starts; none: all of it
    #[command(subcommand)]
    pub step: Option<Step>,
}

/// A step of rendering that mdBook asks for.
#[derive(Subcommand)]
pub enum Step {
    /// What mdBook asks for: chapters on stdin, those of the rendered book on stdout
    #[command(hide = true)]
    Preprocess {
        /// The question; none: the chapters
        #[command(subcommand)]
        question: Option<Question>,
    },
}

/// A question of mdBook.
#[derive(Subcommand)]
#[expect(missing_docs, reason = "mdBook names a renderer, and reads no help")]
pub enum Question {
    /// Whether chapters can be made for a renderer: for each
    Supports { renderer: String },
}
