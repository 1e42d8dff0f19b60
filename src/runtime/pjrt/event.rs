//! Events: "is it done yet" of executions and transfers.

use super::bindings::*;
use super::client::ClientInner;
use super::handle::{Handle, Owner};
use super::stall_timeout::{self, Watched};
use crate::error::Result;
use std::sync::Arc;

/// The completion of an execution or a transfer. Dropping it does not cancel or wait for anything.
pub struct Event {
    handle: Handle<PJRT_Event, Arc<ClientInner>>,
}

impl Event {
    /// Takes over the event that `call` gave.
    ///
    /// # Safety
    /// `raw` is null or an event of this client that nobody else will destroy.
    pub(super) unsafe fn from_raw(
        raw: *mut PJRT_Event,
        client: &Arc<ClientInner>,
        call: &'static str,
    ) -> Result<Event> {
        // SAFETY: the caller's promise is the same.
        let handle = unsafe { Handle::new(raw, client.clone(), call) }?;
        Ok(Event { handle })
    }

    /// Whether the event has happened, well or badly.
    pub fn is_ready(&self) -> Result<bool> {
        Ok(self.handle.ask::<PJRT_Event_IsReady_Args>()?.is_ready)
    }

    /// Blocks until the event has happened; an execution's or transfer's own error comes out here.
    pub fn wait(&self) -> Result<()> {
        self.wait_for("a piece of work")
    }

    /// As [`Event::wait`]; `what` is the word for it if the wait never ends (see `stall_timeout`).
    pub(super) fn wait_for(&self, what: &'static str) -> Result<()> {
        stall_timeout::wait(
            Watched::Device(what),
            self.handle.owner.plugin().path(),
            || self.handle.ask::<PJRT_Event_Await_Args>().map(drop),
        )
    }
}
