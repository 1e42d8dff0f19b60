//! Rows in memory and in files, damaged and changed ones.

use super::*;
use std::fs;

/// Five rows: packed ones of two ids each, or examples of none to four.
fn fill(packed: bool, writer: &mut RowsWriter<'_>) -> Result<()> {
    let pushes: io::Result<()> = (0..5u32).try_for_each(|n| {
        let ids: Vec<u32> = (0..if packed { 2 } else { n })
            .map(|i| n * 100 + i)
            .collect();
        if packed {
            return writer.push(&Row::of_ids(&ids));
        }
        writer.push(&Row {
            ids: ids.into(),
            flags: vec![n as u8; n as usize].into(),
            label: (n != 3).then(|| Label::class(n)),
            token_labels: [].into(),
        })
    });
    writer.count(7, 10, 2);
    pushes.map_err(Error::io("write", Path::new("test")))
}

fn in_memory(packed: bool) -> Rows {
    Rows::in_memory(packed.then_some(2), |writer| fill(packed, writer)).unwrap()
}

fn write(path: &Path, packed: bool, wide: bool) {
    let block_size = packed.then_some(2);
    // A file that is there stays: its name is a digest of what it holds.
    let _ = fs::remove_file(path);
    Rows::write(path, block_size, wide, |writer| fill(packed, writer)).unwrap();
}

fn check(rows: &Rows, packed: bool) {
    assert_eq!(
        (rows.len(), rows.longest(), rows.is_packed(), rows.totals()),
        (
            5,
            if packed { 2 } else { 4 },
            packed,
            Totals {
                lines: 7,
                tokens: 10
            }
        )
    );
    for n in 0..5 {
        let (example, length) = (rows.row(n).unwrap(), if packed { 2 } else { n });
        assert_eq!(
            example.ids.to_vec(),
            (0..length as u32)
                .map(|i| n as u32 * 100 + i)
                .collect::<Vec<_>>()
        );
        if packed {
            assert_eq!((&*example.flags, example.label), (&[][..], None));
            continue;
        }
        assert_eq!(
            (example.flags.len(), example.label),
            (n, (n != 3).then(|| Label::class(n as u32)))
        );
        assert!(example.flags.iter().all(|flags| *flags == n as u8));
    }
    let digest = hex(&rows.header.digest);
    let (all, three) = if packed {
        (format!("5x2:{digest}"), format!("3x2:{digest}"))
    } else {
        (format!("5:{digest}"), format!("3:{digest}"))
    };
    assert_eq!(rows.fingerprint(), all);
    assert_eq!(rows.clone().take(3).fingerprint(), three);
}

#[test]
fn what_was_pushed_comes_back_from_memory_and_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    for packed in [false, true] {
        check(&in_memory(packed), packed);
        for wide in [false, true] {
            write(&path, packed, wide);
            let rows = Rows::open(&path).unwrap();
            check(&rows, packed);
            assert_eq!(rows.skipped(), if packed { 0 } else { 2 });
        }
        assert!(
            Rows::in_memory(packed.then_some(2), |_| Ok(()))
                .unwrap()
                .is_empty()
        );
    }
}

#[test]
fn wide_ids_are_kept_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.rows");
    let ids = [70_000, 1, 65_536, 50_256];
    Rows::write(&path, Some(4), true, |rows| {
        rows.push(&Row::of_ids(&ids))
            .map_err(Error::io("write", &path))
    })
    .unwrap();
    let rows = Rows::open(&path).unwrap();
    assert_eq!(*rows.row(0).unwrap().ids, ids);
}

/// Files of earlier runs stay readable: headers byte by byte.
#[test]
fn headers_are_laid_out_as_before() {
    for (packed, numbers) in [(true, vec![2, 5, 7, 10]), (false, vec![5, 56, 7, 10, 2])] {
        let header = in_memory(packed).header;
        let bytes = header.to_bytes();
        let mut wanted = if packed { *PACKED } else { *EXAMPLES }.to_vec();
        wanted.extend([1, 0, 0, 0, 4, 0, 0, 0]);
        wanted.extend(numbers.iter().flat_map(|n: &u64| n.to_le_bytes()));
        wanted.extend(header.digest);
        wanted.extend(&Sha256::digest(&wanted)[..if packed { 32 } else { 16 }]);
        wanted.resize(HEADER, 0);
        assert_eq!(bytes.to_vec(), wanted);
    }
}

/// Another program that writes into the file of a run ends it with a sentence, and neither by a
/// signal nor with other numbers. One that only touches it does not.
#[test]
fn a_file_that_changes_under_a_run_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.rows");
    for packed in [false, true] {
        let overwrite = |at: u64| {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[0xee; 8], at).unwrap();
            // Clocks of file systems tick every few milliseconds.
            file.set_modified(SystemTime::now() + std::time::Duration::from_secs(1))
                .unwrap();
        };
        let cut = |bytes: u64| {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(bytes).unwrap();
        };
        let touch = || {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        };
        let size = || fs::metadata(&path).unwrap().len();
        let damages: [&dyn Fn(); 5] = [
            &|| cut(0),
            &|| cut(HEADER as u64 + 1),
            &|| overwrite(HEADER as u64),
            &|| overwrite(size() - 8),
            &|| overwrite(size() - 16),
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            write(&path, packed, false);
            let rows = Rows::open(&path).unwrap();
            let before = rows.row(4).unwrap();
            touch();
            assert_eq!(rows.row(4).unwrap(), before);
            damage();
            let message = rows.row(4).unwrap_err().to_string();
            assert!(
                message.contains("x.rows was changed"),
                "{number}: {message}"
            );
        }
        // Who removes or replaces it changes nothing here.
        write(&path, packed, false);
        let rows = Rows::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        check(&rows, packed);
    }
}

#[test]
fn headers_that_lie_are_refused() {
    for (packed, at, value) in [
        (true, 16, 0u64),
        (true, 24, 1 << 62),
        (true, 16, 1 << 63),
        (false, 16, 1 << 60),
        (false, 24, u64::MAX - 100),
    ] {
        let mut bytes = in_memory(packed).header.to_bytes();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let seal = if packed { 80 } else { 88 };
        let digest = Sha256::digest(&bytes[..seal]);
        let sealed = HEADER.min(seal + if packed { 32 } else { 16 });
        bytes[seal..sealed].copy_from_slice(&digest[..sealed - seal]);
        for size in [HEADER as u64, 300] {
            let error = Header::parse(&bytes, size).unwrap_err();
            assert!(error.contains("bytes instead of"), "{error}");
        }
    }
}

#[test]
fn damage_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    for packed in [false, true] {
        write(&path, packed, false);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, bad).unwrap();
            assert!(Rows::open(&path).is_err(), "byte {at}");
        }
        for cut in [0, 1, 127, 128, good.len() - 1] {
            fs::write(&path, &good[..cut]).unwrap();
            assert!(Rows::open(&path).is_err(), "{cut} bytes");
        }
    }
}
