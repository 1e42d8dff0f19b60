//! `cache verify`, `prune`, `export` and `import`.

use super::entries::{all, chosen, short};
use super::show::{cpu_client, signature};
use crate::Error;
use crate::output_file::{announce, check_output};
use std::io::ErrorKind;
use std::path::Path;
use xtrain_cache::{
    CacheSettings, Content, DEVICE, Damage, EntryStore, Listed, Store, age, archive,
    is_compile_check, is_for_running, is_stale,
};
use xtrain_config::{Device, DevicePlan, Flags};
use xtrain_engine::device::open_device;
use xtrain_engine::failed;
use xtrain_graphs::Graph;
use xtrain_parallel::Mesh;
use xtrain_report::units::bytes;
use xtrain_report::{errln, outln};
use xtrain_runtime::{self as runtime, Client, Library};

/// Reads every byte, then loads every executable that is for this device. Fails if anything is
/// damaged.
pub fn verify(store: &Store, ids: &[String], device: &DevicePlan) -> Result<(), Error> {
    let entries = all(store)?;
    if entries.is_empty() && ids.is_empty() {
        outln!("nothing is stored in {} yet", store.dir().display());
        return Ok(());
    }
    let entries = chosen(&entries, ids, store)?;
    let most = entries
        .iter()
        .filter_map(|entry| entry.header.as_ref().ok())
        .map(|header| header.key.devices())
        .max();
    let mesh = Mesh::data_parallel(most.unwrap_or(1));
    // The CPU's is only opened when there is something to load.
    let mut client: Option<Client> = match device.kind {
        Device::Cpu => None,
        _ => Some(
            open_device(device, mesh, &CacheSettings::in_memory())?
                .client()
                .clone(),
        ),
    };
    let (mut good, mut bad) = (0, 0);
    for entry in &entries {
        let verdict = check(store, entry, device, &mut client);
        match &verdict {
            Ok(_) => good += 1,
            Err(_) => bad += 1,
        }
        let text = verdict.unwrap_or_else(|damage| format!("DAMAGED: {damage}"));
        outln!("{}  {text}", short(&entry.id));
    }
    outln!("{good} good, {bad} damaged");
    match bad {
        0 => Ok(()),
        _ => Err(Error::failed(format!(
            "{bad} of {} stored graphs are damaged",
            entries.len()
        ))
        .with_hint(format!(
            "a run would ignore and replace them; to remove them now, delete their files in {}",
            store.dir().display()
        ))),
    }
}

/// Devices of the CPU that a stored graph is tried on before it counts as damaged.
const MOST_DEVICES: usize = 32;

fn check(
    store: &Store,
    listed: &Listed,
    here: &DevicePlan,
    client: &mut Option<Client>,
) -> Result<String, Damage> {
    let mut entry = store.open(&listed.id)?;
    let id = entry.header.key.id();
    if id != listed.id {
        return Err(Damage::Foreign(format!("its key gives {id}")));
    }
    let graph = entry.read(Content::Graph)?;
    entry.read(Content::Module)?;
    entry.read(Content::OptimizedModule)?;
    let Some(executable) = entry.read(Content::Executable)? else {
        let lowered_only = !is_for_running(&entry.header.key);
        let why = if lowered_only {
            "lowered, to be compiled by its device"
        } else {
            "stored without an executable: always compiled"
        };
        return Ok(format!("whole; {why}"));
    };
    let device = entry.header.key.value(DEVICE).unwrap_or_default();
    if !device.starts_with(&here.kind.to_string()) {
        return Ok(format!("whole; made for {device}, not tried here"));
    }
    let graph = graph
        .and_then(|bytes| Graph::from_bytes(&bytes).ok())
        .ok_or(Damage::Digest { part: "graph" })?;
    let failed = |e: runtime::Error| Damage::NotLoadable(e.to_string());
    let mut devices = entry.header.key.devices();
    let mut first_error = None;
    loop {
        let is_enough = |client: &Client| client.devices().len() >= devices;
        let opened = match client.take() {
            Some(opened) if here.kind != Device::Cpu || is_enough(&opened) => opened,
            _ => match cpu_client(devices) {
                Ok(opened) => opened,
                Err(runtime::Error::LibraryNotFound { .. }) => {
                    return Ok(format!(
                        "whole; made for {device}, which needs libxtrain_xla.so, so that it was not tried here"
                    ));
                }
                Err(error) => return Err(failed(first_error.unwrap_or(error))),
            },
        };
        let opened = client.insert(opened);
        // Loading foreign code is safe, running it is not: only a run compares the whole key.
        match opened.load(&executable, signature(&graph)) {
            Ok(_) => return Ok("whole, loads".into()),
            // A pipeline's stage is for the devices of its own numbers, which the key does not say:
            // its last one may need all of them.
            Err(error) if here.kind == Device::Cpu && devices < MOST_DEVICES => {
                first_error.get_or_insert(error);
                devices = 2 * devices.max(opened.devices().len());
            }
            Err(error) => {
                let error = first_error.unwrap_or(error);
                // Nothing is lost: no run would load it.
                return if is_compile_check(&entry.header.key) {
                    Ok(format!(
                        "whole; a compile check, does not load here: {error}"
                    ))
                } else {
                    Err(failed(error))
                };
            }
        }
    }
}

