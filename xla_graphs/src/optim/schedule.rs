//! Learning-rate schedules, as transformers' `get_scheduler` computes them (there as LambdaLR
//! factors).

use super::arguments::{ArgumentError, ArgumentReader, Arguments};
use super::plateau::PlateauRule;
use std::f64::consts::PI;

/// A value of `--lr_scheduler_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleType {
    /// [`ScheduleKind::Linear`]
    Linear,
    /// [`ScheduleKind::Cosine`]
    Cosine,
    /// [`ScheduleKind::CosineWithRestarts`]
    CosineWithRestarts,
    /// [`ScheduleKind::Polynomial`]
    Polynomial,
    /// [`ScheduleKind::Constant`]
    Constant,
    /// [`ScheduleKind::ConstantWithWarmup`]
    ConstantWithWarmup,
    /// [`ScheduleKind::InverseSqrt`]
    InverseSqrt,
    /// [`ScheduleKind::CosineWithMinLr`]
    CosineWithMinLr,
    /// [`ScheduleKind::CosineWarmupWithMinLr`]
    CosineWarmupWithMinLr,
    /// [`ScheduleKind::WarmupStableDecay`]
    WarmupStableDecay,
    /// [`ScheduleKind::ReduceLrOnPlateau`]
    ReduceLrOnPlateau,
}

impl ScheduleType {
    /// Every value of `--lr_scheduler_type`, TrainingArguments' names, with the schedule that it
    /// chooses.
    pub const WORDS: &'static [(&'static str, Self)] = &[
        ("linear", ScheduleType::Linear),
        ("cosine", ScheduleType::Cosine),
        ("cosine_with_restarts", ScheduleType::CosineWithRestarts),
        ("polynomial", ScheduleType::Polynomial),
        ("constant", ScheduleType::Constant),
        ("constant_with_warmup", ScheduleType::ConstantWithWarmup),
        ("inverse_sqrt", ScheduleType::InverseSqrt),
        ("cosine_with_min_lr", ScheduleType::CosineWithMinLr),
        (
            "cosine_warmup_with_min_lr",
            ScheduleType::CosineWarmupWithMinLr,
        ),
        ("warmup_stable_decay", ScheduleType::WarmupStableDecay),
        ("reduce_lr_on_plateau", ScheduleType::ReduceLrOnPlateau),
    ];

    /// Its name as the value of the flag.
    pub fn name(self) -> &'static str {
        let named = Self::WORDS.iter().find(|(_, kind)| *kind == self);
        named.expect("every schedule is in the list").0
    }

    /// The schedule with its arguments, by the names of `--lr_scheduler_kwargs`.
    ///
    /// # Errors
    /// If it does not take one of them, one is missing, or a value is out of range.
    pub fn with(self, given: &Arguments) -> Result<ScheduleKind, ArgumentError> {
        let name = self.name();
        let mut args = ArgumentReader::new(name, given);
        let cycles = |args: &mut ArgumentReader| args.not_negative("num_cycles", 0.5);
        let kind = match self {
            ScheduleType::Linear => ScheduleKind::Linear,
            ScheduleType::Cosine => ScheduleKind::Cosine {
                cycles: cycles(&mut args),
            },
            ScheduleType::CosineWithRestarts => ScheduleKind::CosineWithRestarts {
                cycles: args.not_negative("num_cycles", 1.0),
            },
            ScheduleType::Polynomial => ScheduleKind::Polynomial {
                end: args.not_negative("lr_end", 1e-7),
                power: args.not_negative("power", 1.0),
            },
            ScheduleType::Constant => ScheduleKind::Constant,
            ScheduleType::ConstantWithWarmup => ScheduleKind::ConstantWithWarmup,
            ScheduleType::InverseSqrt => ScheduleKind::InverseSqrt {
                timescale: args.optional_count("timescale", 1),
            },
            ScheduleType::CosineWithMinLr => ScheduleKind::CosineWithMinLr {
                cycles: cycles(&mut args),
                floor: floor(&mut args),
            },
            ScheduleType::CosineWarmupWithMinLr => ScheduleKind::CosineWarmupWithMinLr {
                cycles: cycles(&mut args),
                floor: floor(&mut args),
                first: args.optional_number("warmup_lr_rate", 0.0..=1.0, "a number from 0 to 1"),
            },
            ScheduleType::WarmupStableDecay => ScheduleKind::WarmupStableDecay {
                decay_steps: args.required_count("num_decay_steps", 0),
                stable_steps: args.optional_count("num_stable_steps", 0),
                rise: args.choice("warmup_type", Curve::LINEAR_FIRST),
                fall: args.choice("decay_type", Curve::COSINE_FIRST),
                floor: args.number("min_lr_ratio", 0.0, 0.0..=1.0, "a number from 0 to 1"),
                cycles: cycles(&mut args),
            },
            ScheduleType::ReduceLrOnPlateau => {
                ScheduleKind::ReduceLrOnPlateau(PlateauRule::from_arguments(&mut args))
            }
        };
        args.finish(kind)
    }
}

