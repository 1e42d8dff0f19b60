//! The losses of runs as a PNG image, for places that show no page: lines for training, squares for
//! evaluation. Drawn twice as large and averaged, which smooths edges; letters are eight by eight
//! cells.

use super::report::Report;
use crate::report::runs::Axis;
use crate::report::svg::{decimated, ticks};
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use font8x8::legacy::BASIC_LEGACY;
use std::io::Write;

const WIDTH: usize = 960;
const HEIGHT: usize = 480;
/// Pixels that become one.
const SCALE: usize = 2;

/// Around the plot.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;

/// Pixels of a letter's cell, and from one letter to the next.
const CELL: f64 = 1.5;
const ADVANCE: f64 = 8.0 * CELL;

/// Points of a line: more fall together.
const POINTS: usize = 1800;
/// Lines that have a name in the picture.
const NAMED: usize = 16;

const PAPER: Color = [255; 3];
const GRID: Color = [226; 3];
const INK: Color = [70; 3];

type Color = [u8; 3];

/// Red, green and blue, rows from the top.
struct Raster {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Raster {
    fn new(width: usize, height: usize) -> Raster {
        let pixels = PAPER.repeat(width * height);
        Raster {
            width,
            height,
            pixels,
        }
    }

    /// Fills a rectangle, as far as it is on the picture.
    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, color: Color) {
        let range = |start: f64, length: f64, end: usize| {
            let scaled =
                |value: f64| (value * SCALE as f64).round().clamp(0.0, end as f64) as usize;
            scaled(start)..scaled(start + length)
        };
        for row in range(y, height, self.height) {
            for column in range(x, width, self.width) {
                let at = (row * self.width + column) * 3;
                self.pixels[at..at + 3].copy_from_slice(&color);
            }
        }
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), color: Color) {
        const THICK: f64 = 1.5;
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let steps = (dx.abs().max(dy.abs()) * SCALE as f64).ceil().max(1.0);
        for step in 0..=steps as usize {
            let share = step as f64 / steps;
            let (x, y) = (from.0 + dx * share, from.1 + dy * share);
            self.rect(x - THICK / 2.0, y - THICK / 2.0, THICK, THICK, color);
        }
    }

    /// Writes from a place on, whose letters' upper left corner it is.
    fn text(&mut self, x: f64, y: f64, text: &str, color: Color) {
        for (place, letter) in text.chars().enumerate() {
            for (row, cells) in glyph(letter).into_iter().enumerate() {
                for column in (0..8).filter(|column| cells >> column & 1 != 0) {
                    let left = x + place as f64 * ADVANCE + f64::from(column) * CELL;
                    self.rect(left, y + row as f64 * CELL, CELL, CELL, color);
                }
            }
        }
    }

    /// Averages each square of pixels into one.
    fn reduced(&self) -> Raster {
        let (width, height) = (self.width / SCALE, self.height / SCALE);
        let mut small = Raster::new(width, height);
        for (at, value) in small.pixels.iter_mut().enumerate() {
            let (row, column, channel) = (at / 3 / width, at / 3 % width, at % 3);
            let pixel = |i: usize| {
                let (y, x) = (row * SCALE + i / SCALE, column * SCALE + i % SCALE);
                usize::from(self.pixels[(y * self.width + x) * 3 + channel])
            };
            let sum: usize = (0..SCALE * SCALE).map(pixel).sum();
            *value = (sum / (SCALE * SCALE)) as u8;
        }
        small
    }

    /// The file: its header, the rows compressed, and the end.
    fn png(&self) -> Vec<u8> {
        let mut header = Vec::new();
        header.extend((self.width as u32).to_be_bytes());
        header.extend((self.height as u32).to_be_bytes());
        // Eight bits a channel, three channels, one way each to compress, filter and interlace.
        header.extend([8, 2, 0, 0, 0]);
        let mut rows = ZlibEncoder::new(Vec::new(), Compression::default());
        for row in self.pixels.chunks(self.width * 3) {
            // A row begins with its filter: none.
            let written = rows.write_all(&[0]).and_then(|()| rows.write_all(row));
            written.expect("memory takes every byte");
        }
        let rows = rows.finish().expect("memory takes every byte");
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        for (kind, content) in [(b"IHDR", &header[..]), (b"IDAT", &rows), (b"IEND", &[])] {
            file.extend((content.len() as u32).to_be_bytes());
            let mut crc = Crc::new();
            crc.update(kind);
            crc.update(content);
            file.extend(kind);
            file.extend(content);
            file.extend(crc.sum().to_be_bytes());
        }
        file
    }
}

/// The rows of a letter from the top, the leftmost cell in the lowest bit; a block for what is not
/// ASCII.
fn glyph(letter: char) -> [u8; 8] {
    let found = BASIC_LEGACY.get(letter as usize);
    found.copied().unwrap_or([0x7e; 8])
}

/// The colour of a run: hues by the golden angle, as on the page.
fn color(run: usize) -> Color {
    let hue = (212.0 + 137.508 * run as f64) % 360.0 / 60.0;
    // 65 % saturated, 45 % light.
    let (chroma, least) = (0.585, 0.1575);
    let second = chroma * (1.0 - (hue % 2.0 - 1.0).abs());
    let channels = match hue as usize {
        0 => [chroma, second, 0.0],
        1 => [second, chroma, 0.0],
        2 => [0.0, chroma, second],
        3 => [0.0, second, chroma],
        4 => [second, 0.0, chroma],
        _ => [chroma, 0.0, second],
    };
    channels.map(|channel| ((channel + least) * 255.0_f64).round() as u8)
}

