//! Everything that can be wrong with a cache directory: never a crash, a wrong result or a hang.

use super::{Bench, Place, entry_of, files, warnings};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use xtrain::cache::{Content, EntryStore};

/// Damages the stored training step, then checks that a run warns of it by name, compiles, and
/// stores it anew.
#[track_caller]
fn check_heals(place: &Place, good: &Bench, what: &str, damage: impl Fn(&mut Vec<u8>)) {
    let path = place.store().path(&entry_of(place, "train"));
    let mut bytes = fs::read(&path).unwrap();
    damage(&mut bytes);
    fs::write(&path, bytes).unwrap();
    let run = Bench::run(place);
    assert_eq!((run.loaded, run.compiled), (0, 1), "{what}");
    let warnings = warnings(&run.stderr);
    assert_eq!(warnings.len(), 1, "{what}: {}", run.stderr);
    assert!(
        warnings[0].contains(path.to_str().unwrap()),
        "{what}: {}",
        warnings[0]
    );
    assert_eq!(run.loss, good.loss, "{what}");
    place
        .store()
        .open(&entry_of(place, "train"))
        .and_then(|mut entry| entry.check_all())
        .unwrap();
}

#[test]
fn damage_of_every_part_is_a_miss_with_one_warning() {
    let place = Place::new();
    let good = Bench::run(&place);
    let entry = place.store().open(&entry_of(&place, "train")).unwrap();
    let sizes: Vec<usize> = entry
        .header
        .parts
        .iter()
        .map(|part| part.bytes as usize)
        .collect();
    let total = entry.file_bytes as usize;
    let start = total - sizes.iter().sum::<usize>();
    check_heals(&place, &good, "empty", Vec::clear);
    check_heals(&place, &good, "truncated", |bytes| {
        bytes.truncate(total / 2)
    });
    check_heals(&place, &good, "not an entry", |bytes| {
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01")
    });
    check_heals(&place, &good, "header", |bytes| bytes[start / 2] ^= 4);
    let mut at = start;
    for (size, part) in sizes.iter().zip(["graph", "module", "executable"]) {
        let middle = at + size / 2;
        check_heals(&place, &good, part, |bytes| bytes[middle] ^= 1);
        at += size;
    }
    let healed = Bench::run(&place);
    assert_eq!(
        (healed.loaded, healed.compiled, healed.loss),
        (1, 0, good.loss),
        "{}",
        healed.stderr
    );
}

#[test]
fn an_entry_of_another_machine_does_not_load() {
    let place = Place::new();
    let good = Bench::run(&place);
    let store = place.store();
    let id = entry_of(&place, "train");
    // As if copied by hand from a machine with other features, under this machine's name for it.
    let mut entry = store.open(&id).unwrap();
    let parts = [Content::Graph, Content::Module, Content::Executable]
        .map(|c| (c, entry.read(c).unwrap().unwrap()));
    let mut header = entry.header.clone();
    let features = header
        .key
        .parts
        .iter_mut()
        .find(|part| part.name == "CPU features")
        .unwrap();
    features.value.push_str(" zzz_unheard_of");
    let foreign = header.key.id();
    store
        .insert(
            header,
            &parts
                .each_ref()
                .map(|(content, bytes)| (*content, bytes.as_slice())),
        )
        .unwrap();
    fs::rename(store.path(&foreign), store.path(&id)).unwrap();
    let run = Bench::run(&place);
    assert_eq!((run.loaded, run.compiled, run.loss), (0, 1, good.loss));
    assert!(
        warnings(&run.stderr)[0].contains("CPU features"),
        "{}",
        run.stderr
    );
}

#[test]
fn an_entry_without_executable_is_compiled() {
    let place = Place::new();
    let good = Bench::run(&place);
    let store = place.store();
    let id = entry_of(&place, "train");
    let mut entry = store.open(&id).unwrap();
    let parts = [Content::Graph, Content::Module].map(|c| (c, entry.read(c).unwrap().unwrap()));
    store
        .insert(
            entry.header.clone(),
            &parts
                .each_ref()
                .map(|(content, bytes)| (*content, bytes.as_slice())),
        )
        .unwrap();
    let run = Bench::run(&place);
    assert_eq!((run.loaded, run.compiled, run.loss), (0, 1, good.loss));
    assert_eq!(Bench::run(&place).loaded, 1);
}

#[test]
fn a_stale_lock_does_not_block() {
    let place = Place::new();
    Bench::run(&place);
    let id = entry_of(&place, "train");
    place.store().remove(&id).unwrap();
    fs::write(
        place.store().dir().join(format!("locks/{id}.lock")),
        "4194304\n",
    )
    .unwrap();
    let started = Instant::now();
    let run = Bench::run(&place);
    assert_eq!(run.compiled, 1);
    assert!(
        !run.stderr.contains("waiting") && started.elapsed() < Duration::from_secs(60),
        "{}",
        run.stderr
    );
    assert!(files(&place.store().dir().join("locks")).is_empty());
}