/// `min_lr` or `min_lr_rate`, one of which must be given.
fn floor(args: &mut ArgumentReader) -> Floor {
    const RANGE: &str = "a number that is 0 or more";
    let rate = args.optional_number("min_lr", 0.0..=f64::MAX, RANGE);
    let share = args.optional_number("min_lr_rate", 0.0..=f64::MAX, RANGE);
    match (rate, share) {
        (Some(rate), None) => Floor::Rate(rate),
        (None, Some(share)) => Floor::Share(share),
        (None, None) => {
            args.refuse("min_lr (a learning rate) or min_lr_rate (a share of the peak) is missing");
            Floor::Share(0.0)
        }
        (Some(_), Some(_)) => {
            args.refuse("min_lr and min_lr_rate exclude each other");
            Floor::Share(0.0)
        }
    }
}

/// Where a schedule ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Floor {
    /// A learning rate.
    Rate(f64),
    /// A share of the peak.
    Share(f64),
}

/// How a rate rises or falls in `warmup_stable_decay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// A straight line.
    Linear,
    /// A cosine.
    Cosine,
    /// `1-sqrt`: falls by the square root of the share of steps that have passed; rises in reverse.
    OneMinusSqrt,
}

impl Curve {
    const LINEAR_FIRST: &'static [(&'static str, Self)] = &[
        ("linear", Curve::Linear),
        ("cosine", Curve::Cosine),
        ("1-sqrt", Curve::OneMinusSqrt),
    ];
    const COSINE_FIRST: &'static [(&'static str, Self)] = &[
        ("cosine", Curve::Cosine),
        ("linear", Curve::Linear),
        ("1-sqrt", Curve::OneMinusSqrt),
    ];
}

/// A schedule with its arguments. All but [`ScheduleKind::Constant`] and
/// [`ScheduleKind::ReduceLrOnPlateau`] begin with a warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScheduleKind {
    /// Down to 0 in a straight line.
    Linear,
    /// Along `cycles` waves of a cosine: half of one ends at 0.
    Cosine {
        /// Waves from the peak; a half ends at 0.
        cycles: f64,
    },
    /// `cycles` times along half a cosine, from the peak to 0 each time.
    CosineWithRestarts {
        /// Times that the rate falls to 0.
        cycles: f64,
    },
    /// Down to `end` along a power of what remains.
    Polynomial {
        /// The learning rate at the end (`lr_end`).
        end: f64,
        /// The exponent; 1 is a straight line.
        power: f64,
    },
    /// The peak in every step, without a warm-up.
    Constant,
    /// The peak after the warm-up.
    ConstantWithWarmup,
    /// By the inverse square root of the steps, counted in units of `timescale`, by default the
    /// steps of the warm-up or 10,000.
    InverseSqrt {
        /// Steps of a unit; `None`: the warm-up's, or 10,000 without one.
        timescale: Option<u64>,
    },
    /// A cosine that ends at `floor`.
    CosineWithMinLr {
        /// Waves of the cosine; a half ends at the floor.
        cycles: f64,
        /// Where the rate ends.
        floor: Floor,
    },
    /// The same one step earlier, with a warm-up that starts at the share `first` of the peak, by
    /// default at that of one of its steps.
    CosineWarmupWithMinLr {
        /// Waves of the cosine; a half ends at the floor.
        cycles: f64,
        /// Where the rate ends.
        floor: Floor,
        /// Share of the peak in step 0.
        first: Option<f64>,
    },
    /// A warm-up from the share `floor` of the peak, the peak, and a decay to `floor`.
    WarmupStableDecay {
        /// Steps of the decay.
        decay_steps: u64,
        /// By default what the warm-up and the decay leave of all steps.
        stable_steps: Option<u64>,
        /// How the rate rises (`warmup_type`).
        rise: Curve,
        /// How the rate falls (`decay_type`).
        fall: Curve,
        /// Share of the peak at both ends (`min_lr_ratio`).
        floor: f64,
        /// Waves of a cosine; a half ends at the floor.
        cycles: f64,
    },
    /// The peak, until evaluations decide otherwise ([`Plateau`](super::Plateau)).
    ReduceLrOnPlateau(PlateauRule),
}

