//! The screen of `xtrain top`: progress, numbers beside the curve of the loss, devices, and what
//! was compiled.

use super::devices::DeviceUse;
use super::snapshot::{Snapshot, State};
use crate::report::units::{bytes, count, duration, exact};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table};
use std::time::Duration;

/// Lines of the list of graphs.
const EVENTS: u16 = 5;

impl Snapshot {
    /// What the run is doing, in one word.
    pub fn state_word(&self) -> &'static str {
        match self.state {
            State::Running => "running",
            State::Finished => "finished",
            State::Stopped => "stopped",
            State::Unknown => "on another machine",
        }
    }

    /// The numbers as pairs of name and value, for the screen and for `--once`.
    pub fn numbers(&self) -> Vec<(&'static str, String)> {
        let step = &self.step;
        let seconds = |s: f64| duration(Duration::try_from_secs_f64(s).unwrap_or_default());
        let share = |s: f64| match step.step_seconds > 0.0 {
            true => format!("{} ({:.0}%)", seconds(s), s / step.step_seconds * 100.0),
            false => seconds(s),
        };
        let mut numbers = vec![
            (
                "run",
                format!(
                    "{} (process {} on {})",
                    self.state_word(),
                    self.pid,
                    self.device
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
        if let Some(eval) = &self.eval {
            let value = |key: &str| eval.get(key).and_then(serde_json::Value::as_f64);
            let at = value("step").unwrap_or_default();
            numbers.push((
                "evaluation",
                format!(
                    "loss {:.4} at step {at}",
                    value("eval_loss").unwrap_or(f64::NAN)
                ),
            ));
        }
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

    /// The hardware or, where it reports nothing, the run's allocator; each device as its
    /// cells.
    pub fn device_rows(&self) -> Vec<[String; 5]> {
        let size = |n: Option<u64>| n.map_or("-".to_string(), bytes);
        let known = |device: &DeviceUse| {
            [
                device.name.clone(),
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

/// Draws a snapshot on the whole frame.
pub fn draw(frame: &mut Frame, snapshot: &Snapshot) {
    let devices = snapshot.device_rows();
    let numbers = snapshot.numbers();
    let [title, progress, middle, table, events] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(numbers.len() as u16 + 2),
        Constraint::Length(devices.len() as u16 + 3),
        Constraint::Length(EVENTS + 2),
    ])
    .areas(frame.area());
    let name = Line::from(vec![
        "xtrain top  ".bold(),
        snapshot.output_dir.display().to_string().into(),
        "  (q ends)".dim(),
    ]);
    frame.render_widget(name, title);
    let step = &snapshot.step;
    let done = if step.total_steps > 0 {
        (step.step as f64 / step.total_steps as f64).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let colour = if snapshot.state == State::Stopped {
        Color::Red
    } else {
        Color::Green
    };
    frame.render_widget(
        Gauge::default()
            .ratio(done)
            .gauge_style(Style::new().fg(colour)),
        progress,
    );
    let [left, right] =
        Layout::horizontal([Constraint::Length(52), Constraint::Min(20)]).areas(middle);
    let width = numbers
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or(0);
    let lines: Vec<Line> = numbers
        .iter()
        .map(|(name, value)| Line::from(format!("{name:width$}  {value}")))
        .collect();
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title("run")),
        left,
    );
    draw_loss(frame, snapshot, right);
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
        .map(|event| Line::from(event.as_str()));
    frame.render_widget(
        Paragraph::new(latest.collect::<Vec<_>>())
            .block(Block::bordered().title("graphs, newest first")),
        events,
    );
}

fn draw_loss(frame: &mut Frame, snapshot: &Snapshot, area: Rect) {
    let curve = &snapshot.curve;
    let block = Block::bordered().title("loss");
    let (Some(first), Some(last)) = (curve.first(), curve.last()) else {
        return frame.render_widget(Paragraph::new("no step yet").block(block), area);
    };
    let low = curve
        .iter()
        .map(|point| point.1)
        .fold(f64::INFINITY, f64::min);
    let high = curve
        .iter()
        .map(|point| point.1)
        .fold(f64::NEG_INFINITY, f64::max);
    // A flat line still needs some height.
    let margin = ((high - low) * 0.05).max(1e-6);
    let bounds = (
        [first.0, last.0.max(first.0 + 1.0)],
        [low - margin, high + margin],
    );
    let axis = |bounds: [f64; 2], labels: [String; 2]| {
        Axis::default()
            .bounds(bounds)
            .labels(labels)
            .style(Style::new().dim())
    };
    let data = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().cyan())
        .data(curve);
    let chart = Chart::new(vec![data])
        .x_axis(axis(
            bounds.0,
            [format!("{:.0}", first.0), format!("{:.0}", last.0)],
        ))
        .y_axis(axis(bounds.1, [format!("{low:.3}"), format!("{high:.3}")]));
    frame.render_widget(chart.block(block), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::telemetry::{DeviceMemoryUse, StepEvent};
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
            curve: (0..50)
                .map(|i| (f64::from(i), 7.0 - f64::from(i) / 20.0))
                .collect(),
            hardware: Vec::new(),
        }
    }

    fn screen(width: u16, height: u16, snapshot: &Snapshot) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, snapshot)).unwrap();
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
