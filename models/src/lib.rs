//! Model definitions.
