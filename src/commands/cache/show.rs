//! `cache show` and `cache explain`: one stored graph, and what differs between two.

use super::entries::{all, choose, short};
use super::list::{describe, model};
use crate::{Error, kernels};
use xtrain_cache::{
    Content, DEVICE, Damage, Entry, EntryStore, Explanation, Header, Listed, Store, age,
    described_device, nearest,
};
use xtrain_config::Flags;
use xtrain_engine::failed;
use xtrain_engine::kernels::{Compiled, report};
use xtrain_graphs::{Graph, InputRole};
use xtrain_report::kernels::KernelReport;
use xtrain_report::table::Table;
use xtrain_report::units::{bytes, count, duration};
use xtrain_report::{out, outln};
use xtrain_runtime::hlo::launch_stats::Launches;
use xtrain_runtime::hlo::live_buffers;
use xtrain_runtime::{Client, Library, OptionValue, Signature};
use xtrain_trainer::gpu::Gpu;

pub fn show(store: &Store, id: &str, flags: &Flags) -> Result<(), Error> {
    kernels::check(flags)?;
    let entries = all(store)?;
    let listed = choose(&entries, id, store)?;
    let mut entry = open(store, &listed.id)?;
    if *flags.kernels {
        return kernels::print(&[kernel_report(store, listed, &mut entry)?], flags);
    }
    let text = if *flags.hlo {
        hlo_text(&part(store, listed, &mut entry, Content::Module)?)?
    } else if *flags.optimized_hlo {
        optimized(store, listed, &mut entry)?
    } else if *flags.stablehlo {
        stablehlo_text(&part(store, listed, &mut entry, Content::Module)?)?
    } else if *flags.peak_memory {
        peak_text(store, listed, &mut entry)?
    } else if *flags.json {
        format!("{}\n", describe(listed))
    } else {
        text(store, listed, &mut entry)?
    };
    out!("{text}");
    Ok(())
}

fn open(store: &Store, id: &str) -> Result<Entry, Error> {
    store.open(id).map_err(|damage| unusable(store, id, damage))
}

fn unusable(store: &Store, id: &str, damage: Damage) -> Error {
    Error::failed(format!(
        "{} is not usable: {damage}",
        store.path(id).display()
    ))
    .with_hint("remove the file; the next run that wants the graph compiles it again")
}

fn part(
    store: &Store,
    listed: &Listed,
    entry: &mut Entry,
    content: Content,
) -> Result<Vec<u8>, Error> {
    match entry.read(content) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(Error::failed(format!(
            "{} was stored without its {}",
            listed.id,
            content.name()
        ))),
        Err(damage) => Err(unusable(store, &listed.id, damage)),
    }
}

fn graph(store: &Store, listed: &Listed, entry: &mut Entry) -> Result<Graph, Error> {
    let bytes = part(store, listed, entry, Content::Graph)?;
    Graph::from_bytes(&bytes)
        .map_err(|e| Error::because(format!("decoding the graph of {}", listed.id), e))
}

