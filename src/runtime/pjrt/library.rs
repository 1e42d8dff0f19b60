//! `libxtrain_xla.so`: the one library that holds XLA, opened the first time something must be
//! lowered or a CPU client is wanted. `xtrain` itself links no XLA, so commands that need no device
//! answer in milliseconds.

use super::environment::{FlagReader, OWN_LIBRARY, leave_out_foreign_flags};
use super::kernels::{self, KernelSpeed};
use super::memory::bytes;
use super::plugin::{Plugin, open_library, reason};
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use xtrain_graphs::Target;
use xtrain_graphs::op::CpuKernel;

const VARIABLE: &str = "XTRAIN_XLA_LIBRARY";
const ABI: u32 = 4;

type AbiFn = unsafe extern "C" fn() -> u32;
type VersionFn = unsafe extern "C" fn() -> *const c_char;
type BytesFn = unsafe extern "C" fn(*const u8, usize, *mut *mut u8, *mut usize) -> i32;
type HasKernelFn = unsafe extern "C" fn(i64) -> i32;
type MeasureKernelsFn = unsafe extern "C" fn(*mut f64, *mut f64, usize);
type ProfileBeginFn = unsafe extern "C" fn() -> *mut c_void;
type ProfileEndFn = unsafe extern "C" fn(*mut c_void, *mut *mut u8, *mut usize) -> i32;
type FreeFn = unsafe extern "C" fn(*mut u8, usize);

/// The opened library. It stays open until the process ends.
pub struct Library {
    path: PathBuf,
    version: String,
    lower: BytesFn,
    hlo_text: BytesFn,
    stablehlo_text: BytesFn,
    has_kernel: HasKernelFn,
    measure_kernels: MeasureKernelsFn,
    /// What this process has measured.
    speeds: OnceLock<Vec<KernelSpeed>>,
    profile_begin: ProfileBeginFn,
    profile_end: ProfileEndFn,
    free: FreeFn,
}

/// What ran under one name while a profile was recorded: of the CPU client's work, an HLO
/// instruction of a compiled module.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileEvent {
    pub name: String,
    /// Over all threads.
    pub time: Duration,
    pub count: u64,
}

