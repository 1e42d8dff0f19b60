//! xtrain trains language models as whole compiled XLA graphs: forward, backward, the exchange
//! between devices and the optimizer are one HLO module, compiled by PJRT for the CPU, CUDA or AWS
//! Neuron.
//!
//! # Use it as a library
//!
//! [`engine::Run`] is the front door: it builds a run from a plan or from the words of a
//! command line, and trains, evaluates, predicts or compiles ahead. `examples/finetune.rs` does so
//! in 40 lines:
//!
//! ```no_run
//! use xtrain::engine::{Error, Run};
//!
//! # fn main() -> Result<(), Error> {
//! let mut run = Run::from_args([
//!     "clm", "--model_name_or_path", "gpt2", "--train_file", "text.txt", "--output_dir", "out",
//!     "--do_train", "--do_eval",
//! ])?;
//! run.train(None, Vec::new())?;
//! println!("validation loss {}", run.evaluate()?.loss);
//! # Ok(())
//! # }
//! ```
//!
//! [`Objective`](xtrain_models::Objective) says what a model is trained for: the feeds, the loss and
//! what is measured. A program puts one of its own into `run.task.objective`, as
//! `examples/own_objective.rs` does.
//!
//! Below it, [`trainer::session::Session`] runs any model that is written with the tensors of
//! `xtrain_graphs`: record a step, [`backward`](xtrain_graphs::backward),
//! [`optimizer_step`](trainer::own_loop::ParameterSet::optimizer_step),
//! [`mark_step`](trainer::session::Recording::mark_step). `examples/own_loop.rs` is such a loop on
//! two replicas.
//!
//! # The layers
//!
//! Each module below is a crate of its own, which lies in the folder of the same name: `cache` is
//! `xtrain-cache` in `src/cache`. They are in reading order, and dependencies point downwards only: a
//! crate may use those that follow it, never one before it. Cargo holds that: an import of a crate that
//! the own `Cargo.toml` does not name does not compile, and Cargo refuses circles (`tests/layers.rs`
//! compares the manifests with this order). Within a crate files import in one direction, which is that
//! test's to hold. Lower layers define the settings that they need; [`config`] resolves what the user
//! typed into them. `docs/architecture.md` has the drawing, and what each crate must not know.
//!
//! | crate | what it does |
//! |---|---|
//! | [`commands`] | what each command prints of what the engine does |
//! | [`engine`] | a run built from its plan; train, evaluate, predict, precompile, fit, bench |
//! | [`config`] | the command line and the settings file, resolved into plans |
//! | [`hub`] | models and data sets of the Hugging Face Hub, to local files |
//! | [`tasks`] | what each task is: data, labels, metrics, predictions |
//! | [`data`] | files to tokens to host batches, for any task |
//! | [`trainer`] | the training step, the loop and its hooks, sessions on devices |
//! | [`parallel`] | the device mesh, shardings, pipeline schedules |
//! | [`cache`] | the compiled-graph cache |
//! | [`runtime`] | PJRT: clients, buffers, executables; reading HLO |
//! | [`checkpoint`] | Hugging Face directories and exact training state |
//! | [`launch`] | the launcher: starts the ranks of a job, watches and restarts them |
//! | [`distributed`] | the process group: rank, rendezvous, heartbeats |
//! | [`objects`] | objects in buckets and on web servers |
//! | [`report`] | step lines, records, tables, telemetry, where time goes, reports of runs |
//!
//! Three crates stand below: `xtrain_models` (the model families and their objectives, which know no
//! device, no precision and no sharding), `xtrain_graphs` (lazy tensors, automatic differentiation,
//! optimizers, graph passes, lowering to HLO) and `xtrain_jinja` (chat templates, in `src/jinja`).
//! `docs/tour.md` follows one training step through all of them.

pub use xtrain_commands as commands;

pub use xtrain_engine as engine;

pub use xtrain_config as config;

pub use xtrain_hub as hub;

pub use xtrain_tasks as tasks;

pub use xtrain_data as data;

pub use xtrain_trainer as trainer;

pub use xtrain_parallel as parallel;

pub use xtrain_cache as cache;

pub use xtrain_runtime as runtime;

pub use xtrain_checkpoint as checkpoint;

pub use xtrain_launch as launch;

pub use xtrain_distributed as distributed;

pub use xtrain_objects as objects;

pub use xtrain_report as report;