impl ScheduleKind {
    /// The schedule's name as the value of `--lr_scheduler_type`.
    pub fn name(&self) -> &'static str {
        let kind = match self {
            ScheduleKind::Linear => ScheduleType::Linear,
            ScheduleKind::Cosine { .. } => ScheduleType::Cosine,
            ScheduleKind::CosineWithRestarts { .. } => ScheduleType::CosineWithRestarts,
            ScheduleKind::Polynomial { .. } => ScheduleType::Polynomial,
            ScheduleKind::Constant => ScheduleType::Constant,
            ScheduleKind::ConstantWithWarmup => ScheduleType::ConstantWithWarmup,
            ScheduleKind::InverseSqrt { .. } => ScheduleType::InverseSqrt,
            ScheduleKind::CosineWithMinLr { .. } => ScheduleType::CosineWithMinLr,
            ScheduleKind::CosineWarmupWithMinLr { .. } => ScheduleType::CosineWarmupWithMinLr,
            ScheduleKind::WarmupStableDecay { .. } => ScheduleType::WarmupStableDecay,
            ScheduleKind::ReduceLrOnPlateau(_) => ScheduleType::ReduceLrOnPlateau,
        };
        kind.name()
    }

    /// Whether it has a meaning with this peak.
    ///
    /// # Errors
    /// If it ends at a rate that the peak must be above, as transformers has it.
    pub fn check_peak(&self, peak: f64) -> Result<(), ArgumentError> {
        match *self {
            ScheduleKind::Polynomial { end, .. } if peak <= end => Err(ArgumentError(format!(
                "polynomial: lr_end must be below the learning rate, {peak:?}, found `{end:?}`"
            ))),
            ScheduleKind::CosineWithMinLr {
                floor: Floor::Rate(_),
                ..
            }
            | ScheduleKind::CosineWarmupWithMinLr {
                floor: Floor::Rate(_),
                ..
            } if peak == 0.0 => Err(ArgumentError(
                "min_lr must be reached from a learning rate above 0".into(),
            )),
            _ => Ok(()),
        }
    }
}

/// A learning rate for every optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// How the rate goes from step to step.
    pub kind: ScheduleKind,
    /// The learning rate at the end of the warm-up.
    pub peak: f64,
    /// Steps of the rise at the beginning.
    pub warmup: u64,
    /// Steps of the run, the warm-up's included.
    pub total: u64,
}

impl Schedule {
    /// This rate at every step, however many there are.
    pub fn constant(peak: f64) -> Schedule {
        Schedule {
            kind: ScheduleKind::Constant,
            peak,
            warmup: 0,
            total: 1,
        }
    }

    /// The learning rate of 0-based step `step`.
    pub fn learning_rate(&self, step: u64) -> f64 {
        self.peak * self.factor(step)
    }

