//! A PJRT plugin: a shared library whose `GetPjrtApi` returns a table of calls. This file opens it,
//! agrees on versions, and is the only place that jumps through the table (`PluginInner::call`), so
//! a slot that is null, or that an older plugin does not have, is an error with the call's name.

use super::ffi::{self, ApiHeader, Call, Slot};
use super::memory::string;
use super::options::{self, OptionValue};
use crate::runtime::error::{Code, Error, Result};
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

/// Older tables than this lack calls without which nothing runs (events on execute, memory
/// statistics, load).
const MINOR_FLOOR: i32 = 54;

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
    /// Opens the plugin at `path`. Do this before starting threads that read the environment
    /// through C.
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

/// Sets a variable that a plugin reads while it is opened, or removes it.
///
/// # Safety
/// No other thread reads the environment through C meanwhile: call it before the first plugin or
/// library is opened, and before threads that resolve host names.
pub unsafe fn set_environment(name: &str, value: Option<&str>) {
    // SAFETY: the caller's promise; Rust's own readers are synchronized with this.
    match value {
        Some(value) => unsafe { std::env::set_var(name, value) },
        None => unsafe { std::env::remove_var(name) },
    }
}

/// Opens a shared library for good, with the environment that such libraries want.
pub(super) fn open_library(path: &Path) -> Result<&'static libloading::Library> {
    static ONCE: Mutex<()> = Mutex::new(());
    let _guard = ONCE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (name, value, always) in ENVIRONMENT {
        let same = std::env::var_os(name).is_some_and(|current| current == value || !always);
        if !same {
            // SAFETY: writes happen under this lock, only before the first library is opened
            // (afterwards `same` holds), and Rust's own readers are synchronized with it;
            // `Plugin::load` and `Library::open` ask callers to come before C threads that read.
            unsafe { std::env::set_var(name, value) };
        }
    }
    // SAFETY: the initializers of the library run here. That is what opening a plugin means; the
    // path is the user's choice.
    let opened = unsafe {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        Library::open(Some(path), RTLD_NOW | RTLD_LOCAL)
    };
    let library = opened.map_err(|e| Error::LibraryOpen {
        path: path.into(),
        reason: reason(&e),
    })?;
    Ok(Box::leak(Box::new(library.into())))
}

/// libloading keeps the loader's message in the source of its error.
pub(in crate::runtime) fn reason(error: &libloading::Error) -> String {
    let inner = std::error::Error::source(error).map(|e| e.to_string());
    inner.unwrap_or_else(|| error.to_string())
}

