//! Progress of something long: a bar on a terminal, a plain line now and then elsewhere, nothing
//! when switched off (`--disable_tqdm`). Lines printed through it do not tear the bar. The bar and
//! the plain lines go to standard error; what `print` is given is a result and goes to standard
//! output.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Style {
    Bar,
    /// A line each time another tenth is done.
    Tenths,
    Silent,
}

impl Style {
    /// A bar if standard error is a terminal; otherwise plain lines. Training passes
    /// `otherwise = Silent`, since its log records are its plain lines.
    pub fn choose(disabled: bool, otherwise: Style) -> Style {
        match disabled {
            true => Style::Silent,
            false if std::io::stderr().is_terminal() => Style::Bar,
            false => otherwise,
        }
    }
}

/// May be shared between threads.
pub struct Progress {
    what: String,
    total: u64,
    style: Style,
    bar: ProgressBar,
    done: AtomicU64,
}

impl Progress {
    /// `what` is the verb in front (`training`, `tokenizing`), `total` the number of units to come.
    pub fn new(what: impl Into<String>, total: u64, style: Style) -> Progress {
        let what = what.into();
        let bar = match style {
            Style::Bar => ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()),
            Style::Tenths | Style::Silent => ProgressBar::hidden(),
        };
        let template = "{prefix} {bar:30} {pos}/{len} [{elapsed} < {eta}, {per_sec}] {msg}";
        bar.set_style(
            ProgressStyle::with_template(template)
                .expect("the template is a constant that a test draws"),
        );
        bar.set_prefix(what.clone());
        Progress {
            what,
            total,
            style,
            bar,
            done: AtomicU64::new(0),
        }
    }

    /// Says that `n` more units are done.
    pub fn advance(&self, n: u64) {
        let before = self.done.fetch_add(n, Ordering::Relaxed);
        self.bar.inc(n);
        if self.style == Style::Tenths
            && let Some(line) = tenth_line(&self.what, before, before + n, self.total)
        {
            eprintln!("{line}");
        }
    }

    /// Starts from `n` instead of 0: a resumed run.
    pub fn skip_to(&self, n: u64) {
        self.done.store(n, Ordering::Relaxed);
        self.bar.set_position(n);
        // The rate and the time left must not count what an earlier process did.
        self.bar.reset_eta();
    }

    /// A few words behind the bar, such as the last loss.
    pub fn message(&self, text: impl Into<String>) {
        self.bar.set_message(text.into());
    }

    /// Prints a line on standard output, above the bar.
    pub fn print(&self, line: &str) {
        self.bar.suspend(|| {
            // The reader of the output is gone: the run continues, its records are in the log file.
            let _ = writeln!(std::io::stdout(), "{line}");
        });
    }

    /// Prints a line on standard error, above the bar.
    pub fn note(&self, line: &str) {
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    /// An error on the way must not leave half a bar in front of its message.
    fn drop(&mut self) {
        self.finish();
    }
}

/// The line to print when going from `before` to `after` passes another tenth of `total`.
fn tenth_line(what: &str, before: u64, after: u64, total: u64) -> Option<String> {
    let tenth = |done: u64| (10 * done.min(total)).checked_div(total);
    (tenth(after)? > tenth(before)?).then(|| {
        format!(
            "{what}: {after}/{total} ({}%)",
            100 * after.min(total) / total
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_comes_with_every_tenth() {
        let lines: Vec<String> = (0..200)
            .filter_map(|i| tenth_line("x", i, i + 1, 200))
            .collect();
        assert_eq!(lines.len(), 10);
        assert_eq!(
            (lines[0].as_str(), lines[9].as_str()),
            ("x: 20/200 (10%)", "x: 200/200 (100%)")
        );
        assert_eq!(tenth_line("x", 0, 3, 3), Some("x: 3/3 (100%)".into()));
        assert_eq!(tenth_line("x", 0, 0, 0), None);
    }

    #[test]
    fn every_style_can_be_driven_from_threads() {
        for style in [Style::Bar, Style::Silent] {
            let progress = Progress::new("testing", 100, style);
            progress.skip_to(20);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..20).for_each(|_| progress.advance(1)));
                }
            });
            progress.message("done");
            assert_eq!(progress.done.load(Ordering::Relaxed), 100);
        }
    }

    #[test]
    fn disabled_is_silent() {
        assert_eq!(Style::choose(true, Style::Tenths), Style::Silent);
    }
}
