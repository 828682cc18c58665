//! The repository checks itself (house style, section 13): clauses are proven, modules import only downwards, every test
//! file is wired in, and the published words are the ones in use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// One row of `scenarios/clauses.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Clause {
    id: String,
    /// `path` or `path::item` of the code that holds it.
    enforced: String,
    /// `path::name` of tests, traces and scenarios that fail without that code.
    proven: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                walk(&entry, extension, found);
            } else if entry.extension().is_some_and(|own| own == extension) {
                found.push(entry);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), extension, &mut found);
    found.sort();
    found
}

fn clauses() -> Vec<Clause> {
    serde_saphyr::from_str(&read("scenarios/clauses.yaml")).unwrap()
}

/// Every clause id of the agent and execution contracts, in the order of their tables, of the kernel contract's parts on
/// state, termination, determinism and logging, and of the session contract's parts on models: targets, errors, accounting.
/// (SC-4.14, entries of calls in XML, comes with sessions.)
fn published() -> Vec<&'static str> {
    include_str!("clauses.txt").split_whitespace().collect()
}

#[test]
fn no_clause_is_silently_missing() {
    let rows = clauses();
    let listed: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let missing: Vec<_> = published().into_iter().filter(|id| !listed.contains(id)).collect();
    assert!(missing.is_empty(), "clauses without a row in scenarios/clauses.yaml: {missing:?}");
    assert_eq!(listed.len(), rows.len(), "a clause stands twice");
}

#[test]
fn the_list_of_clauses_is_the_contracts_own() {
    // In a checkout beside the shared contract pages, the list is compared with them; elsewhere it stands for them.
    let contracts = root().join("../shared/contracts");
    if !contracts.is_dir() {
        return;
    }
    let mut expected = BTreeSet::new();
    for page in ["agent-clauses.md", "execution-clauses.md", "kernel-clauses.md", "session-clauses.md"] {
        for line in fs::read_to_string(contracts.join(page)).unwrap().lines() {
            let id = line.strip_prefix("| ").and_then(|rest| rest.split(" |").next()).unwrap_or_default();
            let parts = ["AC-", "EC-", "KC-S", "KC-D", "KC-TL", "KC-K4", "KC-K6", "KC-KN3"];
            let termination = id.strip_prefix("KC-E").is_some_and(|number| number.parse::<u32>().is_ok());
            let numbered = |section: &str, rows: &[(u32, u32)]| {
                let number = id.strip_prefix(section).and_then(|number| number.parse::<u32>().ok());
                number.is_some_and(|number| rows.iter().any(|(first, last)| (*first..=*last).contains(&number)))
            };
            let models = numbered("SC-1.", &[(15, 20), (45, 51)])
                || numbered("SC-3.", &[(1, 29)])
                || numbered("SC-4.", &[(1, 7), (12, 13), (15, 15)]);
            if termination || models || parts.iter().any(|part| id.starts_with(part)) {
                expected.insert(id.to_owned());
            }
        }
    }
    let listed: BTreeSet<String> = published().into_iter().map(str::to_owned).collect();
    assert_eq!(listed, expected);
}

