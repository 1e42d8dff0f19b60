//! Damaged entries and archives.

use crate::entry::tests::{sample_entry, with_digests};
use crate::{Store, archive};
use std::fs;
use std::path::Path;
use xtrain_fuzz::{JSON, Target};

const TARGETS: &[Target] = &[
    Target {
        name: "cache",
        file: "entry.tar",
        seeds: || vec![sample_entry()],
        words: JSON,
        // With right digests, so that damage gets as far as what the digests protect.
        read: |path, bytes| {
            let entry = with_digests(bytes);
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(entry.len() as u64);
            let name = format!("{}.graph", "0".repeat(32));
            archive
                .append_data(&mut header, name, &entry[..])
                .expect("memory takes it");
            fs::write(path, archive.into_inner().expect("memory takes it")).unwrap();
            import(path);
        },
    },
    Target {
        name: "archive",
        file: "entries.tar",
        seeds: || {
            let mut archive = tar::Builder::new(Vec::new());
            let entry = sample_entry();
            for name in ["autotune/x.txt".into(), format!("{}.graph", "0".repeat(32))] {
                let mut header = tar::Header::new_gnu();
                header.set_size(entry.len() as u64);
                archive.append_data(&mut header, name, &entry[..]).unwrap();
            }
            vec![archive.into_inner().unwrap()]
        },
        words: &[
            "ustar",
            "../../",
            "/",
            "\0\0\0\0\0\0\0\0",
            "77777777777",
            ".graph",
            "autotune/",
        ],
        read: |path, _| import(path),
    },
];

fn import(path: &Path) {
    let store = path.with_file_name("store");
    let _ = archive::import(&Store::new(&store), path);
    let _ = fs::remove_dir_all(store);
}

xtrain_fuzz::tests!(TARGETS);
