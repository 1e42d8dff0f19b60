//! The store in which the clients of several processes find each other: callbacks that the plugin
//! calls while a client is made, and later from the threads that connect its devices.

use super::bindings::*;
use super::memory::{bytes, string};
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;
use xtrain_report::panics;

/// Small values by name, shared by the processes of a run.
pub trait KeyValueStore: Send + Sync {
    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;
    /// Waits for a value that is put later.
    fn get(&self, key: &str, patience: Duration) -> Result<Vec<u8>, StoreError>;
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;
}

/// Why a store could not answer.
#[derive(Debug)]
pub enum StoreError {
    /// Nobody put the value in time.
    Timeout(String),
    Failed(String),
}

/// What the callbacks are given back as their argument. Boxed, so that its address stays.
pub(super) struct Callbacks {
    store: Arc<dyn KeyValueStore>,
}

impl Callbacks {
    pub fn new(store: Arc<dyn KeyValueStore>) -> Box<Self> {
        Box::new(Callbacks { store })
    }

    /// For the callbacks below.
    pub fn argument(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// # Safety
/// `argument` comes from [`Callbacks::argument`], and the callbacks are alive.
unsafe fn store<'a>(argument: *mut c_void) -> &'a dyn KeyValueStore {
    // SAFETY: the caller's promise.
    unsafe { &*(*argument.cast::<Callbacks>()).store }
}

/// Makes the plugin's error.
///
/// # Safety
/// `make` points to the plugin's function.
unsafe fn error(
    make: *const PJRT_CallbackError,
    code: PJRT_Error_Code,
    message: &str,
) -> *mut PJRT_Error {
    // SAFETY: the caller's promise; the message lives through the call. Without a function no error
    // can be made.
    unsafe {
        (*make).map_or(std::ptr::null_mut(), |make| {
            make(code, message.as_ptr().cast(), message.len())
        })
    }
}

/// Makes the plugin's error of a failure.
///
/// # Safety
/// As for [`error`].
unsafe fn failed(make: *const PJRT_CallbackError, failure: StoreError) -> *mut PJRT_Error {
    let (code, message) = match failure {
        StoreError::Timeout(message) => (PJRT_Error_Code_DEADLINE_EXCEEDED, message),
        StoreError::Failed(message) => (PJRT_Error_Code_UNAVAILABLE, message),
    };
    // SAFETY: the caller's promise is the same.
    unsafe { error(make, code, &message) }
}

/// A panic must not cross into C.
fn guarded<T>(ask: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    panics::guarded(ask).unwrap_or_else(|message| {
        Err(StoreError::Failed(format!(
            "the key-value store panicked: {message}"
        )))
    })
}

/// Gives a value away; [`delete`] takes it back.
fn give(value: Vec<u8>) -> (*mut c_char, usize) {
    let size = value.len();
    // SAFETY: malloc of at least one byte; the copy is of the value's own size.
    unsafe {
        let copy = libc::malloc(size.max(1)).cast::<u8>();
        if copy.is_null() {
            std::alloc::handle_alloc_error(
                std::alloc::Layout::array::<u8>(size.max(1)).expect("it fitted into a vector"),
            );
        }
        std::ptr::copy_nonoverlapping(value.as_ptr(), copy, size);
        (copy.cast(), size)
    }
}

unsafe extern "C" fn delete(value: *mut c_char) {
    // SAFETY: the plugin hands back what `give` made, once.
    unsafe { libc::free(value.cast()) }
}

pub(super) unsafe extern "C" fn put(args: *mut PJRT_KeyValuePutCallback_Args) -> *mut PJRT_Error {
    // SAFETY: the plugin fills the struct as the header says; the client that lent the callbacks is
    // alive.
    unsafe {
        let args = &mut *args;
        let (key, value) = (
            string(args.key, args.key_size),
            bytes(args.value, args.value_size),
        );
        match guarded(|| store(args.user_arg).put(&key, value)) {
            Ok(()) => std::ptr::null_mut(),
            Err(failure) => failed(args.callback_error, failure),
        }
    }
}

pub(super) unsafe extern "C" fn get(args: *mut PJRT_KeyValueGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as in `put`.
    unsafe {
        let args = &mut *args;
        let (key, patience) = (
            string(args.key, args.key_size),
            Duration::from_millis(args.timeout_in_ms.max(0) as u64),
        );
        match guarded(|| store(args.user_arg).get(&key, patience)) {
            Ok(value) => {
                (args.value, args.value_size) = give(value);
                args.value_deleter_callback = Some(delete);
                std::ptr::null_mut()
            }
            Err(failure) => failed(args.callback_error, failure),
        }
    }
}

pub(super) unsafe extern "C" fn try_get(
    args: *mut PJRT_KeyValueTryGetCallback_Args,
) -> *mut PJRT_Error {
    // SAFETY: as in `put`. A plugin of an older header cannot call this.
    unsafe {
        let args = &mut *args;
        let key = string(args.key, args.key_size);
        match guarded(|| store(args.user_arg).try_get(&key)) {
            Ok(Some(value)) => {
                (args.value, args.value_size) = give(value);
                args.value_deleter_callback = Some(delete);
                std::ptr::null_mut()
            }
            Ok(None) => {
                let message = format!("no value of the name {key}");
                error(args.callback_error, PJRT_Error_Code_NOT_FOUND, &message)
            }
            Err(failure) => failed(args.callback_error, failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Memory(Mutex<HashMap<String, Vec<u8>>>);

    impl KeyValueStore for Memory {
        fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
            self.0.lock().unwrap().insert(key.into(), value.into());
            Ok(())
        }

        fn get(&self, key: &str, _patience: Duration) -> Result<Vec<u8>, StoreError> {
            self.try_get(key)?.ok_or(StoreError::Timeout(key.into()))
        }

        fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(self.0.lock().unwrap().get(key).cloned())
        }
    }

    /// Stands for the plugin's: an error is its code as an address.
    unsafe extern "C" fn code(
        code: PJRT_Error_Code,
        _message: *const c_char,
        _size: usize,
    ) -> *mut PJRT_Error {
        std::ptr::without_provenance_mut(code as usize)
    }

    #[test]
    fn values_cross_the_callbacks() {
        let callbacks = Callbacks::new(Arc::new(Memory::default()));
        let mut make: PJRT_CallbackError = Some(code);
        let (key, value) = ("a/b", [1u8, 0, 255]);
        let (key_at, size) = (key.as_ptr().cast(), key.len());
        let (user_arg, callback_error) = (callbacks.argument(), &raw mut make);
        let mut got = PJRT_KeyValueTryGetCallback_Args {
            key: key_at,
            key_size: size,
            callback_error,
            user_arg,
            ..Default::default()
        };
        let mut waited = PJRT_KeyValueGetCallback_Args {
            key: key_at,
            key_size: size,
            callback_error,
            user_arg,
            ..Default::default()
        };
        // SAFETY: the structs are filled as a plugin fills them.
        unsafe {
            assert_eq!(
                try_get(&mut got) as usize,
                PJRT_Error_Code_NOT_FOUND as usize
            );
            assert_eq!(
                get(&mut waited) as usize,
                PJRT_Error_Code_DEADLINE_EXCEEDED as usize
            );
            let value_at = value.as_ptr().cast();
            let mut given = PJRT_KeyValuePutCallback_Args {
                key: key_at,
                key_size: size,
                value: value_at,
                value_size: 3,
                callback_error,
                user_arg,
                ..Default::default()
            };
            assert!(put(&mut given).is_null());
            assert!(get(&mut waited).is_null());
            assert_eq!(bytes(waited.value, waited.value_size), value);
            waited.value_deleter_callback.unwrap()(waited.value);
        }
    }
}
