//! From a graph to a module, and from a module to its executable in whichever form the plugin takes
//! it.
//!
//! AWS's plugin took HLO for years and is known to take StableHLO since 3.0; whether that one still
//! takes HLO is not documented. So StableHLO goes first where the target prefers it, and HLO follows
//! once if that was refused.

use super::Error;
use super::key::Key;
use super::store::EntryStore;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use xtrain_graphs::{Graph, Target, passes};
use xtrain_report::errln;
use xtrain_runtime::{
    self as runtime, Client, Code, CompileOptions, Executable, Library, Signature, hlo,
};

/// A plugin that refuses a form does so when it reads it. What fails later failed in the compiler,
/// which would fail again.
const READING: Duration = Duration::from_secs(30);

/// The serialized HLO module of a graph, as the target's compiler gets it.
pub fn emit(library: &Library, graph: &Graph, target: Target) -> Result<Vec<u8>, Error> {
    let module = library.lower(&passes::lower(graph, target)?.to_bytes())?;
    Ok(if target.requires_aliases() {
        hlo::with_required_aliases(&module)?
    } else {
        module
    })
}

/// The same, from the store if any entry of it was lowered alike: then XLA's library, which is
/// large, need not be there.
pub(super) fn stored_or_emitted(
    store: Option<&dyn EntryStore>,
    key: &Key,
    graph: &Graph,
    target: Target,
) -> Result<Vec<u8>, Error> {
    if let Some(module) = store.and_then(|store| store.module(key)) {
        return Ok(module);
    }
    match Library::open() {
        Ok(library) => emit(library, graph, target),
        Err(missing @ runtime::Error::LibraryNotFound { .. }) => Err(Error::NotLowered {
            phase: graph.name.clone(),
            target: target.to_string(),
            missing: Box::new(missing),
        }),
        Err(error) => Err(error.into()),
    }
}

/// The form that a client's plugin takes.
pub(super) struct Form {
    stablehlo_first: AtomicBool,
    reported: Once,
}

impl Form {
    pub fn of(target: Target) -> Form {
        Form {
            stablehlo_first: AtomicBool::new(target.prefers_stablehlo()),
            reported: Once::new(),
        }
    }

    pub fn compile(
        &self,
        client: &Client,
        module: &[u8],
        signature: Signature,
        options: &CompileOptions,
    ) -> Result<Executable, runtime::Error> {
        // Converting takes the library; without it a stored module goes as it is.
        let library = self
            .stablehlo_first
            .load(Ordering::Relaxed)
            .then(Library::open);
        let Some(Ok(library)) = library else {
            return client.compile(module, signature, options);
        };
        let start = Instant::now();
        let text = library.stablehlo_text(module);
        let first = text
            .and_then(|text| client.compile_stablehlo(text.as_bytes(), signature.clone(), options));
        let refusal = match first {
            Ok(executable) => {
                self.reported
                    .call_once(|| errln!("note: the plugin takes the graphs as StableHLO"));
                return Ok(executable);
            }
            Err(error) if is_final(&error) || start.elapsed() > READING => return Err(error),
            Err(error) => error,
        };
        let executable = client
            .compile(module, signature, options)
            .map_err(|error| {
                error.during(format!("StableHLO was refused ({refusal}), and so was HLO"))
            })?;
        self.stablehlo_first.store(false, Ordering::Relaxed);
        self.reported.call_once(|| {
            errln!("note: the plugin takes the graphs as HLO; it refused StableHLO: {refusal}")
        });
        Ok(executable)
    }
}

/// Whether another form would end the same way.
fn is_final(error: &runtime::Error) -> bool {
    matches!(error, runtime::Error::CallMissing { .. })
        || error.code() == Some(Code::ResourceExhausted)
}
