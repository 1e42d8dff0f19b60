//! The screen of `xtrain top`: progress, numbers beside the curve of the loss, devices, and what
//! was compiled.

use super::devices::DeviceUse;
use super::snapshot::{Rank, Snapshot, State};
use crate::printable::one_line;
use crate::units::{bytes, count, duration, exact};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table};
use std::time::Duration;

/// Lines of the list of graphs.
const EVENTS: u16 = 5;
/// Ranks that are shown, of one run.
const RANKS: usize = 16;
/// Characters that a run beside others needs.
const COLUMN: usize = 56;

/// What a run or a process is doing, in a word.
fn state_word(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Finished => "finished",
        State::Stopped => "stopped",
        State::Unknown => "on another machine",
    }
}

fn seconds(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

impl Snapshot {
    /// The numbers as pairs of name and value, for the screen and for `--once`.
    pub fn numbers(&self) -> Vec<(&'static str, String)> {
        let step = &self.step;
        let share = |s: f64| {
            if step.step_seconds > 0.0 {
                format!("{} ({:.0}%)", seconds(s), s / step.step_seconds * 100.0)
            } else {
                seconds(s)
            }
        };
        let mut numbers = vec![
            (
                "run",
                format!(
                    "{} (process {} on {})",
                    state_word(self.state),
                    self.pid,
                    one_line(&self.device)
                ),
            ),
            (
                "step",
                format!(
                    "{} of {}, epoch {:.2}",
                    exact(step.step),
                    exact(step.total_steps),
                    step.epoch
                ),
            ),
            (
                "loss",
                step.loss
                    .map_or("not yet".into(), |loss| format!("{loss:.4}")),
            ),
            ("learning rate", format!("{:.2e}", step.learning_rate)),
            (
                "speed",
                format!(
                    "{} tokens/s, {:.3} TFLOP/s",
                    count(step.tokens_per_second).trim(),
                    step.model_tflops
                ),
            ),
            ("step time", seconds(step.step_seconds)),
            ("  recording", share(step.trace_seconds)),
            ("  compiling", share(step.compile_seconds)),
            ("  device", share(step.execute_seconds)),
            ("  waiting for data", share(step.wait_seconds)),
        ];
        if let Some(left) = self.seconds_left {
            numbers.push(("time left", seconds(left)));
        }
        numbers.push(("last word", format!("{} ago", seconds(self.seconds_silent))));
        numbers.extend(self.processor().map(|text| ("processor", text)));
        numbers.extend(self.evaluations());
        let graphs = &self.graphs;
        numbers.push((
            "graphs",
            format!(
                "{} compiled in {}, {} loaded in {}",
                graphs.compiled,
                seconds(graphs.compile_seconds),
                graphs.loaded,
                seconds(graphs.load_seconds)
            ),
        ));
        numbers
    }

    /// The last evaluation, and the best one if that is another.
    fn evaluations(&self) -> Vec<(&'static str, String)> {
        let text = |step: u64, loss: f64| format!("loss {loss:.4} at step {}", exact(step));
        let Some((step, loss)) = self.eval_curve.last() else {
            return Vec::new();
        };
        let last = ("evaluation", text(*step as u64, *loss));
        let best = self.best_eval.filter(|best| best.step as f64 != *step);
        let best = best.map(|best| ("  best", text(best.step, best.loss)));
        std::iter::once(last).chain(best).collect()
    }

    /// What the run's processes on this machine use together.
    fn processor(&self) -> Option<String> {
        let here = self.ranks.iter().filter(|rank| rank.cpu.is_some());
        let cores: f64 = here.clone().filter_map(|rank| rank.cpu).sum();
        let memory: u64 = here.clone().filter_map(|rank| rank.memory_bytes).sum();
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let text = format!("{cores:.1} of {all} cores, {}", bytes(memory));
        here.count().gt(&0).then_some(text)
    }

    /// Each process of the run as its cells: rank, machine, process, step, state, cores, memory.
    pub fn rank_rows(&self) -> Vec<[String; 7]> {
        let cells = |rank: &Rank| {
            [
                rank.rank.to_string(),
                one_line(&rank.host).into_owned(),
                rank.pid.to_string(),
                exact(rank.step),
                state_word(rank.state).to_string(),
                rank.cpu
                    .map_or("-".to_string(), |cores| format!("{cores:.1}")),
                rank.memory_bytes.map_or("-".to_string(), bytes),
            ]
        };
        self.ranks.iter().map(cells).collect()
    }

    /// The share of its steps that it has made.
    fn done(&self) -> f64 {
        match self.step.total_steps {
            0 => 0.0,
            total => (self.step.step as f64 / total as f64).clamp(0.0, 1.0),
        }
    }

    /// The hardware or, where it reports nothing, the run's allocator; each device as its
    /// cells.
    pub fn device_rows(&self) -> Vec<[String; 5]> {
        let size = |n: Option<u64>| n.map_or("-".to_string(), bytes);
        let known = |device: &DeviceUse| {
            [
                one_line(&device.name).into_owned(),
                device
                    .utilization
                    .map_or("-".to_string(), |percent| format!("{percent:.0}%")),
                size(device.memory_used),
                size(device.memory_peak.or(device.memory_total)),
                device.source.to_string(),
            ]
        };
        if !self.hardware.is_empty() {
            return self.hardware.iter().map(known).collect();
        }
        let unsigned = |n: i64| u64::try_from(n).ok();
        let devices = self
            .step
            .devices
            .iter()
            .enumerate()
            .map(|(i, device)| DeviceUse {
                name: format!("{} {i}", device.kind),
                memory_used: unsigned(device.bytes_in_use),
                memory_peak: device.peak_bytes.and_then(unsigned),
                source: "the run",
                ..Default::default()
            });
        devices.map(|device| known(&device)).collect()
    }
}

/// The run's directory as a title.
fn directory(snapshot: &Snapshot) -> String {
    one_line(&snapshot.output_dir.display().to_string()).into_owned()
}

/// Draws one run on the whole frame, or several beside each other; on a narrow screen one below
/// the other.
pub fn draw(frame: &mut Frame, snapshots: &[Snapshot]) {
    if let [one] = snapshots {
        return draw_run(frame, one);
    }
    let [title, rest] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(frame.area());
    let name = Line::from(vec!["xtrain top".bold(), "  (q ends)".dim()]);
    frame.render_widget(name, title);
    let shares = vec![Constraint::Fill(1); snapshots.len()];
    let fits = usize::from(rest.width) >= snapshots.len() * COLUMN;
    let areas = if fits {
        Layout::horizontal(shares).split(rest)
    } else {
        Layout::vertical(shares).split(rest)
    };
    for (snapshot, area) in snapshots.iter().zip(areas.iter()) {
        draw_beside_others(frame, snapshot, *area);
    }
}

/// A run as one of several: its bar, what matters most, and its curves.
fn draw_beside_others(frame: &mut Frame, snapshot: &Snapshot, area: Rect) {
    let block = Block::bordered().title(directory(snapshot));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [progress, rest] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(inner);
    draw_progress(frame, snapshot, progress);
    let chosen = [
        "run",
        "step",
        "loss",
        "evaluation",
        "  best",
        "speed",
        "time left",
        "processor",
    ];
    let mut numbers = snapshot.numbers();
    numbers.retain(|(name, _)| chosen.contains(name));
    let height = numbers.len() as u16;
    let [left, right] = if usize::from(rest.width) >= 2 * COLUMN {
        Layout::horizontal([Constraint::Length(52), Constraint::Min(0)]).areas(rest)
    } else {
        Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(rest)
    };
    frame.render_widget(Paragraph::new(lines(&numbers)), left);
    if right.height >= 6 {
        draw_loss(frame, snapshot, right);
    }
}

/// Pairs with their values below each other.
fn lines(numbers: &[(&'static str, String)]) -> Vec<Line<'static>> {
    let width = numbers
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or(0);
    let line = |(name, value): &(&str, String)| Line::from(format!("{name:width$}  {value}"));
    numbers.iter().map(line).collect()
}

fn draw_progress(frame: &mut Frame, snapshot: &Snapshot, area: Rect) {
    let colour = if snapshot.state == State::Stopped {
        Color::Red
    } else {
        Color::Green
    };
    let done = snapshot.done();
    let left = snapshot.seconds_left;
    let left = left.map(|left| format!(", {} left", seconds(left)));
    let label = format!("{:.0}%{}", done * 100.0, left.unwrap_or_default());
    let gauge = Gauge::default().ratio(done).label(label);
    frame.render_widget(gauge.gauge_style(Style::new().fg(colour)), area);
}

fn draw_run(frame: &mut Frame, snapshot: &Snapshot) {
    let devices = snapshot.device_rows();
    let numbers = snapshot.numbers();
    let ranks = match snapshot.rank_rows() {
        rows if rows.len() > 1 => rows,
        _ => Vec::new(),
    };
    let rank_lines = match ranks.len() {
        0 => 0,
        count => count.min(RANKS) as u16 + 3,
    };
    let [title, progress, middle, processes, table, events] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(numbers.len() as u16 + 2),
        Constraint::Length(rank_lines),
        Constraint::Length(devices.len() as u16 + 3),
        Constraint::Length(EVENTS + 2),
    ])
    .areas(frame.area());
    let name = Line::from(vec![
        "xtrain top  ".bold(),
        directory(snapshot).into(),
        "  (q ends)".dim(),
    ]);
    frame.render_widget(name, title);
    draw_progress(frame, snapshot, progress);
    let [left, right] =
        Layout::horizontal([Constraint::Length(52), Constraint::Min(20)]).areas(middle);
    let numbers = Paragraph::new(lines(&numbers));
    frame.render_widget(numbers.block(Block::bordered().title("run")), left);
    draw_loss(frame, snapshot, right);
    if rank_lines > 0 {
        let title = if ranks.len() > RANKS {
            format!("ranks, {RANKS} of {}", ranks.len())
        } else {
            "ranks".to_string()
        };
        let widths = [4, 20, 9, 12, 18, 6, 11].map(Constraint::Length);
        let header = [
            "rank", "host", "process", "step", "state", "cores", "memory",
        ];
        let rows = ranks.into_iter().take(RANKS).map(Row::new);
        let rows = Table::new(rows, widths).header(Row::new(header).bold());
        frame.render_widget(rows.block(Block::bordered().title(title)), processes);
    }
    let widths = [
        Constraint::Min(16),
        Constraint::Length(6),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(15),
    ];
    let header = Row::new(["device", "busy", "memory", "peak/all", "by"]).bold();
    let rows = Table::new(devices.into_iter().map(Row::new), widths).header(header);
    frame.render_widget(rows.block(Block::bordered().title("devices")), table);
    let latest = snapshot
        .graphs
        .events
        .iter()
        .rev()
        .take(EVENTS.into())
        .map(|event| Line::from(one_line(event)));
    frame.render_widget(
        Paragraph::new(latest.collect::<Vec<_>>())
            .block(Block::bordered().title("graphs, newest first")),
        events,
    );
}

fn draw_loss(frame: &mut Frame, snapshot: &Snapshot, area: Rect) {
    let (curve, evaluated) = (&snapshot.curve, &snapshot.eval_curve);
    let title = if evaluated.is_empty() {
        Line::from("loss")
    } else {
        Line::from(vec!["loss".cyan(), ", ".into(), "evaluation".magenta()])
    };
    let block = Block::bordered().title(title);
    let all = || curve.iter().chain(evaluated);
    let (Some(first), Some(last)) = (
        all().map(|point| point.0).reduce(f64::min),
        all().map(|point| point.0).reduce(f64::max),
    ) else {
        return frame.render_widget(Paragraph::new("no step yet").block(block), area);
    };
    let low = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let high = all().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
    // A flat line still needs some height.
    let margin = ((high - low) * 0.05).max(1e-6);
    let bounds = (
        [first, last.max(first + 1.0)],
        [low - margin, high + margin],
    );
    let axis = |bounds: [f64; 2], labels: [String; 2]| {
        Axis::default()
            .bounds(bounds)
            .labels(labels)
            .style(Style::new().dim())
    };
    let line = |points, colour| {
        let line = Dataset::default().marker(Marker::Braille);
        let line = line.graph_type(GraphType::Line);
        line.style(Style::new().fg(colour)).data(points)
    };
    let data = vec![line(curve, Color::Cyan), line(evaluated, Color::Magenta)];
    let chart = Chart::new(data)
        .x_axis(axis(
            bounds.0,
            [format!("{first:.0}"), format!("{last:.0}")],
        ))
        .y_axis(axis(bounds.1, [format!("{low:.3}"), format!("{high:.3}")]));
    frame.render_widget(chart.block(block), area);
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::BestEval;
    use super::*;
    use crate::telemetry::{DeviceMemoryUse, StepEvent};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn snapshot() -> Snapshot {
        let devices = vec![DeviceMemoryUse {
            kind: "cpu".into(),
            bytes_in_use: 1 << 20,
            peak_bytes: Some(3 << 20),
            limit_bytes: None,
        }];
        Snapshot {
            output_dir: "output/run".into(),
            state: State::Running,
            device: "neuron".into(),
            pid: 42,
            step: StepEvent {
                step: 50,
                total_steps: 200,
                loss: Some(3.25),
                tokens_per_second: 12_345.0,
                step_seconds: 0.4,
                execute_seconds: 0.3,
                devices,
                ..Default::default()
            },
            seconds_left: Some(60.0),
            seconds_silent: 1.0,
            graphs: super::super::snapshot::Graphs {
                compiled: 1,
                events: vec!["compiled train in 3.5 s".into()],
                ..Default::default()
            },
            eval: None,
            best_eval: None,
            ranks: Vec::new(),
            eval_curve: Vec::new(),
            curve: (0..50)
                .map(|i| (f64::from(i), 7.0 - f64::from(i) / 20.0))
                .collect(),
            hardware: Vec::new(),
        }
    }

    fn screen(width: u16, height: u16, snapshot: &Snapshot) -> String {
        screens(width, height, std::slice::from_ref(snapshot))
    }

    fn screens(width: u16, height: u16, snapshots: &[Snapshot]) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, snapshots)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_everything() {
        let text = screen(110, 40, &snapshot());
        for part in [
            "output/run",
            "25%",
            "50 of 200",
            "3.2500",
            "tokens/s",
            "300.0 ms (75%)",
            "1m 00s",
            "compiled train in 3.5 s",
            "1.0 MiB",
            "7.000",
        ] {
            assert!(text.contains(part), "`{part}` is missing in\n{text}");
        }
    }

    #[test]
    fn what_others_wrote_moves_nothing() {
        let evil = "\u{1b}[2J\u{9b}31m\u{202e}x\n";
        let mut snapshot = launched();
        snapshot.output_dir = evil.into();
        snapshot.device = evil.into();
        snapshot.ranks[0].host = evil.into();
        snapshot.graphs.events = vec![evil.into()];
        snapshot.hardware = vec![DeviceUse {
            name: evil.into(),
            ..Default::default()
        }];
        for text in [
            screen(110, 40, &snapshot),
            screens(110, 40, &[snapshot.clone(), snapshot]),
        ] {
            assert!(text.contains("\\u001b[2J\\u009b31m"), "{text}");
            let mut lines = text.lines();
            assert!(lines.all(|line| !line.contains(['\u{1b}', '\u{9b}', '\u{202e}'])));
        }
    }

    /// With evaluations and two processes.
    fn launched() -> Snapshot {
        let rank = |rank, cpu| Rank {
            rank,
            host: "node".into(),
            pid: 40 + rank as u32,
            state: State::Running,
            step: 50,
            cpu,
            memory_bytes: Some(1 << 30),
            ..Rank::default()
        };
        Snapshot {
            output_dir: "output/launched".into(),
            ranks: vec![rank(0, Some(0.75)), rank(1, Some(1.0))],
            eval_curve: vec![(20.0, 5.5), (40.0, 5.75)],
            best_eval: Some(BestEval {
                step: 20,
                loss: 5.5,
            }),
            ..snapshot()
        }
    }

    #[test]
    fn ranks_processors_and_evaluations_are_shown() {
        let text = screen(110, 44, &launched());
        for part in [
            "1.8 of ",
            "2.0 GiB",
            "loss 5.7500 at step 40",
            "loss 5.5000 at step 20",
            "25%, 1m 00s left",
            "ranks",
            "41        50",
            "loss, evaluation",
        ] {
            assert!(text.contains(part), "`{part}` is missing in\n{text}");
        }
        assert!(!screen(110, 44, &snapshot()).contains("ranks"));
        let many = Snapshot {
            ranks: vec![launched().ranks[0].clone(); 40],
            ..launched()
        };
        assert!(screen(110, 60, &many).contains("ranks, 16 of 40"));
    }

    #[test]
    fn several_runs_stand_beside_each_other_or_below() {
        let runs = [snapshot(), launched()];
        let place = |text: &str, word: &str| {
            let line = text.lines().position(|line| line.contains(word));
            line.unwrap_or_else(|| panic!("{word} is missing in\n{text}"))
        };
        let wide = screens(160, 30, &runs);
        assert_eq!(place(&wide, "output/run"), place(&wide, "output/launched"));
        let narrow = screens(80, 50, &runs);
        assert!(place(&narrow, "output/run") < place(&narrow, "output/launched"));
        for text in [wide, narrow] {
            assert_eq!(text.matches("50 of 200").count(), 2, "{text}");
        }
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 90)] {
            screens(width, height, &runs);
        }
    }

    #[test]
    fn hardware_goes_before_the_runs_own_figures() {
        let core = DeviceUse {
            name: "chip 0 core 1".into(),
            utilization: Some(97.4),
            source: "sysfs",
            ..Default::default()
        };
        let text = screen(
            110,
            40,
            &Snapshot {
                hardware: vec![core],
                ..snapshot()
            },
        );
        assert!(
            text.contains("chip 0 core 1") && text.contains("97%") && !text.contains("the run"),
            "{text}"
        );
    }

    #[test]
    fn small_screens_and_empty_runs_are_drawn_too() {
        let empty = Snapshot {
            curve: Vec::new(),
            step: StepEvent::default(),
            seconds_left: None,
            ..snapshot()
        };
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 90)] {
            screen(width, height, &empty);
            screen(width, height, &snapshot());
        }
        let one = Snapshot {
            curve: vec![(3.0, 2.5)],
            ..snapshot()
        };
        screen(80, 24, &one);
    }
}
