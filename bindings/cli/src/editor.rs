//! A program in a person's editor: `$VISUAL`, else `$EDITOR`, on a file of its own.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use cadenza_core::runtime::repertoire::Listed;

use crate::failure::Failure;

/// A text that came back from the editor. Its file is removed with it, unless it is kept.
pub struct Text {
    path: PathBuf,
    code: String,
    kept: Cell<bool>,
}

impl Text {
    /// Opens the program in the editor and waits for its end. An editor that fails leaves everything as it was.
    pub fn open(listed: &Listed) -> Result<Self, Failure> {
        let editor = ["VISUAL", "EDITOR"].into_iter().filter_map(std::env::var_os).find(|editor| !editor.is_empty());
        let Some(editor) = editor else {
            return Err(Failure::usage("no editor is set; set EDITOR, or give the new text with --file"));
        };
        let mut text = Self::write(listed)?;
        let shown = editor.to_string_lossy().into_owned();
        // As a shell reads it, so that `code --wait` works; the path is no part of what the shell reads.
        let ended = Command::new("sh").arg("-c").arg(format!("{shown} \"$1\"")).arg("editor").arg(&text.path).status();
        let failed = match ended {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(failed) = failed {
            return Err(Failure::failed(format!("the editor `{shown}` failed: {failed}; nothing changed")));
        }
        text.code = std::fs::read_to_string(&text.path)
            .map_err(|error| Failure::failed(format!("{}: {error}; nothing changed", text.path.display())))?;
        Ok(text)
    }

    fn write(listed: &Listed) -> Result<Self, Failure> {
        let name = format!("cadenza-{}-{}.{}", listed.short_id(), std::process::id(), listed.saved.key.language);
        let path = std::env::temp_dir().join(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut code = listed.saved.code.to_string();
        if !code.ends_with('\n') {
            code.push('\n');
        }
        let written = options.open(&path).and_then(|mut file| file.write_all(code.as_bytes()));
        written.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        Ok(Self { path, code, kept: Cell::new(false) })
    }

    /// What was written.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// Leaves the file where it is, and says where.
    pub fn keep(&self) -> String {
        self.kept.set(true);
        self.path.display().to_string()
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        if !self.kept.get() {
            // A file that stays behind harms nobody.
            drop(std::fs::remove_file(&self.path));
        }
    }
}