/// Removes what the rules name; in a dry run only says so.
pub fn prune(store: &Store, rules: &Flags) -> Result<(), Error> {
    let compiler = if *rules.stale_compiler {
        Some(Library::open().map_err(failed("opening the XLA library"))?)
    } else {
        None
    };
    let entries = all(store)?;
    let of_device = |entry: &&Listed| match (&*rules.only_device, &entry.header) {
        (None, _) => true,
        (Some(device), Ok(header)) => header
            .key
            .value(DEVICE)
            .is_some_and(|own| own.starts_with(device.as_str())),
        (Some(_), Err(_)) => false,
    };
    // Last used first: once the size is reached, everything further down goes.
    let mut total = 0;
    let mut doomed = Vec::new();
    for entry in entries.iter().filter(of_device) {
        let only_device =
            rules.older_than.is_none() && rules.max_size.is_none() && compiler.is_none();
        let old = rules
            .older_than
            .is_some_and(|days| age(entry.last_used).as_secs_f64() > days * 86400.0);
        let stale = compiler.is_some_and(|library| {
            entry
                .header
                .as_ref()
                .map_or(true, |header| is_stale(&header.key, library))
        });
        if only_device || old || stale {
            doomed.push(entry);
            continue;
        }
        total += entry.file_bytes;
        if rules.max_size.is_some_and(|max| total > max) {
            doomed.push(entry);
        }
    }
    let (mut gone, mut freed, mut failures) = (0, 0, Vec::new());
    for entry in &doomed {
        let path = store.path(&entry.id);
        let removed = if *rules.dry_run {
            Ok(())
        } else {
            store.remove(&entry.id)
        };
        match removed {
            // Another process has removed it first.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                errln!("warning: cannot remove {}: {error}", path.display());
                failures.push(error);
                continue;
            }
            Ok(()) => {}
        }
        (gone, freed) = (gone + 1, freed + entry.file_bytes);
        let what = entry
            .header
            .as_ref()
            .map_or("unusable".to_string(), |header| header.phase.clone());
        outln!("{}  {what}, {}", short(&entry.id), bytes(entry.file_bytes));
    }
    let verb = if *rules.dry_run {
        "would remove"
    } else {
        "removed"
    };
    outln!(
        "{verb} {gone} of {} stored graphs, {}",
        entries.len(),
        bytes(freed)
    );
    let stuck = failures.len();
    match failures.pop() {
        None => Ok(()),
        Some(error) => Err(Error::because(
            format!(
                "{stuck} stored graphs cannot be removed from {}",
                store.dir().display()
            ),
            error,
        )
        .with_hint("their files are named above: remove what stands there, or ask their owner")),
    }
}

pub fn export(store: &Store, file: &Path, ids: &[String], modules_only: bool) -> Result<(), Error> {
    check_output("--file", file)?;
    let entries = all(store)?;
    let chosen = chosen(&entries, ids, store)?;
    // Damaged entries are not passed on, but a named one must not be left out in silence.
    let mut good = Vec::new();
    for entry in chosen {
        let stored = store.open(&entry.id);
        let whole = stored.and_then(|mut stored| stored.check_all());
        match (whole, ids.is_empty()) {
            (Ok(_), _) => good.push(entry.id.as_str()),
            (Err(damage), true) => errln!("warning: leaving {} out: {damage}", entry.id),
            (Err(damage), false) => {
                return Err(Error::failed(format!(
                    "{} is not usable: {damage}",
                    entry.id
                )));
            }
        }
    }
    let written = if modules_only {
        archive::export_modules(store, &good, file)
    } else {
        archive::export(store, &good, file)
    };
    let written = written.map_err(failed("exporting the graphs"))?;
    let line = format!(
        "wrote {} {} graphs to {}, {}",
        written.graphs,
        if modules_only { "lowered" } else { "stored" },
        file.display(),
        bytes(written.bytes)
    );
    announce(file, &line);
    Ok(())
}

pub fn import(store: &Store, file: &Path) -> Result<(), Error> {
    let imported = archive::import(store, file)
        .map_err(|e| Error::because(format!("reading {}", file.display()), e))?;
    for (name, reason) in &imported.refused {
        errln!("warning: leaving {name} out: {reason}");
    }
    outln!(
        "took {} stored graphs, {} were here already",
        imported.taken,
        imported.known
    );
    if imported.tuned > 0 {
        outln!("took measurements of {} kernels", imported.tuned);
    }
    match imported.refused.len() {
        0 => Ok(()),
        n => Err(Error::failed(format!(
            "{n} files in {} are not usable entries",
            file.display()
        ))),
    }
}
