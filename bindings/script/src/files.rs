//! The module `fs` of trusted scripts, and where their modules lie: what both languages share.
//!
//! | function | does |
//! |---|---|
//! | `read(path)` | the whole file as text |
//! | `lines(path)` | its lines as a list, without line ends |
//! | `write(path, text)` | replaces the file, making its folders |
//! | `append(path, text)` | adds to its end, making its folders |
//! | `exists(path)` | whether a file or folder is there |
//! | `list(path)` | names in a folder, in order |
//! | `beside(name)` | the path of a file in the script's own folder |
//!
//! Relative paths are relative to the working directory. A failure is an error of the script with path and reason.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Names of the functions, for completion.
pub(crate) const NAMES: [&str; 7] = ["read", "lines", "write", "append", "exists", "list", "beside"];

fn failed(function: &str, path: &str, error: impl std::fmt::Display) -> String {
    format!("fs.{function}: {path}: {error}")
}

pub(crate) fn read(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| failed("read", path, error))
}

/// [`read`] for languages whose text is always UTF-8.
pub(crate) fn read_text(path: &str) -> Result<String, String> {
    String::from_utf8(read(path)?).map_err(|_| failed("read", path, "it is not UTF-8 text"))
}

pub(crate) fn lines(path: &str) -> Result<Vec<String>, String> {
    let bytes = std::fs::read(path).map_err(|error| failed("lines", path, error))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("lines", path, "it is not UTF-8 text"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

pub(crate) fn write(path: &str, bytes: &[u8]) -> Result<(), String> {
    make_folder(path).and_then(|()| std::fs::write(path, bytes)).map_err(|error| failed("write", path, error))
}

pub(crate) fn append(path: &str, bytes: &[u8]) -> Result<(), String> {
    make_folder(path)
        .and_then(|()| std::fs::OpenOptions::new().create(true).append(true).open(path))
        .and_then(|mut file| file.write_all(bytes))
        .map_err(|error| failed("append", path, error))
}

pub(crate) fn exists(path: &str) -> bool {
    Path::new(path).exists()
}

pub(crate) fn beside(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

pub(crate) fn list(path: &str) -> Result<Vec<String>, String> {
    let folder = std::fs::read_dir(path).map_err(|error| failed("list", path, error))?;
    let mut names = Vec::new();
    for entry in folder {
        let entry = entry.map_err(|error| failed("list", path, error))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

fn make_folder(path: &str) -> std::io::Result<()> {
    match Path::new(path).parent() {
        Some(folder) if !folder.as_os_str().is_empty() => std::fs::create_dir_all(folder),
        Some(_) | None => Ok(()),
    }
}

/// The file of a module of a script's own folder: `name`, `./name` or `folder/name`, without or with its extension.
pub(crate) fn module(folder: &Path, name: &str, extensions: &[&str]) -> Result<PathBuf, String> {
    let plain = name.strip_prefix("./").unwrap_or(name);
    let inside = !plain.is_empty()
        && plain.split('/').all(|part| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', '\0']));
    if !inside || Path::new(plain).is_absolute() {
        return Err(format!("module {name:?} is refused: modules lie in the script's own folder, such as \"helper\""));
    }
    let mut tried = Vec::new();
    let named = Path::new(plain).extension().and_then(|extension| extension.to_str());
    if named.is_some_and(|extension| extensions.contains(&extension)) {
        tried.push(folder.join(plain));
    }
    for extension in extensions {
        tried.push(folder.join(format!("{plain}.{extension}")));
    }
    for extension in extensions {
        tried.push(folder.join(plain).join(format!("init.{extension}")));
    }
    if let Some(found) = tried.iter().find(|path| path.is_file()) {
        return Ok(found.clone());
    }
    let tried: Vec<_> = tried.iter().map(|path| path.display().to_string()).collect();
    Err(format!("no module {name:?}; looked for: {}", tried.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_read_and_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.txt").display().to_string();
        write(&path, b"one\r\ntwo\n").unwrap();
        append(&path, b"three").unwrap();
        assert_eq!(lines(&path).unwrap(), ["one", "two", "three"]);
        assert_eq!(read_text(&path).unwrap(), "one\r\ntwo\nthree");
        let missing = folder.path().join("missing").display().to_string();
        assert!(exists(&path) && !exists(&missing));
        assert_eq!(list(&folder.path().display().to_string()).unwrap(), ["a"]);
        let message = read(&missing).unwrap_err();
        assert!(message.starts_with(&format!("fs.read: {missing}: ")), "{message}");
        write(&path, &[0xff]).unwrap();
        assert!(read_text(&path).unwrap_err().ends_with("it is not UTF-8 text"));
    }

    #[test]
    fn modules_stay_in_the_scripts_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("pack")).unwrap();
        for name in ["helper.lua", "pack/init.luau"] {
            std::fs::write(folder.path().join(name), "return 1").unwrap();
        }
        let find = |name: &str| module(folder.path(), name, &["lua", "luau"]);
        for name in ["helper", "./helper", "helper.lua"] {
            assert_eq!(find(name), Ok(folder.path().join("helper.lua")), "{name}");
        }
        assert_eq!(find("pack"), Ok(folder.path().join("pack/init.luau")));
        for name in ["../helper", "/etc/passwd", "", "a//b"] {
            assert!(find(name).unwrap_err().contains("is refused"), "{name}");
        }
        assert!(find("nobody").unwrap_err().starts_with("no module \"nobody\"; looked for: "));
    }
}
