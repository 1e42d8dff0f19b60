//! The emitter and the CPU plugin.
