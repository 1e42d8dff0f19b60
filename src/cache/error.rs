//! What can go wrong on the way from a graph to an executable.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Graph(#[from] xtrain_graphs::Error),
    #[error(transparent)]
    Runtime(#[from] crate::runtime::Error),
}