impl Library {
    /// Finds and opens the library; later calls return the same one. This takes a fifth of a second
    /// and 280 MB of mapped files: call it late.
    ///
    /// # Errors
    /// If it is not found, cannot be opened, or belongs to another version of xtrain.
    pub fn open() -> Result<&'static Library> {
        static OPENED: Mutex<Option<&'static Library>> = Mutex::new(None);
        let mut opened = OPENED
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(library) = *opened {
            return Ok(library);
        }
        let library: &'static Library = Box::leak(Box::new(Library::open_at(&find()?)?));
        *opened = Some(library);
        Ok(library)
    }

    fn open_at(path: &Path) -> Result<Library> {
        leave_out_foreign_flags(FlagReader::Own);
        let library = open_library(path)?;
        let symbol = |symbol: &'static str| {
            move |e: libloading::Error| Error::SymbolMissing {
                path: path.into(),
                symbol,
                reason: reason(&e),
                wanted: "xtrain's XLA library (run bin/bootstrap to build it)",
            }
        };
        // SAFETY: the functions have these types in every version of the interface; the number
        // below tells the version.
        unsafe {
            let abi = library
                .get::<AbiFn>(b"xtrain_xla_abi\0")
                .map_err(symbol("xtrain_xla_abi"))?;
            let found = abi();
            if found != ABI {
                return Err(Error::LibraryAbi {
                    path: path.into(),
                    found,
                    wanted: ABI,
                });
            }
            let version = library
                .get::<VersionFn>(b"xtrain_xla_version\0")
                .map_err(symbol("xtrain_xla_version"))?();
            let version = if version.is_null() {
                String::new()
            } else {
                CStr::from_ptr(version).to_string_lossy().into_owned()
            };
            Ok(Library {
                path: path.into(),
                version,
                lower: *library
                    .get::<BytesFn>(b"xtrain_xla_lower\0")
                    .map_err(symbol("xtrain_xla_lower"))?,
                hlo_text: *library
                    .get::<BytesFn>(b"xtrain_xla_hlo_text\0")
                    .map_err(symbol("xtrain_xla_hlo_text"))?,
                stablehlo_text: *library
                    .get::<BytesFn>(b"xtrain_xla_stablehlo_text\0")
                    .map_err(symbol("xtrain_xla_stablehlo_text"))?,
                has_kernel: *library
                    .get::<HasKernelFn>(b"xtrain_xla_has_kernel\0")
                    .map_err(symbol("xtrain_xla_has_kernel"))?,
                measure_kernels: *library
                    .get::<MeasureKernelsFn>(b"xtrain_xla_measure_kernels\0")
                    .map_err(symbol("xtrain_xla_measure_kernels"))?,
                speeds: OnceLock::new(),
                profile_begin: *library
                    .get::<ProfileBeginFn>(b"xtrain_xla_profile_begin\0")
                    .map_err(symbol("xtrain_xla_profile_begin"))?,
                profile_end: *library
                    .get::<ProfileEndFn>(b"xtrain_xla_profile_end\0")
                    .map_err(symbol("xtrain_xla_profile_end"))?,
                free: *library
                    .get::<FreeFn>(b"xtrain_xla_free\0")
                    .map_err(symbol("xtrain_xla_free"))?,
            })
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the library says of its version and its XLA's.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The plugin for the CPU, which the library is as well.
    pub fn cpu_plugin(&self) -> Result<Plugin> {
        Plugin::load(&self.path)
    }

    /// The matmul kernels that this processor executes.
    pub fn kernels(&self) -> Vec<CpuKernel> {
        // SAFETY: takes a number, any number.
        let is_here = |kernel: &CpuKernel| unsafe { (self.has_kernel)(kernel.number()) } != 0;
        CpuKernel::ALL.into_iter().filter(is_here).collect()
    }

    /// What each of them reaches, measured at the first call, in at most 0.3 s.
    pub fn kernel_speeds(&self) -> &[KernelSpeed] {
        self.speeds.get_or_init(|| {
            let (mut gflops, mut peaks) =
                ([0.0; CpuKernel::ALL.len()], [0.0; CpuKernel::ALL.len()]);
            // SAFETY: the length is that of both arrays.
            unsafe {
                (self.measure_kernels)(gflops.as_mut_ptr(), peaks.as_mut_ptr(), gflops.len());
            }
            let speed = |kernel: CpuKernel| {
                let number = kernel.number() as usize;
                KernelSpeed {
                    kernel,
                    gflops: gflops[number],
                    peak: peaks[number],
                }
            };
            self.kernels().into_iter().map(speed).collect()
        })
    }

    /// The CPU as graphs are lowered for it here: for each precision with the fastest of the measured
    /// kernels, of those that `XTRAIN_CPU_KERNELS` allows.
    ///
    /// # Errors
    /// If the environment names a kernel that this processor does not execute.
    pub fn cpu_target(&self, speeds: &[KernelSpeed]) -> Result<Target> {
        kernels::choose(speeds).map(Target::Cpu)
    }

    /// Canonical graph bytes in, serialized HloModuleProto out.
    pub fn lower(&self, graph: &[u8]) -> Result<Vec<u8>> {
        self.convert(self.lower, graph)
    }

    /// A serialized HloModuleProto as HLO text, for people.
    pub fn hlo_text(&self, module: &[u8]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.convert(self.hlo_text, module)?).into_owned())
    }

    /// A serialized HloModuleProto as StableHLO text, for people and for other compilers.
    pub fn stablehlo_text(&self, module: &[u8]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.convert(self.stablehlo_text, module)?).into_owned())
    }

    /// Does some work, and what the CPU client ran in the meantime.
    ///
    /// # Errors
    /// If a profile is being recorded already, or XLA's profiler fails.
    pub fn profile<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Vec<ProfileEvent>)> {
        // SAFETY: takes nothing.
        let session = unsafe { (self.profile_begin)() };
        if session.is_null() {
            return Err(Error::Profile {
                message: "a profile is being recorded already".to_string(),
            });
        }
        let done = work();
        // SAFETY: the session is alive and ended once, and both outputs are writable.
        let text = self.answer(|out, len| unsafe { (self.profile_end)(session, out, len) });
        let text = text.map_err(|message| Error::Profile { message })?;
        let text = String::from_utf8_lossy(&text);
        let event = |line: &str| {
            let mut fields = line.splitn(3, '\t');
            let picoseconds: u64 = fields.next()?.parse().ok()?;
            Some(ProfileEvent {
                time: Duration::from_nanos(picoseconds / 1000),
                count: fields.next()?.parse().ok()?,
                name: fields.next()?.to_string(),
            })
        };
        Ok((done, text.lines().filter_map(event).collect()))
    }

    fn convert(&self, function: BytesFn, input: &[u8]) -> Result<Vec<u8>> {
        // SAFETY: the input is readable for its length, and both outputs are writable.
        self.answer(|out, len| unsafe { function(input.as_ptr(), input.len(), out, len) })
            .map_err(|message| Error::Lower { message })
    }

    /// What a function of the library gives, or the message with which it fails.
    fn answer(
        &self,
        function: impl FnOnce(*mut *mut u8, *mut usize) -> i32,
    ) -> std::result::Result<Vec<u8>, String> {
        let mut out = std::ptr::null_mut();
        let mut out_len = 0;
        let status = function(&mut out, &mut out_len);
        // SAFETY: the library owns `out` until it gets it back below, and its length is the
        // library's own.
        let output = unsafe { bytes(out.cast::<c_char>(), out_len) }.to_vec();
        if !out.is_null() {
            // SAFETY: as it came, once.
            unsafe { (self.free)(out, out_len) };
        }
        match status {
            0 => Ok(output),
            _ => Err(String::from_utf8_lossy(&output).into_owned()),
        }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library({}, {})", self.path.display(), self.version)
    }
}

