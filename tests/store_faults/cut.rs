//! What a disk holds after the power went away in the middle of a recorded run: everything that was flushed, and of what
//! was not, any part.

use std::collections::BTreeMap;
use std::path::Path;

use crate::disk::Event;

/// Bytes that a disk writes as one.
const SECTOR: usize = 512;

/// The files of a folder, as far as events have gone.
#[derive(Default)]
pub struct Image {
    files: BTreeMap<String, File>,
}

#[derive(Clone, Default)]
struct File {
    /// Whether it has its name now, and whether that is flushed.
    linked: bool,
    link_flushed: bool,
    flushed: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Clone)]
enum Pending {
    Write { at: usize, data: Vec<u8> },
    Truncate(usize),
}

/// How the machine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process dies; the system goes on and writes everything.
    Killed,
    /// The power goes: everything that was not flushed is lost.
    Power,
    /// The power goes: of what was not flushed, some sectors made it.
    PowerSome(u64),
    /// The power goes, and the disk lied: flushes of the log did nothing.
    PowerAndLies,
}

impl Image {
    /// Takes in what happened next. `lies`: flushes of the log do nothing.
    pub fn see(&mut self, event: &Event, lies: bool) {
        match event {
            Event::Create(name) => {
                let file = self.files.entry(name.clone()).or_default();
                *file = File { linked: true, link_flushed: file.link_flushed && file.linked, ..File::default() };
            }
            Event::Write { file, at, data } => {
                let file = self.files.entry(file.clone()).or_default();
                file.linked = true;
                file.pending.push(Pending::Write { at: *at, data: data.clone() });
            }
            Event::Truncate { file, length } => {
                self.files.entry(file.clone()).or_default().pending.push(Pending::Truncate(*length));
            }
            Event::Sync(name) if lies && name.ends_with("-wal") => {}
            Event::Sync(name) => {
                let file = self.files.entry(name.clone()).or_default();
                for pending in std::mem::take(&mut file.pending) {
                    apply(&mut file.flushed, &pending, |_| true);
                }
            }
            Event::SyncFolder => {
                for file in self.files.values_mut() {
                    file.link_flushed = file.linked;
                }
            }
            Event::Unlink(name) => {
                if let Some(file) = self.files.get_mut(name) {
                    file.linked = false;
                }
            }
            Event::Told(_) => {}
        }
    }

    /// Writes the files as they are found afterwards into an empty folder.
    pub fn write(&self, folder: &Path, end: End) {
        let mut random = fastrand::Rng::with_seed(match end {
            End::PowerSome(seed) => seed,
            End::Killed | End::Power | End::PowerAndLies => 0,
        });
        for (name, file) in &self.files {
            // Shared memory of the log, and locks: they hold nothing that outlives a machine.
            if name.ends_with("-shm") || name.ends_with("-locks") {
                continue;
            }
            let there = match end {
                End::Killed => file.linked,
                End::Power | End::PowerAndLies => file.link_flushed,
                End::PowerSome(_) if file.linked == file.link_flushed => file.linked,
                End::PowerSome(_) => random.bool(),
            };
            if !there {
                continue;
            }
            let mut bytes = file.flushed.clone();
            for pending in &file.pending {
                match end {
                    End::Killed => apply(&mut bytes, pending, |_| true),
                    End::Power | End::PowerAndLies => {}
                    End::PowerSome(_) => match random.u8(0..3) {
                        0 => apply(&mut bytes, pending, |_| true),
                        1 => apply(&mut bytes, pending, |_| random.bool()),
                        _ => {}
                    },
                }
            }
            std::fs::write(folder.join(name), bytes).unwrap();
        }
    }
}

/// Performs a pending change, of a write only the sectors that `keeps` says.
fn apply(bytes: &mut Vec<u8>, pending: &Pending, mut keeps: impl FnMut(usize) -> bool) {
    match pending {
        Pending::Write { at, data } => {
            let mut done = 0;
            while done < data.len() {
                let place = at + done;
                let length = (SECTOR - place % SECTOR).min(data.len() - done);
                if keeps(place / SECTOR) {
                    if bytes.len() < place + length {
                        bytes.resize(place + length, 0);
                    }
                    bytes[place..place + length].copy_from_slice(&data[done..done + length]);
                }
                done += length;
            }
        }
        Pending::Truncate(length) => {
            if keeps(0) {
                bytes.resize(*length, 0);
            }
        }
    }
}
