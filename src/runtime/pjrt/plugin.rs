//! A PJRT plugin: a shared library whose `GetPjrtApi` returns a table of calls. This file opens it,
//! agrees on versions, and is the only place that jumps through the table (`PluginInner::call`), so
//! a slot that is null, or that an older plugin does not have, is an error with the call's name.

use super::bindings::*;
use super::call::{Call, Question};
use super::early_log::without_info;
use super::environment::{FlagReader, OWN_LIBRARY, leave_out_foreign_flags, set_environment};
use super::memory::string;
use super::options::{self, OptionValue};
use crate::error::{Code, Error, Result};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

/// Major and minor version of the table. Those of another major version are laid out in another
/// way; older ones lack calls without which nothing runs (events on execute, memory statistics,
/// load).
const WANTED: (i32, i32) = (PJRT_API_MAJOR as i32, 54);

/// Where in the table the calls begin.
const CALLS_START: usize = offset_of!(PJRT_Api, PJRT_Error_Destroy);

/// Environment that libraries read while they are being opened. The user's own setting wins, except
/// for the last: Neuron's plugin checks struct sizes for equality against the header version named
/// there, which must be ours.
const ENVIRONMENT: [(&str, &str, bool); 3] = [
    // TensorFlow announces oneDNN on stderr at load unless this is set; XLA's results do not depend
    // on it.
    ("TF_ENABLE_ONEDNN_OPTS", "0", false),
    // XLA's C++ log. Everything that matters also comes back as an error; loading a cached
    // executable logs false alarms.
    ("TF_CPP_MIN_LOG_LEVEL", "3", false),
    ("NEURON_INTERNAL_PJRT_C_API_VERSION", "0.90", true),
];

/// An opened and initialized plugin. Cloning is cheap; the library stays open for the life of the
/// process, because neither XLA nor the vendors' plugins survive `dlclose`.
#[derive(Clone)]
pub struct Plugin {
    pub(super) inner: Arc<PluginInner>,
}

pub(super) struct PluginInner {
    path: Arc<PathBuf>,
    table: *const u8,
    table_size: usize,
    version: (i32, i32),
    attributes: Vec<(String, OptionValue)>,
}

// SAFETY: the table is constant after initialization and lives in a library that is never closed;
// PJRT calls are thread-safe by contract.
unsafe impl Send for PluginInner {}
// SAFETY: as above.
unsafe impl Sync for PluginInner {}

/// Plugins by path: opening one twice gives the same one, as `PJRT_Plugin_Initialize` may run only
/// once.
static OPENED: LazyLock<Mutex<HashMap<PathBuf, Plugin>>> = LazyLock::new(Default::default);

impl Plugin {
    /// Opens the plugin at `path`; one that is open already is given again.
    ///
    /// # Errors
    /// If the file cannot be opened as a library or is no plugin of a version that is spoken here.
    pub fn load(path: impl AsRef<Path>) -> Result<Plugin> {
        let path = path.as_ref();
        let path = path.canonicalize().map_err(|e| Error::LibraryOpen {
            path: path.into(),
            reason: e.to_string(),
        })?;
        let mut opened = OPENED
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(plugin) = opened.get(&path) {
            return Ok(plugin.clone());
        }
        let is_own = path.file_name().is_some_and(|name| name == OWN_LIBRARY);
        leave_out_foreign_flags(if is_own {
            FlagReader::Own
        } else {
            FlagReader::Plugin
        });
        let library = open_library(&path)?;
        let plugin = Plugin {
            inner: Arc::new(PluginInner::new(&path, library)?),
        };
        opened.insert(path, plugin.clone());
        Ok(plugin)
    }

    /// Major and minor version of the PJRT C API that the plugin was built with.
    pub fn api_version(&self) -> (i32, i32) {
        self.inner.version
    }

    /// What the plugin says about itself (`xla_version`, `stablehlo_current_version`, ...).
    pub fn attributes(&self) -> &[(String, OptionValue)] {
        &self.inner.attributes
    }

    pub fn path(&self) -> &Path {
        &self.inner.path
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.inner.version;
        write!(
            f,
            "Plugin({}, PJRT C API {major}.{minor})",
            self.inner.path.display()
        )
    }
}

/// Opens a shared library for good, with the environment that such libraries want.
pub(super) fn open_library(path: &Path) -> Result<&'static libloading::Library> {
    static ONCE: Mutex<()> = Mutex::new(());
    let _guard = ONCE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (name, value, always) in ENVIRONMENT {
        if always || std::env::var_os(name).is_none() {
            set_environment(name, Some(value));
        }
    }
    // SAFETY: the initializers of the library run here. That is what opening a plugin means; the
    // path is the user's choice.
    let opened = without_info(|| unsafe {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        Library::open(Some(path), RTLD_NOW | RTLD_LOCAL)
    });
    let library = opened.map_err(|e| Error::LibraryOpen {
        path: path.into(),
        reason: reason(&e),
    })?;
    Ok(Box::leak(Box::new(library.into())))
}

