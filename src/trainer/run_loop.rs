//! The training loop: epochs of optimizer steps of microbatches. Logging, evaluating, saving and
//! stopping are hooks; they can look at the session between steps but do not change numbers.
//!
//! The loop stays one step ahead of what it reads: the metrics of step n are waited for after step
//! n + 1 was handed to the device, except where a hook needs the state exactly as it is after step
//! n.

use super::error::{Error, Result};
use super::feed::DeviceBatch;
use super::run_state::{DataPosition, RunState};
use super::session::Session;
use super::step::{MetricsReader, Phase, StepMetrics, TrainStep, read_metrics};
use std::ops::AddAssign;
use std::time::{Duration, Instant};
use xtrain_report::accounting::{self, Part};
use xtrain_report::step_line::StepTime;

/// A scale at which even the largest gradient that fp16 has stands for one of a thousand million:
/// nothing that trains is so steep.
const LEAST_LOSS_SCALE: f32 = 1e-4;

/// The run's arithmetic, from the settings and the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunLength {
    /// Microbatches of an epoch.
    pub batches_per_epoch: u64,
    /// Microbatches per optimizer step, but for an epoch's last.
    pub accumulation: u64,
    /// Optimizer steps of an epoch, at least 1.
    pub updates_per_epoch: u64,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
}

impl RunLength {
    /// As transformers' Trainer: an epoch's last step may accumulate fewer microbatches;
    /// `max_steps` wins over epochs.
    pub fn new(
        batches_per_epoch: u64,
        accumulation: u64,
        epochs: f64,
        max_steps: Option<u64>,
    ) -> Self {
        let updates_per_epoch = batches_per_epoch.div_ceil(accumulation).max(1);
        let max_steps =
            max_steps.unwrap_or_else(|| (epochs * updates_per_epoch as f64).ceil() as u64);
        RunLength {
            batches_per_epoch,
            accumulation,
            updates_per_epoch,
            max_steps,
        }
    }
}

/// Where the run stands after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Optimizer steps done.
    pub step: u64,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
    /// Epochs done, with the share of the current one, as transformers counts it.
    pub epoch: f64,
    /// Position of the next batch.
    pub next_epoch: u64,
    /// Within that epoch, from 0.
    pub next_batch: u64,
    /// The step was the last of its epoch.
    pub epoch_ended: bool,
}

impl Progress {
    /// Whether the run has made all its steps.
    pub fn is_last(&self) -> bool {
        self.step >= self.max_steps
    }
}

/// What steps did, and where their time went: of one, or of several added up.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepWork {
    /// Optimizer steps.
    pub steps: u32,
    /// Tokens that went in, without padding.
    pub tokens: usize,
    /// The same with padding.
    pub padded_tokens: usize,
    /// Floating-point operations of the microbatches.
    pub flops: f64,
    /// Where the time went.
    pub time: StepTime,
}

impl StepWork {
    /// What is counted per second: tokens, operations.
    pub fn rate(&self, count: f64) -> f64 {
        count / self.time.step.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl AddAssign for StepWork {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.tokens += other.tokens;
        self.padded_tokens += other.padded_tokens;
        self.flops += other.flops;
        self.time += other.time;
    }
}

/// A step whose numbers have been read.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Where the run stood after it.
    pub progress: Progress,
    /// Loss, gradient norm and what else the step computed.
    pub metrics: StepMetrics,
    /// The schedule's, as the step was fed it.
    pub learning_rate: f64,
    /// Tokens, operations and time.
    pub work: StepWork,
}

/// What a hook wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Make the next step.
    Continue,
    /// End the run after this step.
    Stop,
}

/// Where training batches come from.
pub trait Batches: Iterator<Item = Result<DeviceBatch>> {
    /// The position after the last batch that was taken; `None` where the number of batches says
    /// it.
    fn position(&self) -> Option<DataPosition> {
        None
    }
}

/// What a hook works with between two steps.
pub struct StepContext<'a> {
    /// Where the run stands after the step.
    pub progress: Progress,
    /// The device's state, as the step left it.
    pub session: &'a mut Session,
    /// The source of the batches, for its position.
    pub batches: &'a dyn Batches,
    /// Running totals and log history.
    pub run: &'a mut RunState,
}

