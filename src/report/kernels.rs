//! The report on a compiled module: its kernels by class and by layer, what to look at, its memory
//! over the schedule, and how long a step takes at least. As text, as JSON, and as a page (`page.rs`).

pub mod page;

use super::table::Table;
use super::units::{bytes, exact, flop};
use serde_json::{Value, json};

/// Buffers at the peak that the text and the page list.
const LARGEST: usize = 12;
/// Names of inputs that the text lists.
const NAMED: usize = 8;

/// What some kernels do in one execution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Kernels in the module; one in a loop counts once.
    pub kernels: u64,
    /// Launches in one execution.
    pub launches: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Operations of matmuls.
    pub flops: f64,
    /// The sum of each kernel's least time, with its launch; 0 where the device's rates are unknown.
    pub seconds: f64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.kernels += other.kernels;
        self.launches += other.launches;
        self.bytes += other.bytes;
        self.flops += other.flops;
        self.seconds += other.seconds;
    }
}

/// Kernels that a reader should look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// As `column reductions`.
    pub name: &'static str,
    /// All of them.
    pub work: Work,
    /// The model's path of the one with the most bytes.
    pub largest: String,
}

/// Exchanges between devices of one kind and size of group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collective {
    /// As HLO names it: `all-reduce`.
    pub kind: String,
    /// Devices of a group; 0: all.
    pub devices: usize,
    /// How many.
    pub count: u64,
    /// Of the whole values.
    pub bytes: u64,
    /// How many have kernels launched between their start and the wait for them.
    pub overlapped: u64,
    /// What these kernels take.
    pub overlapped_work: Work,
}

/// What became of the inputs' memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// All of them.
    pub count: usize,
    /// Donated, and taken: their memory becomes a result's.
    pub aliased: usize,
    /// Donated, but not taken: both arrays are held.
    pub not_aliased: Vec<String>,
    /// Not donated: fed, or read only.
    pub kept: Vec<String>,
}

/// A part of the step by what holds memory in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhasePeak {
    /// `forward`, `backward`, `update`.
    pub phase: &'static str,
    /// Of temporaries.
    pub bytes: u64,
    /// The model's path of what runs then.
    pub at: String,
}

/// A temporary that is alive at the peak.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buffer {
    /// Its size.
    pub bytes: u64,
    /// As HLO writes it.
    pub shape: String,
    /// The model's path of what writes it.
    pub path: String,
}

/// Memory on one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// The compiler's account: at the peak, arguments, temporaries.
    pub compiler: Option<[u64; 3]>,
    /// Temporaries at each position of the schedule, by liveness.
    pub held: Vec<u64>,
    /// The phase at each position, as a place in `phases`.
    pub phase_at: Vec<usize>,
    /// The highest of each phase, by liveness.
    pub phases: Vec<PhasePeak>,
    /// Alive where most is held, the largest first.
    pub buffers: Vec<Buffer>,
}

/// How long an execution takes at least.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// All matmuls at the assumed share of the peak, or all bytes at the bandwidth, whichever is
    /// longer, in seconds.
    pub optimistic: f64,
    /// The sum of each kernel's longer one of the two.
    pub kernels: f64,
    /// The gaps between kernels.
    pub launches: f64,
    /// The matmuls' FLOPs at the device's peak rate.
    pub at_peak: f64,
    /// The share of the peak rate that matmuls are taken to reach.
    pub peak_share: f64,
}

impl Bounds {
    /// The sum over kernels, each with its launch.
    pub fn honest(&self) -> f64 {
        self.kernels + self.launches
    }

    /// Model FLOPs utilization that this bound allows, as a share of 1.
    pub fn utilization(&self) -> f64 {
        self.at_peak / self.honest().max(f64::MIN_POSITIVE)
    }

    /// Both in one line.
    pub fn text(&self) -> String {
        format!(
            "{} by kernels ({} of launches), {} optimistic",
            milliseconds(self.honest()),
            milliseconds(self.launches),
            milliseconds(self.optimistic)
        )
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "optimistic_ms": self.optimistic * 1e3,
            "kernels_ms": self.kernels * 1e3,
            "launches_ms": self.launches * 1e3,
            "honest_ms": self.honest() * 1e3,
            "peak_share_assumed": self.peak_share,
            "share_of_peak": self.utilization(),
        })
    }
}

