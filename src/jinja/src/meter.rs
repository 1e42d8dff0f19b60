//! The steps that a rendering may take. Values compare, print and copy themselves without a way to
//! the interpreter, so that the count belongs to the thread that renders.

use std::cell::Cell;

/// Bytes and items that cost one step.
const PER_STEP: usize = 64;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// No step is left.
#[derive(Debug)]
pub(crate) struct OutOfSteps;

/// Sets the steps of the rendering that begins.
pub(crate) fn start(steps: u64) {
    LEFT.set(steps);
}

/// Takes steps.
pub(crate) fn spend(steps: u64) -> Result<(), OutOfSteps> {
    let left = LEFT.get().checked_sub(steps);
    LEFT.set(left.unwrap_or(0));
    left.map(|_| ()).ok_or(OutOfSteps)
}

/// Takes the steps that this many bytes of new text cost.
pub(crate) fn spend_bytes(bytes: usize) -> Result<(), OutOfSteps> {
    spend((bytes / PER_STEP) as u64)
}

/// Takes the steps that this many new items cost.
pub(crate) fn spend_items(items: usize) -> Result<(), OutOfSteps> {
    spend(items as u64)
}