#[test]
fn every_clause_names_code_that_exists_and_proofs_that_exist() {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut wrong = Vec::new();
    for clause in clauses() {
        if clause.proven.is_empty() {
            wrong.push(format!("{}: no proof", clause.id));
        }
        for reference in clause.proven.iter().chain([&clause.enforced]) {
            let (path, name) = reference.split_once("::").unwrap_or((reference, ""));
            if !root().join(path).exists() {
                wrong.push(format!("{}: no file {path}", clause.id));
                continue;
            }
            let text = texts.entry(path.to_owned()).or_insert_with(|| read(path));
            let name = name.rsplit("::").next().unwrap_or(name);
            if !name.is_empty() && !text.contains(name) {
                wrong.push(format!("{}: {path} has no {name}", clause.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What each module of the core may import from the core (architecture, section 3). A module may import itself.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("value", &[]),
    ("schema", &["value"]),
    ("ids", &["fork"]),
    ("fork", &["ids"]),
    ("cancel", &[]),
    ("canonical", &["ids", "value"]),
    ("accounting", &["value"]),
    ("message", &["accounting", "ids", "value", "outcome"]),
    ("outcome", &["accounting", "ids", "value", "kernel"]),
    ("contract", &["canonical", "ids", "value", "message", "outcome", "schema"]),
    ("kernel", &["adapter", "canonical", "contract", "ids", "message", "outcome", "value"]),
    ("adapter", &["canonical", "contract", "ids", "message", "outcome", "value"]),
    // `program::Language` is a plain word that programs own.
    ("prompt", &["message", "program", "value"]),
    ("tokens", &[]),
    ("program", &["cancel", "canonical", "ids", "outcome", "value"]),
    ("printable", &[]),
    ("warning", &["fork"]),
    (
        "provider",
        &["cancel", "fork", "ids", "message", "outcome", "printable", "program", "prompt", "value", "warning"],
    ),
    ("tools", &["cancel", "canonical", "ids", "schema", "value"]),
    (
        "store",
        &[
            "canonical",
            "contract",
            "fork",
            "ids",
            "kernel",
            "log",
            "outcome",
            "program",
            "provider",
            "tools",
            "value",
            "warning",
        ],
    ),
    ("log", &["contract", "fork", "ids", "kernel", "outcome", "program", "provider", "value"]),
    (
        "runtime",
        &[
            "accounting",
            "adapter",
            "agent",
            "cancel",
            "canonical",
            "contract",
            "fork",
            "ids",
            "kernel",
            "log",
            "message",
            "outcome",
            "program",
            "printable",
            "prompt",
            "provider",
            "store",
            "tools",
            "value",
            "warning",
        ],
    ),
    (
        "agent",
        &[
            "accounting",
            "adapter",
            "cancel",
            "canonical",
            "contract",
            "fork",
            "ids",
            "kernel",
            "log",
            "message",
            "outcome",
            "program",
            "prompt",
            "provider",
            "runtime",
            "store",
            "tools",
            "value",
        ],
    ),
];

#[test]
fn modules_import_only_downwards() {
    let mut wrong = Vec::new();
    for path in files("core/src", "rs") {
        let relative = path.strip_prefix(root().join("core/src")).unwrap().to_string_lossy().into_owned();
        let module = relative.split(['/', '.']).next().unwrap().to_owned();
        if module == "lib" {
            continue;
        }
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == module) else {
            wrong.push(format!("{relative}: module {module} has no row in MAY_IMPORT"));
            continue;
        };
        let text = fs::read_to_string(&path).unwrap();
        // Tests inside a module may use what they like.
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (index, _) in code.match_indices("crate::") {
            let rest = &code[index + "crate::".len()..];
            let imported: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let is_module = MAY_IMPORT.iter().any(|(name, _)| *name == imported);
            let line = code[..index].matches('\n').count() + 1;
            if is_module && imported != module && !allowed.contains(&imported.as_str()) {
                wrong.push(format!("{relative}:{line}: {module} imports {imported}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_kernel_has_no_clock_no_randomness_and_no_io() {
    for path in files("core/src/kernel", "rs").into_iter().chain([root().join("core/src/adapter.rs")]) {
        let text = fs::read_to_string(&path).unwrap();
        for symbol in
            ["std::time", "Instant", "SystemTime", "std::fs", "std::io", "std::net", "std::env", "rand", "tokio"]
        {
            let word = text.match_indices(symbol).find(|(index, _)| {
                let end = index + symbol.len();
                let letter = |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '_');
                !letter(text[..*index].chars().next_back()) && !letter(text[end..].chars().next())
            });
            assert!(word.is_none(), "{}: {symbol}", path.display());
        }
    }
}

#[test]
fn every_test_file_is_wired_in() {
    let manifests =
        ["core", "bindings/cli", "bindings/script"].map(|package| read(format!("{package}/Cargo.toml"))).concat();
    for path in fs::read_dir(root().join("tests")).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(manifests.contains(&format!("tests/{name}\"")), "{name} is in no Cargo.toml");
        }
    }
}

#[test]
fn option_names_stand_in_the_readme_alike() {
    let readme = read("README.md");
    for name in cadenza_core::runtime::options::NAMES {
        assert!(readme.contains(&format!("`{name}`")), "README.md does not name the option `{name}`");
    }
}
