//! Anchors: the end of the chain of calls, written down beside the store, so that a file that was cut or rolled back is
//! found out (P9). A chain alone cannot tell that its end is missing.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::ids::Digest;

/// Calls between two anchors while much happens; when nothing happens, the end is anchored too.
const EVERY: i64 = 256;
/// Bytes of one anchor: place, space, digest, newline.
const LINE: usize = 19 + 1 + 64 + 1;

/// What this process has anchored.
#[derive(Default)]
pub(super) struct Anchors {
    last: i64,
}

impl Anchors {
    /// Writes an anchor unless that place has one. A failure costs evidence, never a call.
    pub(super) fn put(&mut self, store: &Path, gseq: i64, seal: &Digest) {
        if gseq <= self.last {
            return;
        }
        let line = format!("{gseq:019} {seal}\n");
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path_of(store))
            .and_then(|mut file| file.write_all(line.as_bytes()));
        match written {
            Ok(()) => self.last = gseq,
            Err(error) => tracing::warn!(%error, "the anchors of the store cannot be written"),
        }
    }

    /// Whether the next anchor is due.
    pub(super) fn due(&self, gseq: i64) -> bool {
        gseq - self.last >= EVERY
    }
}

/// All anchors, oldest first. Torn lines are left out.
pub(super) fn read(store: &Path) -> Vec<(i64, Digest)> {
    let mut text = String::new();
    let read = File::open(path_of(store)).and_then(|mut file| file.read_to_string(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    text.lines().filter_map(parse).collect()
}

/// The newest anchor, without reading the others.
pub(super) fn newest(store: &Path) -> Option<(i64, Digest)> {
    let mut file = File::open(path_of(store)).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(2 * LINE as u64))).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.lines().rev().find_map(parse)
}

fn parse(line: &str) -> Option<(i64, Digest)> {
    let (gseq, seal) = line.split_once(' ')?;
    Some((gseq.parse().ok()?, Digest::parse(seal)?))
}

fn path_of(store: &Path) -> PathBuf {
    super::beside(store, "-anchors")
}
