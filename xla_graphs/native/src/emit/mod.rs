//! The emitter: canonical graph bytes in, serialized `HloModuleProto` out.
//!
//! Two halves: `builder` says everything that xla-rs's `XlaBuilder` can say and leaves marker
//! custom calls for the rest; `finish` rewrites the markers on the decoded module and writes each
//! instruction's model path into its metadata. The graph must be prepared
//! (`xtrain_graphs::passes::lower`): composites are refused. Equal graph bytes give equal module
//! bytes.

mod barrier;
mod builder;
mod call;
mod collective;
mod finish;
mod ids;
mod shapes;

use prost::Message;
use xtrain_graphs::Graph;

/// Why a graph cannot be lowered.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// A malformed graph, or an operation that XLA refuses: names the operation, its operands'
    /// shapes and its model path.
    #[error(transparent)]
    Graph(#[from] xtrain_graphs::Error),
    #[error("XLA refuses the module of graph `{graph}`: {message}")]
    Module { graph: String, message: String },
    #[error("the module of graph `{graph}` cannot be finished: {message}")]
    Finish { graph: String, message: String },
}

/// Lowers a prepared graph. The message of an error is complete: operation, shapes, model path.
pub fn lower(graph: &[u8]) -> Result<Vec<u8>, String> {
    let lower = || -> Result<Vec<u8>, Error> {
        let graph = Graph::from_bytes(graph)?;
        graph.check()?;
        graph.check_primitives()?;
        let module = builder::build(&graph)?;
        let module = finish::finish(&graph, &module).map_err(|message| Error::Finish {
            graph: graph.name.clone(),
            message,
        })?;
        Ok(module.encode_to_vec())
    };
    lower().map_err(|error| error.to_string())
}