/// The user's choice, which must exist if made; else beside the executable, above it (tests live in
/// `target/*/deps`), or in `lib`.
fn find() -> Result<PathBuf> {
    let chosen = std::env::var_os(VARIABLE)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    let executable = std::env::current_exe().ok();
    first_existing(&candidates(chosen.as_deref(), executable.as_deref()))
}

fn candidates(chosen: Option<&Path>, executable: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = chosen {
        return vec![path.into()];
    }
    let Some(folder) = executable.and_then(Path::parent) else {
        return Vec::new();
    };
    let mut places = vec![folder.join(OWN_LIBRARY)];
    if let Some(parent) = folder.parent() {
        places.push(parent.join(OWN_LIBRARY));
        places.push(parent.join("lib").join(OWN_LIBRARY));
    }
    places
}

fn first_existing(places: &[PathBuf]) -> Result<PathBuf> {
    places
        .iter()
        .find(|path| path.is_file())
        .cloned()
        .ok_or_else(|| Error::LibraryNotFound {
            tried: places.to_vec(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_in_the_error() {
        let places = candidates(None, Some(Path::new("/nowhere/target/debug/deps/test")));
        let message = first_existing(&places).unwrap_err().to_string();
        for place in [
            "/nowhere/target/debug/deps/libxtrain_xla.so",
            "/nowhere/target/debug/libxtrain_xla.so",
            "debug/lib/libxtrain_xla.so",
        ] {
            assert!(message.contains(place), "{message}");
        }
        assert!(message.contains("bin/bootstrap"), "{message}");
    }

    #[test]
    fn a_chosen_path_is_the_only_one() {
        let places = candidates(Some(Path::new("/mine.so")), Some(Path::new("/bin/xtrain")));
        assert_eq!(places, [PathBuf::from("/mine.so")]);
    }

    #[test]
    fn another_library_is_refused_by_the_missing_symbol() {
        let error = Library::open_at(Path::new("libm.so.6"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("xtrain_xla_abi") && error.contains("bootstrap"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "text").unwrap();
        let error = Library::open_at(file.path()).unwrap_err().to_string();
        assert!(
            error.contains("cannot open") && error.contains(file.path().to_str().unwrap()),
            "{error}"
        );
    }
}
