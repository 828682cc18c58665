//! Embeds the program library: a table of every file below `programs/library/`, and the index `programs/library.json`.
//!
//! `core/programs` is a link to the repository's `programs/`, so that the packaged crate holds the files themselves.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let linked = manifest.join("programs");
    // A checkout without links (Windows) has a text file there.
    let programs = if linked.is_dir() { linked } else { manifest.join("../programs") };
    println!("cargo::rerun-if-changed={}", programs.join("library").display());
    println!("cargo::rerun-if-changed={}", programs.join("library.json").display());

    let mut files = Vec::new();
    collect(&programs, &programs.join("library"), &mut files);
    files.sort();

    let mut out = String::new();
    let index = programs.join("library.json");
    if index.is_file() {
        let _ = writeln!(out, "const INDEX: &str = include_str!({:?});", absolute(&index));
    } else {
        let _ = writeln!(out, "const INDEX: &str = \"[]\";");
    }
    out.push_str("const FILES: &[(&str, &str)] = &[\n");
    for (name, path) in files {
        let _ = writeln!(out, "    ({name:?}, include_str!({:?})),", absolute(&path));
    }
    out.push_str("];\n");
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("library.rs");
    fs::write(&target, out).unwrap_or_else(|error| panic!("{}: {error}", target.display()));
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, PathBuf)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "lua" || extension == "rhai")
            && let Ok(relative) = path.strip_prefix(root)
        {
            files.push((relative.to_string_lossy().replace('\\', "/"), path));
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