    /// The share of the peak. The order of operations is Python's, so that the results are too.
    fn factor(&self, step: u64) -> f64 {
        let (at, warmup, total) = (step as f64, self.warmup as f64, self.total as f64);
        let is_warmup = step < self.warmup;
        let rise = at / warmup.max(1.0);
        let span = (total - warmup).max(1.0);
        let progress = (at - warmup) / span;
        match self.kind {
            ScheduleKind::Constant | ScheduleKind::ReduceLrOnPlateau(_) => 1.0,
            ScheduleKind::CosineWarmupWithMinLr {
                cycles,
                floor,
                first,
            } => match first {
                Some(first) if is_warmup => first + (1.0 - first) * at / (warmup - 1.0).max(1.0),
                None if is_warmup => (at + 1.0) / warmup.max(1.0),
                _ => {
                    let progress = (at - warmup + 1.0) / span;
                    lifted(wave(cycles, progress), self.floor(floor))
                }
            },
            ScheduleKind::WarmupStableDecay {
                decay_steps,
                stable_steps,
                rise: curve,
                fall,
                floor,
                cycles,
            } => {
                let decay = decay_steps as f64;
                // Below 0 where the warm-up and the decay take more than all steps: the decay then
                // begins on the way.
                let stable = stable_steps.map_or(total - warmup - decay, |steps| steps as f64);
                if is_warmup {
                    let factor = match curve {
                        Curve::Linear => rise,
                        Curve::Cosine => 0.5 * (1.0 - (PI * rise).cos()),
                        Curve::OneMinusSqrt => 1.0 - (1.0 - rise).sqrt(),
                    };
                    lifted(factor, floor)
                } else if at < warmup + stable {
                    1.0
                } else if at < warmup + stable + decay {
                    let progress = (at - warmup - stable) / decay.max(1.0);
                    let factor = match fall {
                        Curve::Linear => 1.0 - progress,
                        Curve::Cosine => wave(cycles, progress),
                        Curve::OneMinusSqrt => 1.0 - progress.sqrt(),
                    };
                    lifted(factor, floor)
                } else {
                    floor
                }
            }
            _ if is_warmup => rise,
            ScheduleKind::ConstantWithWarmup => 1.0,
            ScheduleKind::Linear => ((total - at) / span).max(0.0),
            ScheduleKind::Cosine { cycles } => wave(cycles, progress).max(0.0),
            ScheduleKind::CosineWithRestarts { .. } if progress >= 1.0 => 0.0,
            ScheduleKind::CosineWithRestarts { cycles } => {
                (0.5 * (1.0 + (PI * ((cycles * progress) % 1.0)).cos())).max(0.0)
            }
            ScheduleKind::Polynomial { end, .. } if step > self.total => end / self.peak,
            ScheduleKind::Polynomial { end, power } => {
                let remaining = 1.0 - progress;
                ((self.peak - end) * remaining.powf(power) + end) / self.peak
            }
            ScheduleKind::InverseSqrt { timescale } => {
                let usual = if self.warmup > 0 { warmup } else { 10_000.0 };
                let timescale = timescale.map_or(usual, |steps| steps as f64);
                let shift = timescale - warmup;
                1.0 / ((at + shift) / timescale).sqrt()
            }
            ScheduleKind::CosineWithMinLr { cycles, floor } => {
                lifted(wave(cycles, progress), self.floor(floor))
            }
        }
    }

    /// As a share of the peak.
    fn floor(&self, floor: Floor) -> f64 {
        match floor {
            Floor::Rate(rate) => rate / self.peak,
            Floor::Share(share) => share,
        }
    }
}

/// `cycles` waves of a cosine from 1 to 0 and back.
fn wave(cycles: f64, progress: f64) -> f64 {
    0.5 * (1.0 + (PI * cycles * 2.0 * progress).cos())
}