/// The report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelReport {
    /// The graph and its device.
    pub title: String,
    /// By class, without those that have no kernel.
    pub classes: Vec<(&'static str, Work)>,
    /// By layer, in the order of the model; each by phase, as `PHASES` has them.
    pub layers: Vec<(String, [Work; 3])>,
    /// What to look at, without what was not found.
    pub findings: Vec<Finding>,
    /// Exchanges between devices.
    pub collectives: Vec<Collective>,
    /// What became of the inputs.
    pub inputs: Inputs,
    /// Over the schedule.
    pub memory: Memory,
    /// Where the device's rates are known.
    pub bounds: Option<Bounds>,
}

/// The parts of a step, in their order.
pub const PHASES: [&str; 3] = ["forward", "backward", "update"];

const SOURCE: &str = "peak, arguments and temporaries are the compiler's account; phases and buffers are found by liveness over its schedule";
const UNKNOWN_SOURCE: &str =
    "found by liveness over the schedule; the compiler gave no account of its own";

fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}

fn aligned(align: &'static str, header: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new(align);
    table.row(header);
    for row in rows {
        table.row(row);
    }
    table.render()
}

fn paired(rows: &[[String; 2]]) -> String {
    let mut table = Table::pairs();
    for [name, value] in rows {
        table.pair(name, value);
    }
    table.render()
}

impl KernelReport {
    /// All kernels.
    pub fn total(&self) -> Work {
        let mut total = Work::default();
        self.classes.iter().for_each(|(_, work)| total += *work);
        total
    }

    /// What a row of kernels shows; its time only where rates are known.
    fn cells(&self, name: &str, work: &Work) -> Vec<String> {
        let mut cells = vec![
            name.to_string(),
            exact(work.kernels),
            bytes(work.bytes as u64),
            if work.flops > 0.0 {
                flop(work.flops)
            } else {
                String::new()
            },
        ];
        if self.bounds.is_some() {
            let share = 100.0 * work.seconds / self.total().seconds.max(f64::MIN_POSITIVE);
            cells.extend([milliseconds(work.seconds), format!("{share:.1}%")]);
        }
        cells
    }

    fn header(&self, name: &str) -> Vec<String> {
        let names = [name, "kernels", "bytes", "matmul FLOPs", "time", "share"];
        let shown = if self.bounds.is_some() { 6 } else { 4 };
        names[..shown].iter().map(|name| name.to_string()).collect()
    }

    fn class_rows(&self) -> Vec<Vec<String>> {
        let rows = self.classes.iter();
        let mut rows: Vec<_> = rows.map(|(name, work)| self.cells(name, work)).collect();
        rows.push(self.cells("all", &self.total()));
        rows
    }

    fn finding_rows(&self) -> Vec<Vec<String>> {
        let rows = self.findings.iter().map(|finding| {
            let Finding {
                name,
                work,
                largest,
            } = finding;
            let mut cells = vec![
                name.to_string(),
                exact(work.kernels),
                bytes(work.bytes as u64),
            ];
            cells.extend(self.bounds.map(|_| milliseconds(work.seconds)));
            cells.push(largest.clone());
            cells
        });
        rows.collect()
    }