/// libloading keeps the loader's message in the source of its error.
pub(crate) fn reason(error: &libloading::Error) -> String {
    let inner = std::error::Error::source(error).map(|e| e.to_string());
    inner.unwrap_or_else(|| error.to_string())
}

/// The answer of a call that a plugin need not have; `None` from one that has not.
pub(super) fn implemented<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(error) if error.is_unimplemented() => Ok(None),
        answer => answer.map(Some),
    }
}

impl PluginInner {
    fn new(path: &Path, library: &'static libloading::Library) -> Result<Self> {
        type GetPjrtApi = unsafe extern "C" fn() -> *const PJRT_Api;
        // SAFETY: the type is the one that the header gives to this symbol.
        let get_api = unsafe { library.get::<GetPjrtApi>(b"GetPjrtApi\0") }.map_err(|e| {
            Error::SymbolMissing {
                path: path.into(),
                symbol: "GetPjrtApi",
                reason: reason(&e),
                wanted: "a PJRT plugin",
            }
        })?;
        // SAFETY: the function takes nothing and returns null or a table that lives as long as the
        // library, which is forever.
        unsafe { Self::from_table(path, get_api()) }
    }

    /// Agrees with a plugin on versions and initializes it.
    ///
    /// # Safety
    /// `header` is null or the start of a table that stays for the life of the process.
    pub unsafe fn from_table(path: &Path, header: *const PJRT_Api) -> Result<Self> {
        let unusable = |reason: &str| Error::PluginTable {
            path: path.into(),
            reason: reason.into(),
        };
        if header.is_null() {
            return Err(unusable("GetPjrtApi returned null"));
        }
        // SAFETY: every version of the table starts with its size and version.
        let (
            table_size,
            PJRT_Api_Version {
                major_version: major,
                minor_version: minor,
                ..
            },
        ) = unsafe { ((*header).struct_size, (*header).pjrt_api_version) };
        if table_size < CALLS_START {
            return Err(unusable(&format!(
                "its table of calls has only {table_size} bytes"
            )));
        }
        if major != WANTED.0 || minor < WANTED.1 {
            return Err(Error::PluginVersion {
                path: path.into(),
                found: (major, minor),
                wanted: WANTED,
            });
        }
        let mut plugin = PluginInner {
            path: Arc::new(path.into()),
            table: header.cast(),
            table_size,
            version: (major, minor),
            attributes: Vec::new(),
        };

        let doing = || format!("initializing the plugin {}", path.display());
        // SAFETY: the struct has no fields beyond the common two.
        unsafe { plugin.call(PJRT_Plugin_Initialize_Args::default()) }
            .map_err(|e| e.during(doing()))?;
        // SAFETY: no inputs; the output array lives as long as the plugin, and is copied at once.
        unsafe {
            let told = plugin.call(PJRT_Plugin_Attributes_Args::default());
            if let Some(told) = implemented(told).map_err(|e| e.during(doing()))? {
                plugin.attributes = options::read_named(told.attributes, told.num_attributes);
            }
        }
        Ok(plugin)
    }

    /// The function of a call, if the plugin's table reaches that far and the slot is filled.
    fn slot<A: Call>(&self) -> Result<*const c_void> {
        let end = A::OFFSET + size_of::<*const c_void>();
        let function = if end <= self.table_size {
            // SAFETY: the slot lies within the table, whose size the plugin itself gives; slots are
            // aligned pointers.
            unsafe { self.table.add(A::OFFSET).cast::<*const c_void>().read() }
        } else {
            std::ptr::null()
        };
        if function.is_null() {
            return Err(Error::CallMissing {
                call: A::NAME,
                path: self.path.to_path_buf(),
                version: self.version,
            });
        }
        Ok(function)
    }

    /// Makes a call; gives the arguments back with what the plugin wrote into them.
    ///
    /// # Errors
    /// The plugin lacks the call, or it failed.
    ///
    /// # Safety
    /// The pointers in `args` must be what the header asks for in this call, and live as long as it
    /// asks.
    pub unsafe fn call<A: Call>(&self, mut args: A) -> Result<A> {
        let function = self.slot::<A>()?;
        // SAFETY: the slot is filled with the function that takes this struct: `Call` ties the
        // struct to its slot, `bindings` has the layout of both, and the only slots of another type
        // (errors' own) are not called through here.
        let error = unsafe {
            type Function<A> = unsafe extern "C" fn(*mut A) -> *mut PJRT_Error;
            let function = std::mem::transmute::<*const c_void, Function<A>>(function);
            function(&mut args)
        };
        // SAFETY: the error came from this plugin and nobody else has it.
        unsafe { self.check(A::NAME, error) }?;
        Ok(args)
    }

    /// Makes a call whose only input is an object.
    ///
    /// # Errors
    /// As for [`PluginInner::call`].
    ///
    /// # Safety
    /// The object is alive.
    pub unsafe fn ask<A: Question<T>, T>(&self, object: *mut T) -> Result<A> {
        // SAFETY: it is all that the call needs.
        unsafe { self.call(A::about(object)) }
    }