/// From what falls to 0, what falls to `floor`.
fn lifted(factor: f64, floor: f64) -> f64 {
    (factor * (1.0 - floor) + floor).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::arguments::Argument;
    use super::*;

    fn schedule(kind: ScheduleKind, warmup: u64) -> Schedule {
        Schedule {
            kind,
            peak: 0.003,
            warmup,
            total: 20,
        }
    }

    #[test]
    fn linear_rises_from_zero_and_falls_to_zero() {
        let s = schedule(ScheduleKind::Linear, 4);
        let rates: Vec<f64> = (0..=20).map(|i| s.learning_rate(i)).collect();
        assert_eq!(rates[0], 0.0);
        assert_eq!(rates[1], 0.00075);
        assert_eq!(rates[4], 0.003);
        assert_eq!(rates[12], 0.0015);
        assert_eq!(rates[20], 0.0);
    }

    #[test]
    fn cosine_is_half_way_in_the_middle() {
        let s = schedule(ScheduleKind::Cosine { cycles: 0.5 }, 0);
        assert_eq!(s.learning_rate(0), 0.003);
        assert!((s.learning_rate(10) - 0.0015).abs() < 1e-12);
        assert!(s.learning_rate(20).abs() < 1e-12);
    }

    #[test]
    fn only_constant_has_no_warm_up() {
        assert_eq!(schedule(ScheduleKind::Constant, 4).learning_rate(0), 0.003);
        let warm = schedule(ScheduleKind::ConstantWithWarmup, 4);
        assert_eq!((warm.learning_rate(0), warm.learning_rate(4)), (0.0, 0.003));
    }

    fn arguments(given: &[(&str, Argument)]) -> Arguments {
        let owned = given.iter().map(|(name, x)| (name.to_string(), x.clone()));
        owned.collect()
    }

    #[test]
    fn arguments_are_taken_by_name() {
        use Argument::{Number, Text};
        let given = arguments(&[
            ("num_decay_steps", Number(8.0)),
            ("decay_type", Text("1-sqrt".into())),
        ]);
        let found = ScheduleType::WarmupStableDecay.with(&given).unwrap();
        let expected = ScheduleKind::WarmupStableDecay {
            decay_steps: 8,
            stable_steps: None,
            rise: Curve::Linear,
            fall: Curve::OneMinusSqrt,
            floor: 0.0,
            cycles: 0.5,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn wrong_arguments_are_refused_by_name() {
        use Argument::{Number, Text};
        let refused = |kind: ScheduleType, given: &[(&str, Argument)]| {
            kind.with(&arguments(given)).unwrap_err().to_string()
        };
        for (kind, given, part) in [
            (
                ScheduleType::Linear,
                ("power", Number(2.0)),
                "linear takes no arguments, found `power`",
            ),
            (
                ScheduleType::Polynomial,
                ("num_cycles", Number(2.0)),
                "polynomial has no argument `num_cycles`; it takes lr_end, power",
            ),
            (
                ScheduleType::Cosine,
                ("num_cycles", Text("two".into())),
                "cosine: num_cycles must be a number that is 0 or more, found `two`",
            ),
            (
                ScheduleType::CosineWithMinLr,
                ("num_cycles", Number(1.0)),
                "min_lr_rate (a share of the peak) is missing",
            ),
            (
                ScheduleType::WarmupStableDecay,
                ("num_decay_steps", Number(1.5)),
                "num_decay_steps must be a whole number",
            ),
            (
                ScheduleType::WarmupStableDecay,
                ("min_lr_ratio", Number(0.5)),
                "num_decay_steps is missing",
            ),
        ] {
            let found = refused(kind, &[given]);
            assert!(found.contains(part), "{found}");
        }
        let both = [("min_lr", Number(0.1)), ("min_lr_rate", Number(0.1))];
        let found = refused(ScheduleType::CosineWithMinLr, &both);
        assert!(found.contains("exclude each other"), "{found}");
    }

    #[test]
    fn the_end_of_a_polynomial_is_below_its_peak() {
        let kind = ScheduleType::Polynomial.with(&Arguments::default());
        let kind = kind.unwrap();
        assert!(kind.check_peak(1e-3).is_ok());
        assert!(kind.check_peak(1e-7).is_err());
    }
}
