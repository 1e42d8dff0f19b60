//! The speeds of this processor's matmul kernels, measured once and kept beside the compiled graphs. A
//! machine that measures otherwise on another day keeps the kernels that it chose, and so the bits of
//! its results; a file for each processor serves those that share a cache.

use super::CacheSettings;
use super::machine::Machine;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Once;
use xtrain_checkpoint::{atomic, hash};
use xtrain_distributed::ProcessGroup;
use xtrain_graphs::op::CpuKernel;
use xtrain_report::errln;
use xtrain_runtime::{Error, KernelSpeed, Library};

/// The folder of these files in a cache's.
const FOLDER: &str = "kernels";

/// A file's content.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    /// For people, whose machine this is.
    cpu: String,
    /// The version of the library with the kernels.
    library: String,
    kernels: Vec<MeasuredKernel>,
}

#[derive(Debug, Serialize, Deserialize)]
struct MeasuredKernel {
    kernel: String,
    gflops: f64,
    peak: f64,
}

impl CacheSettings {
    /// The speed of each matmul kernel that this processor executes: as stored, or measured now, and
    /// then stored for later processes.
    ///
    /// # Errors
    /// If the XLA library, which has the kernels, cannot be opened.
    pub fn kernel_speeds(&self) -> Result<Vec<KernelSpeed>, Error> {
        let library = Library::open()?;
        let here = library.kernels();
        let (Some(dir), false) = (&self.dir, here.is_empty()) else {
            return Ok(library.kernel_speeds().to_vec());
        };
        let machine = Machine::this();
        let of = [&machine.cpu, &machine.features, library.version()].map(hash_of);
        let name = format!("{}.json", &hash_of(&of.concat())[..16]);
        let about = |speeds: &[KernelSpeed]| Measured {
            cpu: machine.cpu.clone(),
            library: library.version().to_string(),
            kernels: speeds.iter().map(MeasuredKernel::of).collect(),
        };
        Ok(stored_or_measured(
            &dir.join(FOLDER).join(name),
            &here,
            || library.kernel_speeds().to_vec(),
            about,
        ))
    }
}

fn hash_of(text: &str) -> String {
    hash::sha256(text.as_bytes())
}

/// The speeds in a file; measured and stored there if it is missing or damaged.
fn stored_or_measured(
    path: &Path,
    here: &[CpuKernel],
    measure: impl FnOnce() -> Vec<KernelSpeed>,
    about: impl FnOnce(&[KernelSpeed]) -> Measured,
) -> Vec<KernelSpeed> {
    if let Some(stored) = read(path, here) {
        return stored;
    }
    let is_damaged = path.exists();
    let measured = measure();
    match store(path, &about(&measured), is_damaged) {
        // Of several processes that measure at once all take the first one's.
        Ok(()) => read(path, here).unwrap_or(measured),
        Err(error) => {
            static PRINTED: Once = Once::new();
            if ProcessGroup::this_writes() {
                PRINTED.call_once(|| {
                    errln!("warning: which CPU kernels are fastest is measured anew in each run: {error}");
                });
            }
            measured
        }
    }
}

fn store(
    path: &Path,
    measured: &Measured,
    is_damaged: bool,
) -> Result<(), xtrain_checkpoint::Error> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(xtrain_checkpoint::Error::io("create", folder))?;
    let text = serde_json::to_vec_pretty(measured).expect("texts and numbers");
    let fill = |writer: &mut dyn std::io::Write| writer.write_all(&text);
    if is_damaged {
        return atomic::write_file(path, |writer| fill(writer));
    }
    atomic::write_new(path, |writer| fill(writer))
}

/// What is stored, if it is about these kernels and can be so.
fn read(path: &Path, here: &[CpuKernel]) -> Option<Vec<KernelSpeed>> {
    let text = std::fs::read(path).ok()?;
    let stored: Measured = serde_json::from_slice(&text).ok()?;
    let speeds: Option<Vec<KernelSpeed>> =
        stored.kernels.iter().map(MeasuredKernel::speed).collect();
    speeds.filter(|speeds| {
        speeds
            .iter()
            .map(|speed| speed.kernel)
            .eq(here.iter().copied())
    })
}