    /// Turns the plugin's error object into ours and frees it; null is success.
    ///
    /// # Safety
    /// `error` is null or an error that this plugin made and that nobody else will destroy.
    pub unsafe fn check(&self, call: &'static str, error: *mut PJRT_Error) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the error is alive until it is destroyed, which is its last use; the caller gave
        // it to us. The text belongs to it and is copied before. A failure to name the code leaves
        // it "unknown".
        let (code, message) = unsafe {
            let code = self
                .call_infallible::<PJRT_Error_GetCode_Args>(error)
                .map_or(0, |told| told.code);
            let message = self
                .call_infallible::<PJRT_Error_Message_Args>(error)
                .map_or_else(
                    |_| String::from("(no message)"),
                    |told| string(told.message, told.message_size),
                );
            let _ = self.call_infallible::<PJRT_Error_Destroy_Args>(error);
            (code, message)
        };
        Err(Error::Call {
            call,
            code: Code::from_raw(code),
            message: message.trim_end().to_owned(),
            path: self.path.to_path_buf(),
        })
    }

    /// The three calls on errors. Two return nothing and `GetCode` an error that is always null;
    /// reading no result fits both.
    ///
    /// # Safety
    /// As for `call`.
    unsafe fn call_infallible<A: Question<PJRT_Error>>(&self, error: *mut PJRT_Error) -> Result<A> {
        let (function, mut args) = (self.slot::<A>()?, A::about(error));
        // SAFETY: the slot takes this struct; ignoring a pointer result is the same call in the C
        // calling convention.
        unsafe {
            type Function<A> = unsafe extern "C" fn(*mut A);
            let function = std::mem::transmute::<*const c_void, Function<A>>(function);
            function(&mut args);
        }
        Ok(args)
    }

    pub fn path(&self) -> &Arc<PathBuf> {
        &self.path
    }

    /// A plugin that says yes and gives nothing.
    pub fn answer(&self, call: &'static str, reason: impl Into<String>) -> Error {
        Error::PluginAnswer {
            call,
            reason: reason.into(),
            path: self.path.to_path_buf(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_int;

    unsafe extern "C" fn succeed(_: *mut PJRT_Plugin_Initialize_Args) -> *mut PJRT_Error {
        std::ptr::null_mut()
    }

    /// A table without a plugin: all slots null but `Plugin_Initialize`.
    fn plugin(
        struct_size: usize,
        major_version: c_int,
        minor_version: c_int,
    ) -> Result<PluginInner> {
        // SAFETY: numbers, pointers and optional functions, which may be zero.
        let mut table: Box<PJRT_Api> = Box::new(unsafe { std::mem::zeroed() });
        table.struct_size = struct_size;
        table.pjrt_api_version.major_version = major_version;
        table.pjrt_api_version.minor_version = minor_version;
        table.PJRT_Plugin_Initialize = Some(succeed);
        // SAFETY: leaked, so it stays; and laid out as a table.
        unsafe { PluginInner::from_table(Path::new("/fake.so"), Box::leak(table)) }
    }

    #[test]
    fn null_slots_and_slots_beyond_the_table_are_errors_with_the_name() {
        let short = PJRT_Client_Create_Args::OFFSET;
        for size in [size_of::<PJRT_Api>(), short] {
            let plugin = plugin(size, 0, 90).unwrap();
            // SAFETY: no call is made, as the slot is empty.
            let error = unsafe { plugin.call(PJRT_Client_Create_Args::default()) }
                .err()
                .unwrap();
            assert!(error.is_unimplemented());
            let message = error.to_string();
            assert!(
                message.contains("PJRT_Client_Create") && message.contains("/fake.so"),
                "{message}"
            );
        }
    }

    #[test]
    fn versions_are_negotiated() {
        assert!(
            plugin(size_of::<PJRT_Api>(), 0, 116).is_ok(),
            "newer minor versions are fine"
        );
        for (major, minor) in [(1, 0), (0, 53)] {
            let message = plugin(size_of::<PJRT_Api>(), major, minor)
                .err()
                .unwrap()
                .to_string();
            assert!(
                message.contains(&format!("{major}.{minor}")) && message.contains("0.54"),
                "{message}"
            );
        }
    }

    #[test]
    fn broken_tables_are_refused() {
        assert!(
            plugin(16, 0, 90)
                .err()
                .unwrap()
                .to_string()
                .contains("16 bytes")
        );
        // SAFETY: null is allowed.
        let null = unsafe { PluginInner::from_table(Path::new("/fake.so"), std::ptr::null()) };
        assert!(null.err().unwrap().to_string().contains("null"));
    }

    #[test]
    fn a_library_without_the_entry_point_is_not_a_plugin() {
        let this = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = this
            .split_whitespace()
            .find(|word| word.contains("libc.so"))
            .unwrap();
        let message = Plugin::load(libc).unwrap_err().to_string();
        assert!(
            message.contains("GetPjrtApi") && message.contains("not a PJRT plugin"),
            "{message}"
        );
        let message = Plugin::load("/nowhere/plugin.so").unwrap_err().to_string();
        assert!(message.contains("/nowhere/plugin.so"), "{message}");
    }
}