    fn finding_header(&self) -> Vec<&'static str> {
        match self.bounds {
            Some(_) => vec!["to look at", "kernels", "bytes", "time", "largest in"],
            None => vec!["to look at", "kernels", "bytes", "largest in"],
        }
    }

    fn collective_rows(&self) -> Vec<Vec<String>> {
        let row = |it: &Collective| {
            let devices = match it.devices {
                0 => "all".to_string(),
                n => n.to_string(),
            };
            let meanwhile = match (it.overlapped, self.bounds) {
                (0, _) => "nothing runs meanwhile".to_string(),
                (n, Some(_)) => format!(
                    "{n} beside {} kernels, {}",
                    exact(it.overlapped_work.kernels),
                    milliseconds(it.overlapped_work.seconds)
                ),
                (n, None) => format!("{n} beside {} kernels", exact(it.overlapped_work.kernels)),
            };
            vec![
                it.kind.clone(),
                devices,
                exact(it.count),
                bytes(it.bytes),
                meanwhile,
            ]
        };
        self.collectives.iter().map(row).collect()
    }

    fn input_rows(&self) -> Vec<[String; 2]> {
        let Inputs {
            count,
            aliased,
            not_aliased,
            kept,
        } = &self.inputs;
        let mut rows = vec![[
            "inputs".to_string(),
            format!("{count}, {aliased} donated and aliased"),
        ]];
        if !not_aliased.is_empty() {
            let text = format!("{}: {}", not_aliased.len(), not_aliased.join(", "));
            rows.push(["donated, NOT aliased".to_string(), text]);
        }
        if !kept.is_empty() {
            let mut text = format!(
                "{}: {}",
                kept.len(),
                kept[..kept.len().min(NAMED)].join(", ")
            );
            if kept.len() > NAMED {
                text.push_str(", ...");
            }
            rows.push(["not donated".to_string(), text]);
        }
        rows
    }

    fn memory_rows(&self) -> Vec<[String; 2]> {
        let mut rows = Vec::new();
        if let Some([peak, arguments, temporaries]) = self.memory.compiler {
            let (arguments, temporaries) = (bytes(arguments), bytes(temporaries));
            let text = format!(
                "{}: {arguments} of arguments, {temporaries} of temporaries",
                bytes(peak)
            );
            rows.push(["peak".to_string(), text]);
        }
        for PhasePeak {
            phase,
            bytes: held,
            at,
        } in &self.memory.phases
        {
            let mut text = format!("{} of temporaries at most", bytes(*held));
            if !at.is_empty() {
                text.push_str(&format!(", at {at}"));
            }
            rows.push([format!("in {phase}"), text]);
        }
        rows
    }

    /// The largest buffers at the peak, and the others as one.
    fn buffer_rows(&self) -> Vec<Vec<String>> {
        let all = &self.memory.buffers;
        let (shown, rest) = all.split_at(all.len().min(LARGEST));
        let row = |it: &Buffer| vec![bytes(it.bytes), it.shape.clone(), it.path.clone()];
        let mut rows: Vec<_> = shown.iter().map(row).collect();
        if !rest.is_empty() {
            let sum = rest.iter().map(|buffer| buffer.bytes).sum();
            rows.push(vec![
                bytes(sum),
                format!("{} more", rest.len()),
                String::new(),
            ]);
        }
        rows
    }

    fn memory_source(&self) -> &'static str {
        match self.memory.compiler {
            Some(_) => SOURCE,
            None => UNKNOWN_SOURCE,
        }
    }

    fn bound_rows(&self) -> Vec<[String; 2]> {
        let Some(bounds) = self.bounds else {
            return Vec::new();
        };
        let share = 100.0 * bounds.peak_share;
        let row = |name: &str, value: String| [name.to_string(), value];
        vec![
            row(
                "optimistic bound",
                format!(
                    "{}: all matmuls at {share:.0}% of the peak, or all bytes at the bandwidth, whichever is longer",
                    milliseconds(bounds.optimistic)
                ),
            ),
            row(
                "honest bound",
                format!(
                    "{}: {} as the sum of each kernel's longer one of the two, {} of launches",
                    milliseconds(bounds.honest()),
                    milliseconds(bounds.kernels),
                    milliseconds(bounds.launches)
                ),
            ),
            row(
                "matmuls at the honest bound",
                format!("{:.1}% of the card's peak", 100.0 * bounds.utilization()),
            ),
        ]
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let owned = |cells: &[&str]| cells.iter().map(|cell| cell.to_string()).collect();
        let mut text = format!("{}\n", self.title);
        text.push_str(&aligned("lrrrrr", self.header("class"), self.class_rows()));
        let mut add = |table: String| text.push_str(&format!("\n{table}"));
        if !self.findings.is_empty() {
            let align = if self.bounds.is_some() {
                "lrrrl"
            } else {
                "lrrl"
            };
            add(aligned(
                align,
                owned(&self.finding_header()),
                self.finding_rows(),
            ));
        }
        if !self.collectives.is_empty() {
            let header = owned(&["collective", "devices", "count", "bytes", "overlap"]);
            add(aligned("lrrrl", header, self.collective_rows()));
        }
        let rows = [self.input_rows(), self.memory_rows()].concat();
        add(paired(&rows));
        add(format!("({})\n", self.memory_source()));
        if !self.memory.buffers.is_empty() {
            let header = owned(&["held at the peak", "shape", "written by"]);
            add(aligned("rll", header, self.buffer_rows()));
        }
        if self.bounds.is_some() {
            add(paired(&self.bound_rows()));
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let work = |work: &Work| {
            let mut object = json!({
                "kernels": work.kernels,
                "launches": work.launches,
                "bytes": work.bytes,
                "matmul_flops": work.flops,
            });
            if self.bounds.is_some() {
                object["ms"] = json!(work.seconds * 1e3);
            }
            object
        };
        let classes = self
            .classes
            .iter()
            .map(|(name, of)| (name.to_string(), work(of)));
        let layers = self.layers.iter().map(|(name, phases)| {
            let phases = PHASES
                .iter()
                .zip(phases)
                .map(|(phase, of)| (phase.to_string(), work(of)));
            json!({"layer": name, "phases": phases.collect::<serde_json::Map<_, _>>()})
        });
        let findings = self.findings.iter().map(|finding| {
            let mut object = work(&finding.work);
            object["what"] = json!(finding.name);
            object["largest_in"] = json!(finding.largest);
            object
        });
        let collectives = self.collectives.iter().map(|it| {
            json!({
                "kind": it.kind,
                "devices": it.devices,
                "count": it.count,
                "bytes": it.bytes,
                "overlapped": it.overlapped,
                "meanwhile": work(&it.overlapped_work),
            })
        });
        let phases = self.memory.phases.iter().map(
            |phase| json!({"phase": phase.phase, "temporary_bytes": phase.bytes, "at": phase.at}),
        );
        let buffers = self.memory.buffers.iter().take(LARGEST);
        let buffers =
            buffers.map(|it| json!({"bytes": it.bytes, "shape": it.shape, "written_by": it.path}));
        let [peak, arguments, temporaries] = match self.memory.compiler {
            Some(account) => account.map(|bytes| json!(bytes)),
            None => Default::default(),
        };
        json!({
            "graph": self.title,
            "total": work(&self.total()),
            "classes": classes.collect::<serde_json::Map<_, _>>(),
            "layers": layers.collect::<Vec<_>>(),
            "to_look_at": findings.collect::<Vec<_>>(),
            "collectives": collectives.collect::<Vec<_>>(),
            "inputs": {
                "count": self.inputs.count,
                "aliased": self.inputs.aliased,
                "donated_not_aliased": self.inputs.not_aliased,
                "not_donated": self.inputs.kept,
            },
            "memory": {
                "peak_bytes": peak,
                "argument_bytes": arguments,
                "temporary_bytes": temporaries,
                "phases": phases.collect::<Vec<_>>(),
                "largest_at_peak": buffers.collect::<Vec<_>>(),
                "source": self.memory_source(),
            },
            "bounds": self.bounds.map(|bounds| bounds.json()),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn report() -> KernelReport {
        let work = |kernels, bytes: f64, flops: f64, ms: f64| Work {
            kernels,
            launches: kernels as f64,
            bytes,
            flops,
            seconds: ms / 1e3,
        };
        KernelReport {
            title: "train for h200".into(),
            classes: vec![
                ("matmul, Triton", work(147, 4e9, 26.5e12, 46.0)),
                ("data movement", work(20, 1e9, 0.0, 2.0)),
            ],
            layers: vec![
                (
                    "wte".into(),
                    [work(1, 1e6, 0.0, 0.5), Work::default(), Work::default()],
                ),
                (
                    "h.0".into(),
                    [
                        work(80, 2e9, 9e12, 20.0),
                        work(80, 2e9, 17e12, 27.0),
                        work(6, 1e8, 0.0, 0.5),
                    ],
                ),
            ],
            findings: vec![Finding {
                name: "only move data",
                work: work(20, 1e9, 0.0, 2.0),
                largest: "train/<h.0>/split".into(),
            }],
            collectives: vec![Collective {
                kind: "all-reduce".into(),
                devices: 8,
                count: 6,
                bytes: 1 << 20,
                overlapped: 2,
                overlapped_work: work(9, 1e8, 0.0, 1.0),
            }],
            inputs: Inputs {
                count: 448,
                aliased: 443,
                not_aliased: vec!["exp_avg.wte.weight".into()],
                kept: (0..9).map(|n| format!("feed{n}")).collect(),
            },
            memory: Memory {
                compiler: Some([3 << 30, 1 << 30, 2 << 30]),
                held: vec![0, 1 << 30, 2 << 30, 1 << 20],
                phase_at: vec![0, 0, 1, 2],
                phases: vec![
                    PhasePeak {
                        phase: "forward",
                        bytes: 1 << 30,
                        at: "train/h.0".into(),
                    },
                    PhasePeak {
                        phase: "backward",
                        bytes: 2 << 30,
                        at: "train/backward/h.0".into(),
                    },
                    PhasePeak {
                        phase: "update",
                        bytes: 1 << 20,
                        at: String::new(),
                    },
                ],
                buffers: (0..20)
                    .map(|n| Buffer {
                        bytes: 1 << 20,
                        shape: "f32[8]".into(),
                        path: format!("train/h.{n}"),
                    })
                    .collect(),
            },
            bounds: Some(Bounds {
                optimistic: 0.0446,
                kernels: 0.047,
                launches: 0.001,
                at_peak: 0.0268,
                peak_share: 0.6,
            }),
        }
    }

    #[test]
    fn text_has_what_the_report_has() {
        let text = report().text();
        for part in [
            "matmul, Triton      147    3.7 GiB    26.5 TFLOP  46.00 ms   95.8%",
            "all                 167",
            "only move data       20  953.7 MiB  2.00 ms  train/<h.0>/split",
            "all-reduce        8      6  1.0 MiB  2 beside 9 kernels, 1.00 ms",
            "448, 443 donated and aliased",
            "donated, NOT aliased  1: exp_avg.wte.weight",
            "9: feed0, feed1, feed2, feed3, feed4, feed5, feed6, feed7, ...",
            "in backward           2.0 GiB of temporaries at most, at train/backward/h.0",
            "in update             1.0 MiB of temporaries at most\n",
            "8 more",
            "honest bound                 48.00 ms: 47.00 ms as the sum",
            "55.8% of the card's peak",
        ] {
            assert!(text.contains(part), "`{part}` is missing in:\n{text}");
        }
        let blind = KernelReport {
            bounds: None,
            ..report()
        };
        let text = blind.text();
        assert!(!text.contains(" ms") && !text.contains("bound"), "{text}");
    }

    #[test]
    fn json_has_the_same_numbers() {
        let json = report().json();
        assert_eq!(json["classes"]["matmul, Triton"]["kernels"], 147);
        assert_eq!(json["total"]["kernels"], 167);
        assert_eq!(
            json["layers"][1]["phases"]["backward"]["matmul_flops"],
            17e12
        );
        assert_eq!(
            json["inputs"]["donated_not_aliased"][0],
            "exp_avg.wte.weight"
        );
        assert_eq!(json["memory"]["peak_bytes"], 3u64 << 30);
        assert!((json["bounds"]["honest_ms"].as_f64().unwrap() - 48.0).abs() < 1e-9);
        let blind = KernelReport {
            bounds: None,
            ..report()
        };
        assert!(blind.json()["bounds"].is_null());
    }
}
