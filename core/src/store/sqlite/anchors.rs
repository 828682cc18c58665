//! Anchors: the end of the chain of calls and the state of agents, written down beside the store, so that a file that was
//! cut or rolled back is found out (P9). A chain alone cannot tell that its end is missing.
//!
//! The file is plain text for anybody to copy elsewhere. Whoever changes the store *and* cuts or rewrites its anchors to fit
//! leaves no trace on this machine: that takes a copy of the anchors out of their reach, or a key. An anchors file that is
//! missing or shorter costs evidence, and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::ids::Digest;

/// Calls between two anchors while much happens; when nothing happens, the end is anchored too.
const EVERY: i64 = 256;
/// Bytes of the longest line: `c`, agent, space, version, space, digest, newline.
const LINE: usize = 1 + 18 + 1 + 19 + 1 + 64 + 1;
/// Lines at the end among which the newest are sought at opening: processes may have written out of order.
const NEWEST: usize = 64;

/// What was there when an anchor was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    /// The call at a place had this seal.
    Call { gseq: i64, seal: Digest },
    /// An agent's context had this version and sum.
    Context { agent: i64, version: i64, sum: Digest },
}

/// What this process has anchored, and what it has yet to.
#[derive(Default)]
pub(super) struct Anchors {
    last: i64,
    contexts: BTreeMap<i64, (i64, Digest)>,
}

impl Anchors {
    /// Notes the state of agents that is in the file now; the next anchor tells of it.
    pub(super) fn note(&mut self, contexts: impl IntoIterator<Item = (i64, (i64, Digest))>) {
        self.contexts.extend(contexts);
    }

    /// Writes what has no anchor yet. A failure costs evidence, never a call.
    pub(super) fn put(&mut self, store: &Path, gseq: i64, seal: &Digest) {
        let mut lines = String::new();
        for (agent, (version, sum)) in &self.contexts {
            let _infallible = writeln!(lines, "c{agent:018} {version:019} {sum}");
        }
        if gseq > self.last {
            let _infallible = writeln!(lines, "{gseq:019} {seal}");
        }
        if lines.is_empty() {
            return;
        }
        let mut options = OpenOptions::new();
        let opened = options.create(true).read(true).append(true).open(path_of(store));
        let written = opened.and_then(|mut file| {
            // The last line of a machine that lost its power may be torn.
            if !ends_with_newline(&mut file)? {
                lines.insert(0, '\n');
            }
            file.write_all(lines.as_bytes())
        });
        match written {
            Ok(()) => {
                self.last = self.last.max(gseq);
                self.contexts.clear();
            }
            Err(error) => tracing::warn!(%error, "the anchors of the store cannot be written"),
        }
    }

    /// Whether the next anchor is due.
    pub(super) fn due(&self, gseq: i64) -> bool {
        gseq - self.last >= EVERY
    }
}

fn ends_with_newline(file: &mut File) -> std::io::Result<bool> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::Start(length - 1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// All anchors, in no order. `Err` has the number of a line that was never written like that. Torn lines are left out.
pub(super) fn read(store: &Path) -> Result<Vec<Anchor>, usize> {
    let bytes = std::fs::read(path_of(store)).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    let parsed = lines.filter_map(|(index, line)| match parse(line) {
        Some(anchor) => Some(Ok(anchor)),
        None => (!may_be_torn(line)).then_some(Err(index + 1)),
    });
    parsed.collect()
}

/// The newest anchors, without reading the others: of calls the last, of each agent the last.
pub(super) fn newest(store: &Path) -> Vec<Anchor> {
    let tail = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path_of(store))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub((NEWEST * LINE) as u64)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = tail().unwrap_or_default();
    let anchors: Vec<Anchor> = bytes.split(|byte| *byte == b'\n').filter_map(parse).collect();
    newest_of(anchors)
}

/// Of each kind and agent, the newest.
pub(super) fn newest_of(anchors: Vec<Anchor>) -> Vec<Anchor> {
    let mut newest: BTreeMap<Option<i64>, (i64, Anchor)> = BTreeMap::new();
    for anchor in anchors {
        let (key, age) = match &anchor {
            Anchor::Call { gseq, .. } => (None, *gseq),
            Anchor::Context { agent, version, .. } => (Some(*agent), *version),
        };
        if newest.get(&key).is_none_or(|(known, _)| *known < age) {
            newest.insert(key, (age, anchor));
        }
    }
    newest.into_values().map(|(_, anchor)| anchor).collect()
}

fn parse(line: &[u8]) -> Option<Anchor> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (first, second) = (words.next()?, words.next()?);
    let number = |text: &str, length: usize| {
        (text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse::<i64>().ok())?
    };
    let anchor = match first.strip_prefix('c') {
        Some(agent) => {
            let (agent, version) = (number(agent, 18)?, number(second, 19)?);
            Anchor::Context { agent, version, sum: Digest::parse(words.next()?)? }
        }
        None => Anchor::Call { gseq: number(first, 19)?, seal: Digest::parse(second)? },
    };
    words.next().is_none().then_some(anchor)
}

/// Whether a line may be the beginning of one that was not written to its end, or what a lost power left of it.
fn may_be_torn(line: &[u8]) -> bool {
    let whole = if line.first() == Some(&b'c') { LINE - 1 } else { 19 + 1 + 64 };
    line.len() < whole || line.contains(&0)
}

fn path_of(store: &Path) -> PathBuf {
    super::beside(store, "-anchors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p9_anchors_are_read_back_and_a_changed_line_is_not_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("app.db");
        let seal = Digest::of_bytes(b"seal");
        let mut anchors = Anchors::default();
        anchors.put(&store, 1, &seal);
        anchors.note([(7, (3, seal))]);
        // A line that was torn, as by a lost power.
        std::fs::OpenOptions::new().append(true).open(path_of(&store)).unwrap().write_all(b"000000000\0\0").unwrap();
        anchors.put(&store, 2, &seal);
        anchors.put(&store, 2, &seal);
        let (first, second) = (Anchor::Call { gseq: 1, seal }, Anchor::Call { gseq: 2, seal });
        let context = Anchor::Context { agent: 7, version: 3, sum: seal };
        assert_eq!(read(&store), Ok(vec![first, context.clone(), second.clone()]));
        assert_eq!(newest(&store), [second, context]);
        let whole = std::fs::read(path_of(&store)).unwrap();
        for at in 0..84 {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(path_of(&store), &changed).unwrap();
            let found = read(&store);
            assert!(found.is_err() || found.unwrap()[0] != Anchor::Call { gseq: 1, seal }, "byte {at}");
        }
    }
}