fn text(store: &Store, listed: &Listed, entry: &mut Entry) -> Result<String, Error> {
    let graph = graph(store, listed, entry)?;
    let header = &entry.header;
    let mut table = Table::pairs();
    table.heading(format!("{} ({})", listed.id, header.phase));
    table.pair(
        "file",
        format!(
            "{}, {}",
            store.path(&listed.id).display(),
            bytes(listed.file_bytes)
        ),
    );
    table.pair(
        "made by",
        format!(
            "xtrain {}, {} ago",
            header.origin.command,
            duration(age(header.created))
        ),
    );
    let model = model(&header.origin.model_type, header.origin.parameters);
    table.pair(
        "model",
        format!("{model} (configuration {})", header.origin.config_digest),
    );
    table.pair("compiled in", format!("{:.2} s", header.compile_seconds));
    table.pair(
        "used",
        format!(
            "{} times, last {} ago",
            listed.uses,
            duration(age(listed.last_used))
        ),
    );
    let states = graph
        .inputs
        .iter()
        .filter(|input| input.role == InputRole::State)
        .count();
    let sizes = format!(
        "{} nodes, {states} state inputs, {} outputs",
        graph.nodes.len(),
        graph.outputs.len()
    );
    table.pair("graph", sizes);
    for feed in &header.feeds {
        table.pair("feed", feed);
    }
    table.heading("key");
    for part in &header.key.parts {
        table.pair(&part.name, &part.value);
    }
    table.heading("parts");
    for part in &header.parts {
        table.pair(
            part.content.name(),
            format!("{:>10}  sha256 {}", bytes(part.bytes), part.sha256),
        );
    }
    if let Some(memory) = header.memory {
        table.heading("memory on one device");
        let rows = [
            ("peak", memory.peak),
            ("arguments", memory.arguments),
            ("outputs", memory.outputs),
            ("donated (in both)", memory.donated),
            ("temporaries", memory.temporaries),
            ("code", memory.code),
        ];
        for (name, n) in rows {
            table.pair(name, bytes(n.max(0) as u64));
        }
    }
    if !header.cost.is_empty() {
        table.heading("the compiler's estimate of work");
        for (name, value) in &header.cost {
            table.pair(name, count(*value));
        }
    }
    if !header.origin.settings.is_empty() {
        table.heading("settings");
        for (name, value) in &header.origin.settings {
            table.pair(name, value);
        }
    }
    Ok(table.render())
}

fn hlo_text(module: &[u8]) -> Result<String, Error> {
    let library = Library::open().map_err(failed("opening the XLA library"))?;
    let text = library.hlo_text(module);
    text.map_err(failed("writing the module as text"))
}

fn stablehlo_text(module: &[u8]) -> Result<String, Error> {
    let library = Library::open().map_err(failed("opening the XLA library"))?;
    let text = library.stablehlo_text(module);
    text.map_err(failed("converting the module to StableHLO"))
}

fn optimized(store: &Store, listed: &Listed, entry: &mut Entry) -> Result<String, Error> {
    hlo_text(&optimized_module(store, listed, entry)?)
}

/// Rows of the table that `--memory` prints; what is left over is one more row.
const LARGEST: usize = 20;

/// What is alive where the temporaries are most, as the schedule of the compiled module tells.
fn peak_text(store: &Store, listed: &Listed, entry: &mut Entry) -> Result<String, Error> {
    let module = optimized_module(store, listed, entry)?;
    let peak = live_buffers::peak(&module).map_err(failed("reading the compiled module"))?;
    let mut table = Table::pairs();
    table.heading(format!(
        "{} ({}): memory on one device",
        listed.id, entry.header.phase
    ));
    if let Some(memory) = entry.header.memory {
        table.pair(
            "arguments",
            format!(
                "{} (weights, moments, batch)",
                bytes(memory.arguments.max(0) as u64)
            ),
        );
        table.pair(
            "temporaries",
            format!(
                "{} (the compiler's figure)",
                bytes(memory.temporaries.max(0) as u64)
            ),
        );
    }
    let alive = format!(
        "{} in {} buffers, while {} runs",
        bytes(peak.bytes),
        peak.buffers.len(),
        peak.at
    );
    table.pair("alive at the peak", alive);
    let mut rows = Table::new("r");
    rows.row(["bytes", "shape", "written by", "in"]);
    for buffer in peak.buffers.iter().take(LARGEST) {
        rows.row([
            bytes(buffer.bytes),
            buffer.shape.clone(),
            buffer.opcode.clone(),
            buffer.op_name.clone(),
        ]);
    }
    let rest = &peak.buffers[peak.buffers.len().min(LARGEST)..];
    if !rest.is_empty() {
        let sum = rest.iter().map(|buffer| buffer.bytes).sum();
        rows.row([bytes(sum), format!("{} more", rest.len())]);
    }
    Ok(format!("{}\n{}", table.render(), rows.render()))
}