/// Something that hangs on the loop.
pub trait Hook {
    /// A step's numbers are known. Called for every step, in order.
    fn reported(&mut self, _report: &StepReport, _run: &mut RunState) -> Result<()> {
        Ok(())
    }

    /// Called before the first step.
    fn at_start(&mut self, _context: &mut StepContext) -> Result<()> {
        Ok(())
    }

    /// Whether `at_step` has to see the state exactly as it is after this step.
    fn wants(&mut self, _progress: &Progress) -> bool {
        false
    }

    /// Finishes what it has begun: called after the last step or the one that a hook stopped at
    /// (`is_complete`), and before the run ends with an error.
    fn finish(&mut self, _run: &mut RunState, _is_complete: bool) -> Result<()> {
        Ok(())
    }

    /// Called after the step for which `wants` was true; its numbers have been reported and the
    /// device is idle.
    fn at_step(&mut self, _context: &mut StepContext) -> Result<Control> {
        Ok(Control::Continue)
    }
}

/// A step that was handed to the device.
struct Pending {
    progress: Progress,
    learning_rate: f64,
    tokens: usize,
    padded_tokens: usize,
    flops: f64,
    began: Instant,
    /// What the host did before the device had anything of this step, and after that.
    first: HostWork,
    rest: HostWork,
}

/// The host's part of handing microbatches over.
#[derive(Clone, Copy, Debug, Default)]
struct HostWork {
    wait: Duration,
    trace: Duration,
    compile: Duration,
}

impl HostWork {
    fn total(&self) -> Duration {
        self.wait + self.trace + self.compile
    }

    fn scaled(&self, share: f64) -> HostWork {
        HostWork {
            wait: self.wait.mul_f64(share),
            trace: self.trace.mul_f64(share),
            compile: self.compile.mul_f64(share),
        }
    }
}

/// The share of `all` that `part` is, at most all of it.
fn share(part: Duration, all: Duration) -> f64 {
    if all.is_zero() {
        return 1.0;
    }
    (part.as_secs_f64() / all.as_secs_f64()).min(1.0)
}

impl Pending {
    /// Where the time went between `free`, when the device could begin with the step, and `done`.
    fn time(&self, free: Instant, done: Instant) -> StepTime {
        let step = done.saturating_duration_since(free);
        // While the device was busy with the step before, the host's work cost nothing.
        let ready = self.began + self.first.total();
        let seen = share(ready.saturating_duration_since(free), self.first.total());
        let (first, rest) = (self.first.scaled(seen), self.rest);
        let host = HostWork {
            wait: first.wait + rest.wait,
            trace: first.trace + rest.trace,
            compile: first.compile + rest.compile,
        };
        let host = host.scaled(share(step, host.total()));
        StepTime {
            step,
            trace: host.trace,
            compile: host.compile,
            execute: step.saturating_sub(host.total()),
            wait: host.wait,
        }
    }
}

/// One run of the loop.
pub struct RunLoop<'a, 'm> {
    /// Records forward pass, backward pass and update.
    pub train_step: &'a TrainStep<'m>,
    /// Runs what is recorded.
    pub session: &'a mut Session,
    /// When epochs and the run end.
    pub length: RunLength,
    /// Called in this order after every step.
    pub hooks: Vec<Box<dyn Hook + 'a>>,
    /// What a checkpoint resumes; holds the totals.
    pub state: &'a mut RunState,
}