impl MeasuredKernel {
    fn of(speed: &KernelSpeed) -> MeasuredKernel {
        MeasuredKernel {
            kernel: speed.kernel.name().to_string(),
            gflops: speed.gflops,
            peak: speed.peak,
        }
    }

    fn speed(&self) -> Option<KernelSpeed> {
        let kernel = CpuKernel::ALL
            .into_iter()
            .find(|kernel| kernel.name() == self.kernel)?;
        let is_speed = |x: f64| x.is_finite() && x > 0.0;
        (is_speed(self.gflops) && is_speed(self.peak)).then_some(KernelSpeed {
            kernel,
            gflops: self.gflops,
            peak: self.peak,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::path::PathBuf;

    const HERE: [CpuKernel; 2] = [CpuKernel::Avx512Bf16, CpuKernel::Avx512F32];

    fn speeds(gflops: f64) -> Vec<KernelSpeed> {
        HERE.map(|kernel| KernelSpeed {
            kernel,
            gflops,
            peak: 250.0,
        })
        .to_vec()
    }

    /// Looks up in a file what would be measured as `gflops`; whether it was measured.
    fn look_up(path: &Path, here: &[CpuKernel], gflops: f64) -> (Vec<KernelSpeed>, bool) {
        let is_measured = Cell::new(false);
        let measure = || {
            is_measured.set(true);
            let mut all = speeds(gflops);
            all.retain(|speed| here.contains(&speed.kernel));
            all
        };
        let about = |speeds: &[KernelSpeed]| Measured {
            cpu: "a processor".into(),
            library: "1".into(),
            kernels: speeds.iter().map(MeasuredKernel::of).collect(),
        };
        (
            stored_or_measured(path, here, measure, about),
            is_measured.get(),
        )
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("graphs").join(FOLDER).join("0.json");
        (dir, path)
    }

    #[test]
    fn another_day_keeps_what_was_stored() {
        let (_dir, path) = place();
        assert_eq!(look_up(&path, &HERE, 100.0), (speeds(100.0), true));
        assert_eq!(look_up(&path, &HERE, 200.0), (speeds(100.0), false));
    }

    #[test]
    fn a_damaged_file_is_measured_again() {
        for damage in [
            "",
            "{",
            "{\"cpu\": \"a\", \"library\": \"1\", \"kernels\": []}",
            "{\"cpu\": \"a\", \"library\": \"1\", \"kernels\": [{\"kernel\": \"avx512-bf16\", \"gflops\": -1, \"peak\": 1}, \
             {\"kernel\": \"avx512-f32\", \"gflops\": 1, \"peak\": 1}]}",
        ] {
            let (_dir, path) = place();
            look_up(&path, &HERE, 100.0);
            std::fs::write(&path, damage).unwrap();
            assert_eq!(
                look_up(&path, &HERE, 200.0),
                (speeds(200.0), true),
                "{damage}"
            );
            assert_eq!(look_up(&path, &HERE, 300.0), (speeds(200.0), false));
        }
        // Of another set of kernels, as one with a name that this version does not know.
        let (_dir, path) = place();
        look_up(&path, &HERE, 100.0);
        assert!(look_up(&path, &HERE[..1], 200.0).1);
    }

    /// Of two that measure at once the second takes the first one's.
    #[test]
    fn the_first_process_decides() {
        let (_dir, path) = place();
        let about = |speeds: &[KernelSpeed]| Measured {
            cpu: String::new(),
            library: String::new(),
            kernels: speeds.iter().map(MeasuredKernel::of).collect(),
        };
        let measure = || {
            look_up(&path, &HERE, 100.0);
            speeds(200.0)
        };
        assert_eq!(
            stored_or_measured(&path, &HERE, measure, about),
            speeds(100.0)
        );
    }

    #[test]
    fn what_cannot_be_stored_is_measured() {
        let (dir, path) = place();
        // A file where the folder should be.
        std::fs::write(dir.path().join("graphs"), "").unwrap();
        assert_eq!(look_up(&path, &HERE, 100.0), (speeds(100.0), true));
        assert_eq!(look_up(&path, &HERE, 200.0), (speeds(200.0), true));
    }
}
