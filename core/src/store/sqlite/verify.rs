//! Is everything still what was written? Every byte of a call is under its seal, every seal is in the next one, and the
//! end of the chain is anchored outside the file (P9).

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Row};

use super::row::{Sealed, digest, run_bytes, run_id};
use super::{anchors, failure, read};
use crate::ids::{CallId, Digest};
use crate::store::{StoreError, VerifyReport};
use crate::value::Value;

/// At opening: the newest anchor must be in the file. A cut or rolled back file is not served silently.
pub(super) fn check_newest_anchor(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    anchors::newest(path).map_or(Ok(()), |anchor| check_anchor(connection, path, anchor))
}

fn check_anchor(connection: &Connection, path: &Path, (gseq, seal): (i64, Digest)) -> Result<(), StoreError> {
    let found = connection
        .query_row("SELECT seal FROM runs WHERE gseq = ?1", [gseq], |row| row.get::<_, Vec<u8>>(0))
        .optional()
        .map_err(|error| failure(&error, path))?;
    match found {
        Some(found) if digest(&found) == seal => Ok(()),
        Some(_) => Err(tampered(None, gseq, "its seal is not the one that was anchored".to_owned())),
        None => {
            let message = "it was anchored and is missing: the store was cut or rolled back".to_owned();
            Err(tampered(None, gseq, message))
        }
    }
}

/// One ended call with what its seal needs.
struct Place {
    gseq: i64,
    run: CallId,
    role: String,
    method: String,
    seal: Digest,
    sealed: Sealed,
}

impl Place {
    const SELECT: &str = "SELECT gseq, run, role, method, seal";

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            gseq: row.get(0)?,
            run: run_id(row.get_ref(1)?.as_blob()?),
            role: row.get(2)?,
            method: row.get(3)?,
            seal: digest(row.get_ref(4)?.as_blob()?),
            sealed: Sealed::read(row, 5)?,
        })
    }

    /// Checks the call behind `previous`, the seal of the call before it. Returns its number of entries.
    fn check(&self, connection: &Connection, path: &Path, previous: &Digest) -> Result<usize, StoreError> {
        let wrong = |message: String| tampered(Some(self.run), self.gseq, message);
        // The transcript first: it names the entry and the component.
        if self.sealed.length() > 0 {
            let contract = read::contract(connection, &self.sealed.contract)
                .map_err(|error| failure(&error, path))?
                .map_err(|error| wrong(error.to_string()))?;
            let run = self.sealed.run(contract).map_err(|error| wrong(error.to_string()))?;
            run.verify().map_err(|divergence| wrong(divergence.to_string()))?;
        }
        if let Some(code) = &self.sealed.code {
            let text: Option<String> = connection
                .prepare_cached("SELECT code FROM codes WHERE hash = ?1")
                .and_then(|mut statement| statement.query_row([code.0], |row| row.get(0)).optional())
                .map_err(|error| failure(&error, path))?;
            if text.is_none_or(|text| Digest::of_bytes(text.as_bytes()) != *code) {
                return Err(wrong("its program is not the one that ran".to_owned()));
            }
        }
        let record = self.sealed.record();
        let says = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default();
        if says("role") != self.role || says("method") != self.method {
            return Err(wrong("`role` or `method` does not fit its record".to_owned()));
        }
        if self.sealed.seal(previous, self.gseq, self.run) != self.seal {
            return Err(wrong("its record, its place or the call before it was changed".to_owned()));
        }
        Ok(self.sealed.length())
    }
}

/// One call and its place behind the one before it.
pub(super) fn call(connection: &Connection, path: &Path, id: CallId) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| failure(&error, path);
    let place = connection
        .prepare_cached(&format!("{}, {} FROM runs WHERE run = ?1", Place::SELECT, Sealed::COLUMNS))
        .and_then(|mut statement| statement.query_row([run_bytes(id)], Place::read).optional())
        .map_err(failed)?;
    let Some(place) = place else { return Err(tampered(Some(id), 0, "there is no such call".to_owned())) };
    let previous = connection
        .prepare_cached("SELECT seal FROM runs WHERE gseq = ?1")
        .and_then(|mut statement| statement.query_row([place.gseq - 1], |row| row.get::<_, Vec<u8>>(0)).optional())
        .map_err(failed)?;
    let previous = previous.map_or(Digest([0; 32]), |bytes| digest(&bytes));
    place.check(connection, path, &previous).map(drop)
}

/// Everything, from the first call to the last anchor.
pub(super) fn everything(connection: &Connection, path: &Path) -> Result<VerifyReport, StoreError> {
    let failed = |error: rusqlite::Error| failure(&error, path);
    let mut report = VerifyReport { calls: 0, entries: 0 };
    let mut previous = Digest([0; 32]);
    let mut anchors = anchors::read(path).into_iter().peekable();
    let query = format!("{}, {} FROM runs ORDER BY gseq", Place::SELECT, Sealed::COLUMNS);
    let mut statement = connection.prepare_cached(&query).map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let place = Place::read(row).map_err(failed)?;
        if place.gseq != report.calls + 1 {
            return Err(tampered(None, report.calls + 1, "it is missing".to_owned()));
        }
        report.entries += place.check(connection, path, &previous)? as i64;
        while let Some((_, anchored)) = anchors.next_if(|(gseq, _)| *gseq == place.gseq) {
            if anchored != place.seal {
                return Err(tampered(Some(place.run), place.gseq, "it is not the call that was anchored".to_owned()));
            }
        }
        previous = place.seal;
        report.calls = place.gseq;
    }
    match anchors.next() {
        Some((gseq, _)) if gseq > report.calls => {
            let message = format!("calls up to {gseq} were anchored: the end of the store is missing");
            Err(tampered(None, report.calls + 1, message))
        }
        Some(_) | None => Ok(report),
    }
}

fn tampered(call: Option<CallId>, place: i64, message: String) -> StoreError {
    StoreError::Tampered { call: call.map(|id| id.to_string()).unwrap_or_default(), place, message }
}