impl RunLoop<'_, '_> {
    /// Trains from `start` to the end, or until a hook stops the run. `batches` begin at the
    /// position that `start` gives and run on over the epochs' ends. Returns the last progress.
    pub fn run(mut self, batches: &mut dyn Batches, start: Progress) -> Result<Progress> {
        let ended = self.steps(batches, start);
        // What hooks have begun is finished, however the run ends.
        let finished = self.finish(ended.is_ok());
        match (ended, finished) {
            (Ok(progress), finished) => finished.map(|()| progress),
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(unsaved)) => Err(Error::AlsoUnsaved {
                error: Box::new(error),
                unsaved: Box::new(unsaved),
            }),
        }
    }

    fn finish(&mut self, is_complete: bool) -> Result<()> {
        let finish = |hook: &mut Box<dyn Hook + '_>| hook.finish(self.state, is_complete);
        self.hooks.iter_mut().map(finish).fold(Ok(()), Result::and)
    }

    fn steps(&mut self, batches: &mut dyn Batches, start: Progress) -> Result<Progress> {
        let mut progress = start;
        let mut pending: Option<Pending> = None;
        if !start.is_last() {
            for hook in &mut self.hooks {
                hook.at_start(&mut StepContext {
                    progress,
                    session: self.session,
                    batches: &*batches,
                    run: self.state,
                })?;
            }
        }
        let reader = MetricsReader::start();
        let _in_steps = accounting::enter(Part::Host);
        // When the device could begin with the step that is reported next.
        let mut free = Instant::now();
        while !progress.is_last() {
            let dispatched = self.step(batches, progress, &reader)?;
            progress = dispatched.progress;
            if let Some(earlier) = pending.replace(dispatched) {
                self.report(earlier, &reader, &mut free)?;
            }
            // Ask every hook: one that counts must not depend on another's answer.
            let wants: Vec<bool> = self
                .hooks
                .iter_mut()
                .map(|hook| hook.wants(&progress))
                .collect();
            if !progress.is_last() && !wants.contains(&true) {
                continue;
            }
            if let Some(current) = pending.take() {
                self.report(current, &reader, &mut free)?;
            }
            let mut stop = false;
            for (hook, _) in self.hooks.iter_mut().zip(wants).filter(|(_, wants)| *wants) {
                let mut context = StepContext {
                    progress,
                    session: self.session,
                    batches: &*batches,
                    run: self.state,
                };
                stop |= hook.at_step(&mut context)? == Control::Stop;
            }
            // Saving and evaluating are not part of the next step's time.
            free = Instant::now();
            if stop {
                break;
            }
        }
        Ok(progress)
    }

    /// Dispatches the microbatches of one optimizer step.
    fn step(
        &mut self,
        batches: &mut dyn Batches,
        before: Progress,
        reader: &MetricsReader,
    ) -> Result<Pending> {
        let length = self.length;
        if let Some(plateau) = &self.state.plateau {
            self.train_step.set_learning_rate(plateau.rate());
        }
        let count = length
            .accumulation
            .min(length.batches_per_epoch - before.next_batch);
        let began = Instant::now();
        let (mut tokens, mut padded_tokens, mut flops) = (0, 0, 0.0);
        let (mut first, mut rest) = (HostWork::default(), HostWork::default());
        for i in 0..count {
            let work = if i == 0 { &mut first } else { &mut rest };
            let waiting = Instant::now();
            let in_wait = accounting::enter(Part::InputWait);
            let batch = batches.next().ok_or_else(|| Error::NothingToTrain {
                reason: format!(
                    "epoch {} ended before batch {}",
                    before.next_epoch,
                    before.next_batch + i
                ),
            })??;
            drop(in_wait);
            work.wait += waiting.elapsed();
            tokens += batch.tokens;
            padded_tokens += batch.padded_tokens();
            flops += self.train_step.flops(&batch);
            let phase = if i + 1 == count {
                Phase::Update {
                    accumulated: length.accumulation > 1,
                }
            } else {
                Phase::Accumulate
            };
            let microstep = before.next_epoch * length.batches_per_epoch + before.next_batch + i;
            let marked =
                self.train_step
                    .microbatch(self.session, &batch, phase, before.step, microstep)?;
            accounting::transfer(Part::Device, marked.host_time.execute);
            work.trace += marked.host_time.trace;
            work.compile += marked.host_time.compile;
            // The last one's.
            if phase != Phase::Accumulate {
                reader.read(read_metrics(&marked)?);
            }
        }
        let batches_done = before.next_batch + count;
        let epoch_ended = batches_done >= length.batches_per_epoch;
        let progress = Progress {
            step: before.step + 1,
            max_steps: before.max_steps,
            epoch: before.next_epoch as f64 + batches_done as f64 / length.batches_per_epoch as f64,
            next_epoch: before.next_epoch + u64::from(epoch_ended),
            next_batch: if epoch_ended { 0 } else { batches_done },
            epoch_ended,
        };
        Ok(Pending {
            progress,
            learning_rate: self.train_step.learning_rate(before.step),
            tokens,
            padded_tokens,
            flops,
            began,
            first,
            rest,
        })
    }

    /// Reads a step's numbers, stops if they are not finite, and tells the hooks.
    fn report(&mut self, step: Pending, reader: &MetricsReader, free: &mut Instant) -> Result<()> {
        let waiting = accounting::enter(Part::Device);
        let (metrics, done) = reader.next();
        drop(waiting);
        let metrics = metrics?;
        let report = StepReport {
            progress: step.progress,
            metrics: metrics.clone(),
            learning_rate: step.learning_rate,
            work: StepWork {
                steps: 1,
                tokens: step.tokens,
                padded_tokens: step.padded_tokens,
                flops: step.flops,
                time: step.time(*free, done),
            },
        };
        *free = done;
        if let Some(scaling) = metrics.scaling.filter(|scaling| scaling.skipped) {
            // A skipped step has changed nothing, so its numbers need not be finite; a run that
            // only skips does not train.
            if scaling.scale < LEAST_LOSS_SCALE {
                let (scale, step) = (f64::from(scaling.scale), step.progress.step);
                return Err(Error::LossScaleExhausted {
                    scale,
                    step,
                    kept: self.state.checkpoints.sentence(),
                });
            }
        } else if !metrics.loss.is_finite() || !metrics.grad_norm.is_finite() {
            // What was begun is finished, so that the message knows of it: a save that fails is
            // part of what it says of checkpoints.
            let _ = self.finish(false);
            let (what, value) = if metrics.loss.is_finite() {
                ("gradient norm", metrics.grad_norm)
            } else {
                ("loss", metrics.loss)
            };
            return Err(Error::NotFinite {
                what,
                value: f64::from(value),
                loss: f64::from(metrics.loss),
                step: step.progress.step,
                learning_rate: step.learning_rate,
                grad_norm: f64::from(metrics.grad_norm),
                kept: self.state.checkpoints.sentence(),
            });
        }
        self.hooks
            .iter_mut()
            .try_for_each(|hook| hook.reported(&report, self.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pending(began: Instant, first: HostWork, rest: HostWork) -> Pending {
        let progress = Progress {
            step: 1,
            max_steps: 2,
            epoch: 0.0,
            next_epoch: 0,
            next_batch: 0,
            epoch_ended: false,
        };
        Pending {
            progress,
            learning_rate: 0.0,
            tokens: 0,
            padded_tokens: 0,
            flops: 0.0,
            began,
            first,
            rest,
        }
    }

    #[test]
    fn parts_of_a_step_add_up_to_it() {
        let start = Instant::now();
        let host = |wait, trace, compile| HostWork {
            wait: wait * MS,
            trace: trace * MS,
            compile: compile * MS,
        };
        for (began, first, rest, free, done, expected) in [
            // The first step: the device waits for everything.
            (
                0,
                host(2, 3, 100),
                host(0, 0, 0),
                0,
                150,
                [150, 3, 100, 45, 2],
            ),
            // The host worked ahead while the device was busy.
            (10, host(1, 2, 0), host(0, 0, 0), 50, 90, [40, 0, 0, 40, 0]),
            // The device became free in the middle of it.
            (
                10,
                host(10, 30, 0),
                host(0, 0, 0),
                30,
                90,
                [60, 15, 0, 40, 5],
            ),
            // Of a second microbatch the host can have done more than the step took.
            (
                0,
                host(0, 0, 0),
                host(30, 30, 60),
                60,
                90,
                [30, 7, 15, 0, 7],
            ),
        ] {
            let time =
                pending(start + began * MS, first, rest).time(start + free * MS, start + done * MS);
            let found = [time.step, time.trace, time.compile, time.execute, time.wait];
            let sum = time.trace + time.compile + time.execute + time.wait;
            let apart = sum.abs_diff(time.step);
            assert!(apart < Duration::from_micros(1), "{time:?}");
            assert_eq!(found.map(|part| part.as_millis()), expected, "{time:?}");
        }
    }

    #[test]
    fn run_length_counts_as_transformers_does() {
        let length = RunLength::new(10, 4, 3.0, None);
        assert_eq!((length.updates_per_epoch, length.max_steps), (3, 9));
        assert_eq!(RunLength::new(10, 1, 0.25, None).max_steps, 3);
        assert_eq!(RunLength::new(10, 4, 3.0, Some(5)).max_steps, 5);
        assert_eq!(RunLength::new(2, 16, 1.0, None).updates_per_epoch, 1);
    }
}
