//! What the stages of this process have under way.

use crate::error::Result;
use crate::mesh_devices::MeshDevices;
use xtrain_cache::GraphCache;
use xtrain_runtime::Event;

/// What each stage has under way; `None` where the device takes steps in as they come.
#[derive(Default)]
pub struct Running(Option<Vec<Vec<Event>>>);

impl Running {
    /// A stage's next work is handed over only when what it has under way is done.
    pub fn one_at_a_time(stages: usize) -> Self {
        Running(Some((0..stages).map(|_| Vec::new()).collect()))
    }
}

/// What a step runs on.
pub struct Stages<'s> {
    pub devices: &'s MeshDevices,
    pub cache: &'s mut GraphCache,
    pub running: &'s mut Running,
}

impl Stages<'_> {
    /// Waits for what a stage has under way.
    pub fn finish(&mut self, stage: usize) -> Result<()> {
        let running = self.running.0.iter_mut();
        for step in running.flat_map(|running| running[stage].drain(..)) {
            step.wait()?;
        }
        Ok(())
    }

    /// Notes what a stage has under way now.
    pub fn start(&mut self, stage: usize, done: Vec<Event>) {
        if let Some(running) = &mut self.running.0 {
            running[stage] = done;
        }
    }
}
