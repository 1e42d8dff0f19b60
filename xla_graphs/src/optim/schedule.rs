//! Learning-rate schedules, as transformers' `get_scheduler` computes them (there as LambdaLR
//! factors).

/// The curve after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleKind {
    /// Down to 0 in a straight line.
    Linear,
    /// Down to 0 along half a cosine.
    Cosine,
    Constant,
}

impl ScheduleKind {
    /// Every value of `--lr_scheduler_type`, TrainingArguments' names, with the curve that it
    /// chooses.
    pub const WORDS: &'static [(&'static str, Self)] = &[
        ("linear", ScheduleKind::Linear),
        ("cosine", ScheduleKind::Cosine),
        ("constant", ScheduleKind::Constant),
        ("constant_with_warmup", ScheduleKind::Constant),
    ];
}

/// A learning rate for every optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    pub kind: ScheduleKind,
    pub peak: f64,
    /// Steps of the linear rise from 0.
    pub warmup: u64,
    pub total: u64,
}

impl Schedule {
    /// The learning rate of 0-based step `step`: with a warm-up, the first step's is 0.
    pub fn learning_rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step as f64 / self.warmup.max(1) as f64);
        }
        let span = self.total.saturating_sub(self.warmup).max(1) as f64;
        let factor = match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Linear => (self.total.saturating_sub(step) as f64 / span).max(0.0),
            ScheduleKind::Cosine => {
                let progress = (step - self.warmup) as f64 / span;
                (0.5 * (1.0 + (std::f64::consts::PI * progress).cos())).max(0.0)
            }
        };
        self.peak * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_rises_from_zero_and_falls_to_zero() {
        let s = Schedule {
            kind: ScheduleKind::Linear,
            peak: 0.003,
            warmup: 4,
            total: 20,
        };
        let rates: Vec<f64> = (0..=20).map(|i| s.learning_rate(i)).collect();
        assert_eq!(rates[0], 0.0);
        assert_eq!(rates[1], 0.00075);
        assert_eq!(rates[4], 0.003);
        assert_eq!(rates[12], 0.0015);
        assert_eq!(rates[20], 0.0);
    }

    #[test]
    fn cosine_is_half_way_in_the_middle() {
        let s = Schedule {
            kind: ScheduleKind::Cosine,
            peak: 1.0,
            warmup: 0,
            total: 10,
        };
        assert_eq!(s.learning_rate(0), 1.0);
        assert!((s.learning_rate(5) - 0.5).abs() < 1e-12);
        assert!(s.learning_rate(10).abs() < 1e-12);
    }
}
