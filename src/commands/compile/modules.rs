//! The modules of a run without its device: compared with what the device's compiler is known to
//! take (`--check`), or written for it to be compiled by hand, on any machine that has it
//! (`--export`).

use crate::{Error, Outcome};
use std::path::Path;
use xtrain_cache::emit;
use xtrain_checkpoint::named::write_named_bytes;
use xtrain_config::{Device, RunPlan};
use xtrain_engine::{Run, failed};
use xtrain_graphs::{NeuronChip, Target};
use xtrain_report::{errln, outln};
use xtrain_runtime::neuron::host::Host;
use xtrain_runtime::neuron::{Compiler, compiler};
use xtrain_runtime::{Library, conformance};
use xtrain_trainer::cuda::LEAST_CAPABILITY;
use xtrain_trainer::gpu::Gpu;

/// Violations that are printed of one graph; the rest is counted.
const SHOWN: usize = 10;

/// One graph of the run as its device's compiler gets it.
struct Emitted {
    name: String,
    /// A serialized HloModuleProto.
    module: Vec<u8>,
}

pub fn run(plan: RunPlan, check: bool, export: Option<&Path>) -> Result<Outcome, Error> {
    let settings = &plan.device.settings;
    let neuron = match plan.device.kind {
        Device::Neuron => {
            let user = std::env::var(compiler::VARIABLE).unwrap_or_default();
            let cores = std::env::var("NEURON_LOGICAL_NC_CONFIG")
                .ok()
                .filter(|value| !value.is_empty());
            let compiler = Compiler::new(
                &settings.neuron,
                &user,
                Host::this().chip(),
                cores.as_deref(),
            );
            Some(compiler.map_err(failed("composing the compiler's options"))?)
        }
        _ => None,
    };
    let target = match (plan.device.kind, &neuron) {
        (Device::Cpu, _) => settings
            .cpu_target(&plan.cache)
            .map_err(failed("opening the XLA library"))?,
        (Device::Cuda, _) => {
            settings.cuda_target(plan.target.map_or(LEAST_CAPABILITY, Gpu::capability))
        }
        (Device::Neuron, compiler) => Target::Neuron(
            compiler
                .as_ref()
                .map_or(NeuronChip::Trn1, |compiler| compiler.chip),
        ),
    };
    let library = Library::open().map_err(failed("opening the XLA library"))?;
    let emitted = emit_all(plan, target, library)?;
    if check {
        check_all(&emitted, target)?;
    }
    if let (Some(dir), Some(compiler)) = (export, &neuron) {
        export_all(&emitted, dir, compiler, library)?;
    }
    Ok(Outcome::Done)
}

fn emit_all(plan: RunPlan, target: Target, library: &Library) -> Result<Vec<Emitted>, Error> {
    let steps = Run::for_recording(plan)?.record()?;
    let lower = |graph: &xtrain_graphs::Graph| {
        let module = emit(library, graph, target).map_err(failed("lowering the graphs"))?;
        Ok(Emitted {
            name: graph.name.clone(),
            module,
        })
    };
    steps
        .iter()
        .flat_map(|(_, graphs)| graphs)
        .map(lower)
        .collect()
}

/// Says of each module what its compiler is not known to take.
fn check_all(emitted: &[Emitted], target: Target) -> Result<(), Error> {
    let name = match target {
        Target::Neuron(chip) => format!("neuron ({chip})"),
        other => other.name().to_string(),
    };
    let mut broken = 0;
    for Emitted {
        name: graph,
        module,
    } in emitted
    {
        let report = conformance::check(module, target).map_err(failed("reading a module"))?;
        match report.violations.len() {
            0 => outln!(
                "{graph:12} {} instructions, all known to compile for {name}",
                report.instructions
            ),
            n => outln!(
                "{graph:12} {n} of {} instructions break a rule of {name}",
                report.instructions
            ),
        }
        report
            .violations
            .iter()
            .take(SHOWN)
            .for_each(|violation| outln!("  {violation}"));
        broken += report.violations.len();
    }
    match broken {
        0 => Ok(()),
        n => Err(Error::failed(format!(
            "{n} instructions are not known to compile for {name}"
        ))
        .with_hint("each line above names the instruction, its layer, the rule and its source")),
    }
}

const HLO: &str = "hlo_module.pb";
const STABLEHLO: &str = "stablehlo.mlir";
const COMMANDS: &str = "README.txt";

/// A folder for each graph, and the commands that compile them.
fn export_all(
    emitted: &[Emitted],
    dir: &Path,
    compiler: &Compiler,
    library: &Library,
) -> Result<(), Error> {
    let write = |path: &Path, bytes: &[u8]| {
        let folder = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(folder).map_err(|error| {
            Error::because(
                format!("--export: cannot create {}", folder.display()),
                error,
            )
        })?;
        write_named_bytes(path, bytes).map_err(failed("--export"))
    };
    let mut commands = Vec::new();
    for Emitted { name, module } in emitted {
        let folder = Path::new(name);
        write(&dir.join(folder).join(HLO), module)?;
        let text = library
            .stablehlo_text(module)
            .map_err(failed("converting a module to StableHLO"))?;
        write(&dir.join(folder).join(STABLEHLO), text.as_bytes())?;
        commands.push(compiler.command(&folder.join(HLO), &folder.join(format!("{name}.neff"))));
    }
    let text = format!(
        "The graphs of one xtrain run, a folder each: {HLO} is the serialized HloModuleProto, {STABLEHLO} the same module as\n\
         StableHLO. These commands compile them where neuronx-cc is installed, without a device, when run in this directory:\n\n{}\n\n\
         Compiled so, they show whether the compiler takes them and how long it takes. xtrain does not read the .neff files: its\n\
         plugin runs the same compiler with NEURON_CC_FLAGS set to\n\n{}\n",
        commands.join("\n"),
        compiler.flags()
    );
    write(&dir.join(COMMANDS), text.as_bytes())?;
    commands.iter().for_each(|command| outln!("{command}"));
    errln!(
        "wrote {} graphs to {}; the commands are meant to be run there, and stand in {COMMANDS} too",
        emitted.len(),
        dir.display()
    );
    Ok(())
}
