//! Objects of a plugin's. Each is owned by one handle, which keeps alive what the object was made
//! from, and destroys it.

use super::bindings::*;
use super::call::{Call, Question};
use super::plugin::{Plugin, PluginInner};
use crate::error::Result;
use std::ptr::NonNull;
use std::sync::Arc;

/// A type of the plugin's that a call destroys.
pub trait Object: Sized {
    type Destroy: Call;
    const WHAT: &'static str;
    fn destroy(raw: *mut Self) -> Self::Destroy;
}

macro_rules! objects {
    ($($what:literal: $object:ident, $destroy:ident.$field:ident;)*) => {$(
        impl Object for $object {
            type Destroy = $destroy;
            const WHAT: &'static str = $what;

            fn destroy(raw: *mut Self) -> $destroy {
                $destroy { $field: raw, ..Default::default() }
            }
        }
    )*};
}
objects! {
    "client": PJRT_Client, PJRT_Client_Destroy_Args.client;
    "topology": PJRT_TopologyDescription, PJRT_TopologyDescription_Destroy_Args.topology;
    "event": PJRT_Event, PJRT_Event_Destroy_Args.event;
    "buffer": PJRT_Buffer, PJRT_Buffer_Destroy_Args.buffer;
    "executable": PJRT_Executable, PJRT_Executable_Destroy_Args.executable;
    "loaded executable": PJRT_LoadedExecutable, PJRT_LoadedExecutable_Destroy_Args.executable;
}

/// What an object was made from, which has to outlive it.
pub trait Owner: Send + Sync {
    fn plugin(&self) -> &Arc<PluginInner>;
}

impl Owner for Plugin {
    fn plugin(&self) -> &Arc<PluginInner> {
        &self.inner
    }
}

impl<O: Owner + ?Sized> Owner for Arc<O> {
    fn plugin(&self) -> &Arc<PluginInner> {
        (**self).plugin()
    }
}

/// Owns an object.
pub struct Handle<T: Object, O: Owner> {
    raw: NonNull<T>,
    pub owner: O,
}

// SAFETY: PJRT's objects may be used and destroyed from any thread (a client from any but its own;
// see `Event::on_ready`).
unsafe impl<T: Object, O: Owner> Send for Handle<T, O> {}
// SAFETY: their calls are thread-safe. Of a buffer's donation the plugin decides which of two takers
// comes first.
unsafe impl<T: Object, O: Owner> Sync for Handle<T, O> {}

impl<T: Object, O: Owner> Handle<T, O> {
    /// Takes over the object that `call` gave.
    ///
    /// # Errors
    /// It gave none.
    ///
    /// # Safety
    /// `raw` is null or an object of the owner's plugin that nobody else will destroy.
    pub unsafe fn new(raw: *mut T, owner: O, call: &'static str) -> Result<Self> {
        match NonNull::new(raw) {
            Some(raw) => Ok(Handle { raw, owner }),
            None => Err(owner.plugin().answer(call, format!("gave no {}", T::WHAT))),
        }
    }

    pub fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Makes a call whose only input is this object.
    ///
    /// # Errors
    /// As for `PluginInner::call`.
    pub fn ask<A: Question<T>>(&self) -> Result<A> {
        // SAFETY: the handle keeps the object alive. None of the questions destroys one.
        unsafe { self.owner.plugin().ask(self.raw()) }
    }

    /// Makes a call.
    ///
    /// # Errors
    /// As for `PluginInner::call`.
    ///
    /// # Safety
    /// As for `PluginInner::call`.
    pub unsafe fn call<A: Call>(&self, args: A) -> Result<A> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.owner.plugin().call(args) }
    }
}

impl<T: Object, O: Owner> Drop for Handle<T, O> {
    fn drop(&mut self) {
        // SAFETY: this handle owns the object; this is its last use. What was made from it keeps
        // this handle alive, and executions and copies under way hold what they need themselves.
        let _ = unsafe { self.call(T::destroy(self.raw())) };
    }
}
