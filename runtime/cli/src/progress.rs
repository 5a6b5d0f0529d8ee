//! Progress on standard error: bars on a terminal, nothing elsewhere.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

/// Makes bars; silent with `--quiet` and where standard error is not a terminal.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    quiet: bool,
    shown: bool,
}

impl Progress {
    pub fn new(quiet: bool) -> Self {
        Self { quiet, shown: !quiet && std::io::stderr().is_terminal() }
    }

    /// A line for whoever waits.
    pub fn note(self, line: &str) {
        if !self.quiet {
            // Nobody may be listening.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    pub fn is_shown(self) -> bool {
        self.shown
    }

    /// A bar over bytes.
    pub fn bytes(self, what: &'static str) -> ProgressBar {
        self.bar(what, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    }

    /// A bar over a count.
    pub fn count(self, what: &'static str, total: u64) -> ProgressBar {
        let bar = self.bar(what, "{msg} {wide_bar} {pos}/{len} {eta}");
        bar.set_length(total);
        bar
    }

    fn bar(self, what: &'static str, template: &str) -> ProgressBar {
        if !self.shown {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template(template).expect("templates here are well formed");
        ProgressBar::new(0).with_style(style).with_message(what)
    }
}
