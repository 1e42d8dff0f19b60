//! Progress of something long: a bar on a terminal, a plain line now and then elsewhere, nothing
//! when switched off (`--disable_tqdm`). Lines printed through it do not tear the bar. The bar and
//! the plain lines go to standard error; what `print` is given is a result and goes to standard
//! output.

use super::printable::one_line;
use super::terminal;
use super::units::duration;
use crate::{errln, outln};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

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
        if disabled {
            Style::Silent
        } else if std::io::stderr().is_terminal() {
            Style::Bar
        } else {
            otherwise
        }
    }
}

/// The bar that stands on the terminal, for what happens elsewhere and takes long.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A bar of `total` units in the form that all of them have; `position` is indicatif's template for
/// how far it is.
pub fn bar(what: impl Into<String>, total: u64, position: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let columns = match terminal::width() {
        Some(..90) => 12,
        Some(..120) => 20,
        _ => 30,
    };
    let template = format!("{{prefix}} [{{bar:{columns}}}] {position}  {{wide_msg}}");
    let style = ProgressStyle::with_template(&template);
    let style = style.expect("templates are constants that tests draw");
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(one_line(&what.into()).into_owned());
    bar
}

/// Shows a few words behind the bar on the terminal. `false` if there is none.
pub fn show(text: &str) -> bool {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bar) = &*shown {
        bar.set_message(one_line(text).into_owned());
    }
    shown.is_some()
}

/// Prints a message on standard error, broken between words, above the bar that stands there.
pub fn say(text: &str) {
    let text = terminal::folded(text, 0);
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match shown {
        Some(bar) => bar.suspend(|| errln!("{text}")),
        None => errln!("{text}"),
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
            Style::Bar => bar(what.clone(), total, "{pos}/{len}"),
            Style::Tenths | Style::Silent => ProgressBar::hidden(),
        };
        if style == Style::Bar {
            *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
        }
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
            errln!("{line}");
        }
    }

    /// Starts from `n` instead of 0: a resumed run.
    pub fn skip_to(&self, n: u64) {
        self.done.store(n, Ordering::Relaxed);
        self.bar.set_position(n);
    }

    /// Units to come in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether a bar is drawn.
    pub fn is_drawn(&self) -> bool {
        self.style == Style::Bar
    }

    /// A few words behind the bar, such as the last loss; `unit` is the time that one more takes,
    /// from which the time left follows.
    pub fn message(&self, text: &str, unit: Duration) {
        let left = self.total.saturating_sub(self.done.load(Ordering::Relaxed));
        let left = unit.mul_f64(left as f64);
        self.bar
            .set_message(format!("{}  {} left", one_line(text), clock(left)));
    }

    /// Prints a line on standard output, above the bar.
    pub fn print(&self, line: &str) {
        self.bar.suspend(|| {
            outln!("{line}");
        });
    }

    /// Prints a line on standard error, above the bar.
    pub fn note(&self, line: &str) {
        self.bar.suspend(|| {
            errln!("{line}");
        });
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if self.style == Style::Bar {
            *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    /// An error on the way must not leave half a bar in front of its message.
    fn drop(&mut self) {
        self.finish();
    }
}

/// In whole seconds, which do not flicker.
pub fn clock(time: Duration) -> String {
    match time.as_secs_f64().round() as u64 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => duration(Duration::from_secs(seconds)),
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
            assert_eq!(show("compiling"), style == Style::Bar);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..20).for_each(|_| progress.advance(1)));
                }
            });
            progress.message("done", Duration::from_secs(1));
            assert_eq!(progress.done.load(Ordering::Relaxed), 100);
        }
        assert!(!show("nothing is shown"));
    }

    #[test]
    fn disabled_is_silent() {
        assert_eq!(Style::choose(true, Style::Tenths), Style::Silent);
    }

    #[test]
    fn the_time_left_is_in_whole_seconds() {
        assert_eq!(clock(Duration::from_millis(12_400)), "12 s");
        assert_eq!(clock(Duration::from_secs(75)), "1m 15s");
    }
}