#[test]
fn of_eight_processes_one_compiles() {
    let place = Place::new();
    let runs: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..8).map(|_| scope.spawn(|| Bench::run(&place))).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap())
            .collect()
    });
    assert_eq!(runs.iter().map(|run| run.compiled).sum::<u64>(), 1);
    assert_eq!(runs.iter().map(|run| run.loaded).sum::<u64>(), 7);
    assert!(
        runs.iter()
            .all(|run| run.loss == runs[0].loss && warnings(&run.stderr).is_empty())
    );
    for run in &runs {
        assert!(
            run.stderr.matches("waiting for").count() <= 2,
            "one line for each graph: {}",
            run.stderr
        );
    }
    assert!(files(&place.store().dir().join("locks")).is_empty());
}

/// `XTRAIN_TEST_KILLS=100` for a long run.
#[test]
fn a_killed_writer_leaves_whole_entries_or_nothing() {
    let place = Place::new();
    let started = Instant::now();
    let good = Bench::run(&place);
    let whole = started.elapsed();
    let kills: u32 = std::env::var("XTRAIN_TEST_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(8);
    for kill in 0..kills {
        fs::remove_dir_all(place.store().dir()).unwrap();
        fs::create_dir(place.store().dir()).unwrap();
        let mut child = place
            .bench()
            .process()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Spread over the run, most of which is the part that compiles and writes.
        std::thread::sleep(whole.mul_f64(f64::from(kill % 50 + 1) / 50.0 * 0.9));
        child.kill().unwrap();
        child.wait().unwrap();
        for entry in place.entries() {
            let mut open = place
                .store()
                .open(&entry.id)
                .unwrap_or_else(|e| panic!("kill {kill}: {e}"));
            open.check_all()
                .unwrap_or_else(|e| panic!("kill {kill}: {e}"));
        }
    }
    let run = Bench::run(&place);
    assert_eq!((run.loaded + run.compiled, run.loss), (1, good.loss));
    place.store().remove(&entry_of(&place, "train")).unwrap();
    Bench::run(&place); // An insertion cleans up what the dead left.
    assert!(
        files(place.store().dir())
            .iter()
            .all(|name| !name.starts_with(".tmp")),
        "{:?}",
        files(place.store().dir())
    );
}

#[test]
fn a_cache_that_cannot_be_written_costs_a_warning() {
    let place = Place::new();
    let good = Bench::run(&place);
    // No directory at all: its parent is a file.
    fs::write(place.path("file"), "").unwrap();
    let run = Bench::of(
        &place
            .bench()
            .arg("--cache_dir")
            .arg(place.path("file"))
            .run(),
    );
    assert_eq!((run.compiled, run.loss), (1, good.loss));
    let not_kept = |line: &&str| line.contains("compiled graphs are not kept");
    assert!(warnings(&run.stderr).iter().any(not_kept), "{}", run.stderr);
    // No room: files may not grow beyond some KB, and the signal that says so is ignored.
    let mut limited = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 16; exec \"$@\"";
    let bench = place.bench().process();
    limited
        .arg("-c")
        .arg(script)
        .arg("sh")
        .arg(bench.get_program())
        .args(bench.get_args());
    limited.arg("--cache_dir").arg(place.path("small"));
    let output = limited.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        warnings(&stderr)
            .iter()
            .any(|line| line.contains("not kept")),
        "{stderr}"
    );
    let left = files(&place.path("small/graphs"));
    assert!(
        left.iter().all(|name| !name.starts_with(".tmp")),
        "{left:?}"
    );
}

#[test]
fn a_read_only_cache_is_read() {
    let place = Place::new();
    Bench::run(&place);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o555);
    fs::set_permissions(place.store().dir(), mode).unwrap();
    let mut command = place.bench().process();
    // Root writes anywhere by this one capability, which the program is started without.
    const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(|| {
            let dropped =
                libc::geteuid() != 0 || libc::prctl(libc::PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) == 0;
            if dropped {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    let output = command.output().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(place.store().dir(), mode).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let run = crate::support::Run {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into(),
        stderr,
    };
    let run = Bench::of(&run);
    assert_eq!((run.loaded, run.compiled), (1, 0), "{}", run.stderr);
    assert!(warnings(&run.stderr).is_empty(), "{}", run.stderr);
    // It was read-only: nobody counted the use.
    assert!(
        !files(place.store().dir())
            .iter()
            .any(|name| name.ends_with(".uses")),
        "{:?}",
        files(place.store().dir())
    );
}
