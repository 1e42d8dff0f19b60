//! Events: "is it done yet" of executions and transfers.

use super::client::ClientInner;
use super::ffi::{self, Call, PjrtError, PjrtEvent};
use super::plugin::PluginInner;
use super::stall_timeout;
use crate::runtime::error::Result;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// The completion of an execution or a transfer. Dropping it does not cancel or wait for anything.
pub struct Event {
    raw: NonNull<PjrtEvent>,
    client: Arc<ClientInner>,
}

// SAFETY: a PJRT event may be used and destroyed from any thread.
unsafe impl Send for Event {}
// SAFETY: its calls are thread-safe.
unsafe impl Sync for Event {}

impl Event {
    /// Takes an event over.
    ///
    /// # Safety
    /// `raw` is null or an event of this client that nobody else will destroy.
    pub(super) unsafe fn from_raw(raw: *mut PjrtEvent, client: &Arc<ClientInner>) -> Option<Event> {
        NonNull::new(raw).map(|raw| Event {
            raw,
            client: client.clone(),
        })
    }

    /// Whether the event has happened, well or badly.
    pub fn is_ready(&self) -> Result<bool> {
        let mut args = ffi::EventIsReady {
            event: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the event is alive.
        unsafe { self.client.call(&mut args) }?;
        Ok(args.is_ready)
    }

    /// Blocks until the event has happened; an execution's or transfer's own error comes out here.
    pub fn wait(&self) -> Result<()> {
        self.wait_for("a piece of work")
    }

    /// As [`Event::wait`]; `what` is the word for it if the wait never ends (see `stall_timeout`).
    pub(super) fn wait_for(&self, what: &'static str) -> Result<()> {
        let mut args = ffi::EventAwait {
            event: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the event is alive.
        stall_timeout::wait(what, self.client.plugin.inner.path(), || unsafe {
            self.client.call(&mut args)
        })
    }

    /// Runs `callback` once the event has happened, on a thread of the plugin (or here, if it
    /// already has). It must not hold the last reference to a client: a client cannot be destroyed
    /// from its own threads.
    pub(super) fn on_ready(
        &self,
        callback: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        let state: Box<Pending> = Box::new((self.client.plugin.inner.clone(), Box::new(callback)));
        let state = Box::into_raw(state);
        let mut args = ffi::EventOnReady {
            event: self.raw.as_ptr(),
            callback: Some(run_callback),
            user_arg: state.cast(),
            ..Default::default()
        };
        // SAFETY: the event is alive, the callback takes a `Pending` and is called exactly once if
        // the call succeeds.
        let registered = unsafe { self.client.call(&mut args) };
        if registered.is_err() {
            // SAFETY: the call failed, so the plugin did not keep the pointer made above.
            drop(unsafe { Box::from_raw(state) });
        }
        registered
    }
}

type Pending = (Arc<PluginInner>, Box<dyn FnOnce(Result<()>) + Send>);

/// A panic in here ends the process (it cannot unwind into C), so callbacks must not.
unsafe extern "C" fn run_callback(error: *mut PjrtError, state: *mut c_void) {
    // SAFETY: `state` is the box that `on_ready` gave, and this is its only call.
    let (plugin, callback) = *unsafe { Box::from_raw(state.cast::<Pending>()) };
    // SAFETY: the callback owns the error that it is given.
    callback(unsafe { plugin.check(ffi::EventOnReady::SLOT, error) });
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this handle owns the event; this is its last use.
        let _ = unsafe {
            self.client.call(&mut ffi::EventDestroy {
                event: self.raw.as_ptr(),
                ..Default::default()
            })
        };
    }
}