/// The losses of all runs against the step, or what takes its place; `None` without any.
pub fn png(report: &Report) -> Option<Vec<u8>> {
    let axes = Axis::ALL.into_iter();
    let (axis, curves) = axes
        .map(|axis| (axis, curves(report, axis)))
        .find(|(_, curves)| curves.iter().flatten().any(|points| !points.is_empty()))?;
    let all = || curves.iter().flatten().flatten();
    let range = |value: fn(&(f64, f64)) -> f64| {
        let values = || all().map(value);
        let low = values().fold(f64::INFINITY, f64::min);
        let high = values().fold(f64::NEG_INFINITY, f64::max);
        // A single point needs some room, too.
        let room = (high - low) * 0.03 + f64::EPSILON.max(high.abs() * 1e-6);
        (low - room, high + room)
    };
    let (across, up) = (range(|point| point.0), range(|point| point.1));
    let (width, height) = (WIDTH as f64 - LEFT - RIGHT, HEIGHT as f64 - TOP - BOTTOM);
    let x = |value: f64| LEFT + (value - across.0) / (across.1 - across.0) * width;
    let y = |value: f64| TOP + (up.1 - value) / (up.1 - up.0) * height;
    let mut raster = Raster::new(WIDTH * SCALE, HEIGHT * SCALE);
    for tick in ticks(up.0, up.1, 6) {
        raster.rect(LEFT, y(tick), width, 1.0, GRID);
        let label = number(tick);
        let left = LEFT - 8.0 - label.len() as f64 * ADVANCE;
        raster.text(left, y(tick) - 4.0 * CELL, &label, INK);
    }
    for tick in ticks(across.0.max(0.0), across.1, 8) {
        raster.rect(x(tick), TOP, 1.0, height, GRID);
        let label = number(tick);
        let left = x(tick) - label.len() as f64 * ADVANCE / 2.0;
        raster.text(left, TOP + height + 8.0, &label, INK);
    }
    raster.text(LEFT, HEIGHT as f64 - 16.0, axis.title(), INK);
    raster.text(8.0, TOP, "loss", INK);
    for (run, [trained, evaluated]) in curves.iter().enumerate() {
        let color = color(run);
        for pair in trained.windows(2) {
            let at = |point: (f64, f64)| (x(point.0), y(point.1));
            raster.line(at(pair[0]), at(pair[1]), color);
        }
        if let [(place, value)] = trained[..] {
            raster.rect(x(place) - 1.5, y(value) - 1.5, 3.0, 3.0, color);
        }
        for (place, value) in evaluated {
            raster.rect(x(*place) - 3.0, y(*value) - 3.0, 6.0, 6.0, color);
        }
    }
    let names = report.runs.iter().take(NAMED).enumerate();
    for (row, run) in names {
        let top = TOP + 8.0 + row as f64 * 16.0;
        let left = WIDTH as f64 - RIGHT - 12.0 - run.name.chars().count() as f64 * ADVANCE;
        raster.rect(left - 16.0, top + 2.0, 10.0, 6.0, color(row));
        raster.text(left, top, &run.name, INK);
    }
    Some(raster.reduced().png())
}

/// Of each run the losses of training and of evaluation that have a place on the axis.
fn curves(report: &Report, axis: Axis) -> Vec<[Vec<(f64, f64)>; 2]> {
    let runs = report.runs.iter();
    let of_run = |run: &crate::report::runs::Run| {
        ["loss", "eval_loss"].map(|key| {
            let points = run.points(key).iter();
            let points = points.map(|point| (point.place.on(axis), point.value));
            let points: Vec<_> = points
                .filter(|(place, value)| place.is_finite() && value.is_finite())
                .collect();
            decimated(&points, POINTS)
        })
    };
    runs.map(of_run).collect()
}

/// A tick without digits that say nothing.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 1e-3 => format!("{value:.0e}"),
        size if size >= 1e6 => format!("{:.1}M", value / 1e6),
        size if size >= 1e4 => format!("{:.0}k", value / 1e3),
        _ => {
            let text = format!("{value:.3}");
            text.trim_end_matches('0').trim_end_matches('.').into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_file_is_a_png_of_its_pixels() {
        let mut raster = Raster::new(4 * SCALE, 3 * SCALE);
        raster.rect(1.0, 1.0, 2.0, 1.0, [1, 2, 3]);
        // Half of a pixel's squares.
        raster.rect(0.0, 0.0, 0.5, 1.0, [0; 3]);
        // Beyond the edges.
        raster.rect(-5.0, 2.0, 100.0, 100.0, GRID);
        let small = raster.reduced();
        assert_eq!(small.pixels[..3], [127; 3]);
        assert_eq!(small.pixels[(4 + 1) * 3..(4 + 3) * 3], [1, 2, 3, 1, 2, 3]);
        assert_eq!(small.pixels[8 * 3..], GRID.repeat(4));
        let file = small.png();
        assert_eq!(file[..8], *b"\x89PNG\r\n\x1a\n");
        assert_eq!(file[12..24], *b"IHDR\0\0\0\x04\0\0\0\x03");
        // The checksum of an empty end, which every PNG has.
        assert_eq!(file[file.len() - 8..], *b"IEND\xaeB`\x82");
    }

    #[test]
    fn letters_and_numbers_are_legible() {
        let all: BTreeSet<[u8; 8]> = ('!'..='~').chain(['é']).map(glyph).collect();
        assert_eq!(all.len(), 95);
        assert_eq!(
            [number(0.5), number(12_000.0), number(-3.0)],
            ["0.5", "12k", "-3"]
        );
    }
}