impl PluginInner {
    fn new(path: &Path, library: &'static libloading::Library) -> Result<Self> {
        type GetPjrtApi = unsafe extern "C" fn() -> *const ApiHeader;
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
    pub unsafe fn from_table(path: &Path, header: *const ApiHeader) -> Result<Self> {
        let unusable = |reason: &str| Error::PluginTable {
            path: path.into(),
            reason: reason.into(),
        };
        if header.is_null() {
            return Err(unusable("GetPjrtApi returned null"));
        }
        // SAFETY: every version of the table starts with this header.
        let (table_size, major, minor) = unsafe {
            (
                (*header).struct_size,
                (*header).version.major,
                (*header).version.minor,
            )
        };
        if table_size < size_of::<ApiHeader>() {
            return Err(unusable(&format!(
                "its table of calls has only {table_size} bytes"
            )));
        }
        if major != ffi::API_MAJOR || minor < MINOR_FLOOR {
            return Err(Error::PluginVersion {
                path: path.into(),
                found: (major, minor),
                wanted: (ffi::API_MAJOR, MINOR_FLOOR),
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
        unsafe { plugin.call(&mut ffi::PluginInitialize::default()) }
            .map_err(|e| e.during(doing()))?;
        let mut attributes = ffi::PluginAttributes::default();
        // SAFETY: no inputs; the output array lives as long as the plugin, and is copied at once.
        match unsafe { plugin.call(&mut attributes) } {
            // SAFETY: the call succeeded, so pointer and count describe an array of named values.
            Ok(()) => {
                plugin.attributes =
                    unsafe { options::read_named(attributes.attributes, attributes.num_attributes) }
            }
            Err(e) if e.is_unimplemented() => {}
            Err(e) => return Err(e.during(doing())),
        }
        Ok(plugin)
    }

    /// The function in a slot, if the plugin's table reaches that far and the slot is filled.
    fn slot(&self, slot: Slot) -> Result<*const c_void> {
        let end = slot.offset() + size_of::<*const c_void>();
        let function = if end <= self.table_size {
            // SAFETY: the slot lies within the table, whose size the plugin itself gives; slots are
            // aligned pointers.
            unsafe { self.table.add(slot.offset()).cast::<*const c_void>().read() }
        } else {
            std::ptr::null()
        };
        if function.is_null() {
            return Err(Error::CallMissing {
                call: slot.name(),
                path: self.path.to_path_buf(),
                version: self.version,
            });
        }
        Ok(function)
    }

    /// Makes a call.
    ///
    /// # Safety
    /// The pointers in `args` must be what the header asks for in this call, and live as long as it
    /// asks.
    pub unsafe fn call<A: Call>(&self, args: &mut A) -> Result<()> {
        let function = self.slot(A::SLOT)?;
        // SAFETY: the slot is filled with the function that takes this struct: `Call` ties the
        // struct to its slot, `layout.rs` checks both, and the only two slots of another type
        // (errors' own) are not called through here.
        let error = unsafe {
            let function = std::mem::transmute::<*const c_void, ffi::ErrorCall<A>>(function);
            function(args)
        };
        // SAFETY: the error came from this plugin and nobody else has it.
        unsafe { self.check(A::SLOT, error) }
    }

    /// Turns the plugin's error object into ours and frees it; null is success.
    ///
    /// # Safety
    /// `error` is null or an error that this plugin made and that nobody else will destroy.
    pub unsafe fn check(&self, slot: Slot, error: *mut ffi::PjrtError) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        let mut code = ffi::ErrorGetCode {
            error,
            code: 0,
            ..Default::default()
        };
        // SAFETY: the error is alive until destroyed below. A failure to name the code leaves it 0,
        // "unknown".
        let _ = unsafe { self.call_infallible(&mut code) };
        let mut text = ffi::ErrorMessage {
            error,
            ..Default::default()
        };
        // SAFETY: as above; the text belongs to the error and is copied before that is destroyed.
        let message = match unsafe { self.call_infallible(&mut text) } {
            Ok(()) => unsafe { string(text.message, text.message_size) },
            Err(_) => String::from("(no message)"),
        };
        // SAFETY: the caller gave the error to us; this is its last use.
        let _ = unsafe {
            self.call_infallible(&mut ffi::ErrorDestroy {
                error,
                ..Default::default()
            })
        };
        let message = message.trim_end().to_owned();
        Err(Error::Call {
            call: slot.name(),
            code: Code::from_raw(code.code),
            message,
            path: self.path.to_path_buf(),
        })
    }

    /// The three calls on errors. Two return nothing and `GetCode` an error that is always null;
    /// reading no result fits both.
    ///
    /// # Safety
    /// As for `call`.
    unsafe fn call_infallible<A: Call>(&self, args: &mut A) -> Result<()> {
        let function = self.slot(A::SLOT)?;
        // SAFETY: the slot takes this struct; ignoring a pointer result is the same call in the C
        // calling convention.
        unsafe {
            let function = std::mem::transmute::<*const c_void, ffi::VoidCall<A>>(function);
            function(args);
        }
        Ok(())
    }

    pub fn path(&self) -> &Arc<PathBuf> {
        &self.path
    }

    /// A plugin that says yes and gives nothing.
    pub fn answer(&self, slot: Slot, reason: impl Into<String>) -> Error {
        Error::PluginAnswer {
            call: slot.name(),
            reason: reason.into(),
            path: self.path.to_path_buf(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_int;

    /// A table without a plugin: all slots null but `Plugin_Initialize`.
    #[repr(C)]
    struct Table {
        header: ApiHeader,
        slots: [*const c_void; 128],
    }

    unsafe extern "C" fn succeed(_: *mut ffi::PluginInitialize) -> *mut ffi::PjrtError {
        std::ptr::null_mut()
    }

    fn plugin(struct_size: usize, major: c_int, minor: c_int) -> Result<PluginInner> {
        let none = std::ptr::null_mut();
        let version = ffi::ApiVersion {
            struct_size: 24,
            extension_start: none,
            major,
            minor,
        };
        let header = ApiHeader {
            struct_size,
            extension_start: none,
            version,
        };
        let mut table = Box::new(Table {
            header,
            slots: [std::ptr::null(); 128],
        });
        table.slots[Slot::Plugin_Initialize as usize] = succeed as *const c_void;
        let table: *const Table = Box::leak(table);
        // SAFETY: leaked, so it stays; and laid out as a table.
        unsafe { PluginInner::from_table(Path::new("/fake.so"), table.cast()) }
    }

    #[test]
    fn null_slots_and_slots_beyond_the_table_are_errors_with_the_name() {
        let short = Slot::Client_Create.offset();
        for size in [size_of::<Table>(), short] {
            let plugin = plugin(size, 0, 90).unwrap();
            // SAFETY: no call is made, as the slot is empty.
            let error = unsafe { plugin.call(&mut ffi::ClientCreate::default()) }.unwrap_err();
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
            plugin(size_of::<Table>(), 0, 116).is_ok(),
            "newer minor versions are fine"
        );
        for (major, minor) in [(1, 0), (0, 53)] {
            let message = plugin(size_of::<Table>(), major, minor)
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
