//! `libxtrain_xla.so`: the one library that holds XLA, opened the first time something must be
//! lowered or a CPU client is wanted. `xtrain` itself links no XLA, so commands that need no device
//! answer in milliseconds.

use super::environment::{FlagReader, OWN_LIBRARY, leave_out_foreign_flags};
use super::memory::bytes;
use super::plugin::{Plugin, open_library, reason};
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use xtrain_graphs::op::CpuKernel;
use xtrain_graphs::{CpuKernels, Target};

const VARIABLE: &str = "XTRAIN_XLA_LIBRARY";
const ABI: u32 = 3;
/// Which matmul kernels may be chosen, to measure others than the fastest and to test what another
/// processor would choose.
const KERNELS: &str = "XTRAIN_CPU_KERNELS";
/// What `xtrain_xla_has_kernel` says of a kernel that this processor does not execute.
const ABSENT: i32 = 0;
/// What it says of one that no other of its type is faster than here.
const FAST: i32 = 1;

type AbiFn = unsafe extern "C" fn() -> u32;
type VersionFn = unsafe extern "C" fn() -> *const c_char;
type BytesFn = unsafe extern "C" fn(*const u8, usize, *mut *mut u8, *mut usize) -> i32;
type HasKernelFn = unsafe extern "C" fn(i64) -> i32;
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

    /// The CPU as graphs are lowered for it here: with the fastest kernels that this processor
    /// executes, of those that the environment names if it does.
    ///
    /// # Errors
    /// If the environment names one that this processor does not execute.
    pub fn cpu_target(&self) -> Result<Target> {
        // SAFETY: takes a number, any number.
        let rank = |kernel: CpuKernel| unsafe { (self.has_kernel)(kernel.number()) };
        let named = std::env::var(KERNELS).unwrap_or_default();
        choose_kernels(rank, &named).map(Target::Cpu)
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

/// The kernels for a processor by the library's rank of each, of those `named`, separated by commas,
/// if any are.
fn choose_kernels(rank: impl Fn(CpuKernel) -> i32, named: &str) -> Result<CpuKernels> {
    let names: Vec<&str> = (named.split(',').map(str::trim))
        .filter(|name| !name.is_empty())
        .collect();
    let here = CpuKernel::ALL.map(|kernel| (rank(kernel) != ABSENT).then_some(kernel.name()));
    let here: Vec<&str> = here.into_iter().flatten().collect();
    if let Some(name) = names.iter().find(|name| !here.contains(name)) {
        return Err(Error::Contradiction {
            variable: KERNELS,
            value: named.to_string(),
            problem: format!("names {name}, which is no matmul kernel of this processor"),
            fix: match &here[..] {
                [] => "it has none: unset the variable".to_string(),
                here => format!("it has {}", here.join(", ")),
            },
        });
    }
    Ok(CpuKernels::best(|kernel| match &names[..] {
        [] => rank(kernel) == FAST,
        names => names.contains(&kernel.name()) && rank(kernel) != ABSENT,
    }))
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

    /// An Intel without tiles multiplies bf16 as f32; AMD, and Intel with tiles, as pairs; each by the kernels
    /// that are named, if any are.
    #[test]
    fn kernels_are_the_fastest_or_those_that_are_named() {
        use CpuKernel::{AmxBf16, AmxF32, Avx2F32, Avx512Bf16, Avx512F32, Avx512WidenedBf16};
        let slow_pairs = |kernel| match kernel {
            AmxBf16 | AmxF32 => 0,
            Avx512Bf16 => 2,
            _ => 1,
        };
        let cooper_lake = |named: &str| choose_kernels(slow_pairs, named).unwrap();
        let intel = cooper_lake("");
        let of = |kernels: CpuKernels| (kernels.bf16, kernels.f32);
        assert_eq!(of(intel), (Some(Avx512WidenedBf16), Some(Avx512F32)));
        let pairs = cooper_lake("avx512-bf16, avx2-f32");
        assert_eq!(of(pairs), (Some(Avx512Bf16), Some(Avx2F32)));
        let ice_lake = |kernel| i32::from(!matches!(kernel, AmxBf16 | AmxF32 | Avx512Bf16));
        assert_eq!(of(choose_kernels(ice_lake, "").unwrap()), of(intel));
        let amd = choose_kernels(|kernel| i32::from(slow_pairs(kernel) > 0), "").unwrap();
        assert_eq!(of(amd), (Some(Avx512Bf16), Some(Avx512F32)));
        let tiles = |kernel| if kernel == Avx512Bf16 { 2 } else { 1 };
        assert_eq!(
            of(choose_kernels(tiles, "").unwrap()),
            (Some(AmxBf16), Some(AmxF32))
        );
        let message = choose_kernels(slow_pairs, "amx-bf16")
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("XTRAIN_CPU_KERNELS=amx-bf16 names amx-bf16")
                && message.contains("avx512-widened-bf16"),
            "{message}"
        );
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
