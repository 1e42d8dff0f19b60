//! Steps that repeat: recorded once for feeds of the same shapes, then run with other data. A step's
//! host time does not grow with the model then.

use super::recording::Recording;
use super::{Session, StepOutputs};
use crate::error::{Error, Result};
use crate::mesh_devices::Buffers;
use crate::pipeline::{Microbatch, Recorded};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use xtrain_graphs::{Fingerprint, Shape};

/// Set, every step is recorded each time it runs, and compared with what was recorded first.
const RECORD_AGAIN: &str = "XTRAIN_RECORD_AGAIN";

/// Whether the environment asks for that.
pub(super) fn records_again() -> bool {
    std::env::var_os(RECORD_AGAIN).is_some_and(|value| !value.is_empty())
}

/// The data of one run of a step that repeats, by the names of the inputs.
pub struct Feeds {
    started: Instant,
    fed: Vec<(&'static str, Buffers)>,
}

impl Feeds {
    /// No data; the host's time of the step begins here.
    pub fn begin() -> Feeds {
        Feeds {
            started: Instant::now(),
            fed: Vec::new(),
        }
    }

    /// Adds a value that is on the devices.
    pub fn add(&mut self, name: &'static str, value: Buffers) {
        self.fed.push((name, value));
    }
}

/// What the steps of one caller recorded, by the graph's name and the shapes of the feeds. All else that a
/// recording depends on is the session's layout, or the same for as long as this lives.
#[derive(Default)]
pub struct RecordedSteps {
    layout: u64,
    known: HashMap<Key, Repeated>,
}

type Key = (String, Vec<(&'static str, Shape)>);

#[derive(Clone)]
struct Repeated {
    recorded: Arc<Recorded>,
    /// What the recording fed by itself: the same in each run.
    constants: Vec<(String, Buffers)>,
}

impl Session {
    /// Runs a step, which `record` records unless `steps` knows it for feeds of these shapes. It takes the
    /// feeds by [`Recording::given`]; what it feeds besides is the same in each run. `ends` says whether
    /// the optimizer step ends with it, as [`Recording::mark_step`] does, or goes on, as after
    /// [`Recording::mark_microbatch`].
    ///
    /// # Errors
    /// As [`Recording::mark_step`], or if `record` fails.
    pub fn step(
        &mut self,
        steps: &mut RecordedSteps,
        name: &str,
        feeds: Feeds,
        ends: bool,
        record: impl Fn(&mut Recording) -> Result<()>,
    ) -> Result<StepOutputs> {
        if steps.layout != self.layout {
            steps.known.clear();
            steps.layout = self.layout;
        }
        let shape_of = |(name, value): &(&'static str, Buffers)| (*name, value[0].shape().clone());
        let shapes = feeds.fed.iter().map(shape_of).collect();
        let key: Key = (name.to_string(), shapes);
        let Feeds { started, fed } = feeds;
        if let Some(known) = steps.known.get(&key).cloned() {
            if self.records_again {
                let (again, _) = self.record(name, started, fed.clone(), &record)?;
                if fingerprints(&again.recorded) != fingerprints(&known.recorded) {
                    return Err(Error::StepChanged { name: name.into() });
                }
            }
            let fed = fed.into_iter().map(|(name, value)| (name.into(), value));
            let microbatch = Microbatch {
                recorded: known.recorded,
                feeds: fed.chain(known.constants).collect(),
            };
            return self.start(microbatch, ends, started);
        }
        let (microbatch, constants) = self.record(name, started, fed, &record)?;
        let repeated = Repeated {
            recorded: microbatch.recorded.clone(),
            constants,
        };
        steps.known.insert(key, repeated);
        self.start(microbatch, ends, started)
    }

    /// The recorded step with its data, and those of them that are constants.
    fn record(
        &mut self,
        name: &str,
        started: Instant,
        fed: Vec<(&'static str, Buffers)>,
        record: &impl Fn(&mut Recording) -> Result<()>,
    ) -> Result<(Microbatch, Vec<(String, Buffers)>)> {
        let mut recording = self.begin_with(fed, started);
        record(&mut recording)?;
        let (_, microbatch, constants) = recording.finish(name)?;
        Ok((microbatch, constants))
    }
}

fn fingerprints(recorded: &Recorded) -> Vec<Fingerprint> {
    let parts = recorded.parts.iter();
    parts.map(|part| part.graph.fingerprint()).collect()
}