fn kernel_report(store: &Store, listed: &Listed, entry: &mut Entry) -> Result<KernelReport, Error> {
    let module = optimized_module(store, listed, entry)?;
    let graph = graph(store, listed, entry)?;
    let header = &entry.header;
    let device = header.key.value(DEVICE).unwrap_or_default();
    report(&Compiled {
        title: format!("{} for {device} {}", header.phase, short(&listed.id)),
        module: &module,
        graph: Some(&graph),
        memory: header.memory,
        launches: Launches::from_cost(&header.cost),
        gpu: described_device(&header.key).and_then(Gpu::named),
    })
}

/// The module as the compiler left it, serialized.
fn optimized_module(store: &Store, listed: &Listed, entry: &mut Entry) -> Result<Vec<u8>, Error> {
    // Stored apart where the executable is for a device that is not attached.
    if entry.header.part(Content::OptimizedModule).is_some() {
        return part(store, listed, entry, Content::OptimizedModule);
    }
    let graph = graph(store, listed, entry)?;
    let bytes = part(store, listed, entry, Content::Executable)?;
    cpu_client(entry.header.key.devices())
        .and_then(|client| client.load(&bytes, signature(&graph)))
        .and_then(|executable| executable.optimized_hlo())
        .map_err(failed("loading the executable"))
}

/// A client to try executables on that run on this many devices.
pub fn cpu_client(devices: usize) -> xtrain_runtime::Result<Client> {
    let plugin = Library::open()?.cpu_plugin()?;
    Client::create(
        &plugin,
        &[(
            "cpu_device_count".to_string(),
            OptionValue::Int(devices as i64),
        )],
    )
}

pub fn signature(graph: &Graph) -> Signature {
    let outputs: Vec<_> = (0..graph.outputs.len())
        .map(|i| graph.output_shape(i).clone())
        .collect();
    Signature::new(
        graph
            .inputs
            .iter()
            .map(|input| input.shape.clone())
            .collect::<Vec<_>>(),
        outputs,
    )
}

/// One line: what the newer has that the older has not.
pub fn explain(store: &Store, older: Option<&str>, newer: &str) -> Result<(), Error> {
    let entries = all(store)?;
    let new = choose(&entries, newer, store)?;
    let mut new_entry = open(store, &new.id)?;
    let old_id = match older {
        Some(typed) => choose(&entries, typed, store)?.id.clone(),
        None => {
            let before = |listed: &Listed| {
                listed.id != new.id
                    && listed
                        .header
                        .as_ref()
                        .is_ok_and(|h: &Header| h.created <= new_entry.header.created)
            };
            let earlier: Vec<Listed> = all(store)?.into_iter().filter(before).collect();
            let header = &new_entry.header;
            let found = nearest(&earlier, &header.key, &header.phase, &header.origin);
            let (id, _) = found.ok_or_else(|| {
                Error::failed(format!(
                    "no `{}` graph of a {} model was stored before {}",
                    header.phase, header.origin.model_type, new.id
                ))
            })?;
            id.to_string()
        }
    };
    let mut old_entry = open(store, &old_id)?;
    let old = choose(&entries, &old_id, store)?;
    let graphs = (
        graph(store, old, &mut old_entry)?,
        graph(store, new, &mut new_entry)?,
    );
    let (old, new) = (&old_entry.header, &new_entry.header);
    if old.phase != new.phase {
        outln!(
            "graph: `{}` is another graph of the run than `{}`",
            new.phase,
            old.phase
        );
        return Ok(());
    }
    outln!(
        "{}",
        Explanation::new(
            (&old.key, &old.origin),
            (&new.key, &new.origin),
            Some((&graphs.0, &graphs.1))
        )
    );
    Ok(())
}
