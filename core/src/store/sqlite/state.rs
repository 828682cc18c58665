//! Seals of what changes: the context of named agents, kept programs, tool calls. The chain of calls does not hold them.
//!
//! A row that was changed by anything but this store is not served (P9). Of an agent, the sum of the hashes of its keys is
//! kept, so that a write costs its own keys only. A sum and a row that were changed together to fit are not found without
//! a key that the changer lacks; a state that was rolled back is found by its anchor.

use std::path::Path;

use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::failure;
use super::row::digest;
use crate::ids::Digest;
use crate::provider::secret;
use crate::store::{StoreError, Writes};

/// What a seal of a program holds: everything but its counters.
const PROGRAM: &str =
    "SELECT seal, program, namespace, role, method, contract, shape, language, interface, code, model,
  version, inputs, context, probeable, state, note, created_run, created FROM programs";
/// What a seal of a tool call holds.
const EFFECT: &str = "SELECT seal, run, call_no, tool, args, idem_key, status, result, class FROM effects";
/// What a seal of a delegate holds: everything but its counters.
const DELEGATE: &str = "SELECT seal, namespace, owner, name, options, created FROM tools";
/// What the sum of an agent holds beside its keys.
const AGENT: &str = "SELECT sum, agent, namespace, name, role, version, created FROM agents";

/// The sum of the hashes of many rows: the same in whatever order they came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum([u64; 4]);

impl Sum {
    fn of(stored: &Digest) -> Self {
        let limb = |index: usize| stored.0[index * 8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self([limb(0), limb(1), limb(2), limb(3)])
    }

    fn digest(self) -> Digest {
        let mut bytes = [0; 32];
        for (chunk, limb) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&limb.to_le_bytes());
        }
        Digest(bytes)
    }

    fn add(&mut self, row: &Digest) {
        for (limb, other) in self.0.iter_mut().zip(Self::of(row).0) {
            *limb = limb.wrapping_add(other);
        }
    }

    fn take(&mut self, row: &Digest) {
        for (limb, other) in self.0.iter_mut().zip(Self::of(row).0) {
            *limb = limb.wrapping_sub(other);
        }
    }
}

/// The hash of the columns of a row behind the first, which holds its seal.
fn of_row(kind: &str, row: &Row<'_>) -> rusqlite::Result<Digest> {
    let mut bytes = kind.as_bytes().to_vec();
    for index in 1..row.as_ref().column_count() {
        let (tag, part): (u8, &[u8]) = match row.get_ref(index)? {
            ValueRef::Null => (0, &[]),
            ValueRef::Integer(number) => (1, &number.to_le_bytes()),
            ValueRef::Real(number) => (2, &number.to_le_bytes()),
            ValueRef::Text(text) => (3, text),
            ValueRef::Blob(blob) => (4, blob),
        };
        bytes.push(tag);
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    Ok(Digest::of_bytes(&bytes))
}

fn of_key(key: &str, value: &str) -> Digest {
    let length = (key.len() as u64).to_le_bytes();
    Digest::of_bytes(&[b"key/1", &length[..], key.as_bytes(), value.as_bytes()].concat())
}

/// Seals a program as it is now.
pub(super) fn seal_program(connection: &Connection, program: &Digest) -> rusqlite::Result<()> {
    let seal = connection
        .prepare_cached(&format!("{PROGRAM} WHERE program = ?1"))?
        .query_row([program.0], |row| of_row("program/1", row))
        .optional()?;
    if let Some(seal) = seal {
        connection
            .prepare_cached("UPDATE programs SET seal = ?2 WHERE program = ?1")?
            .execute(params![program.0, seal.0])?;
    }
    Ok(())
}

/// Whether a program is what was kept.
pub(super) fn program_fits(connection: &Connection, program: &Digest) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(&format!("{PROGRAM} WHERE program = ?1"))?
        .query_row([program.0], |row| fits("program/1", row))
        .optional()
        .map(|fits| fits == Some(true))
}

/// Seals a delegate as it is now.
pub(super) fn seal_delegate(connection: &Connection, namespace: &str, maker: &str, name: &str) -> rusqlite::Result<()> {
    let seal = connection
        .prepare_cached(&format!("{DELEGATE} WHERE namespace = ?1 AND owner = ?2 AND name = ?3"))?
        .query_row([namespace, maker, name], |row| of_row("delegate/1", row))?;
    connection
        .prepare_cached("UPDATE tools SET seal = ?4 WHERE namespace = ?1 AND owner = ?2 AND name = ?3")?
        .execute(params![namespace, maker, name, seal.0])
        .map(drop)
}

/// Whether a delegate is what was kept.
pub(super) fn delegate_fits(
    connection: &Connection,
    namespace: &str,
    maker: &str,
    name: &str,
) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(&format!("{DELEGATE} WHERE namespace = ?1 AND owner = ?2 AND name = ?3"))?
        .query_row([namespace, maker, name], |row| fits("delegate/1", row))
}

/// Seals a tool call as it is now.
pub(super) fn seal_effect(connection: &Connection, run: &[u8], call_no: u32) -> rusqlite::Result<()> {
    let seal = connection
        .prepare_cached(&format!("{EFFECT} WHERE run = ?1 AND call_no = ?2"))?
        .query_row(params![run, call_no], |row| of_row("effect/1", row))
        .optional()?;
    if let Some(seal) = seal {
        connection
            .prepare_cached("UPDATE effects SET seal = ?3 WHERE run = ?1 AND call_no = ?2")?
            .execute(params![run, call_no, seal.0])?;
    }
    Ok(())
}

/// Seals all tool calls of a call as they are now.
pub(super) fn seal_effects(connection: &Connection, run: &[u8]) -> rusqlite::Result<()> {
    let numbers: Vec<u32> = connection
        .prepare_cached("SELECT call_no FROM effects WHERE run = ?1")?
        .query_map([run], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    numbers.into_iter().try_for_each(|call_no| seal_effect(connection, run, call_no))
}

/// Refuses tool calls of a call that are not what was written.
pub(super) fn check_effects(connection: &Connection, run: &[u8]) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(&format!("{EFFECT} WHERE run = ?1"))?;
    let mut rows = statement.query([run])?;
    while let Some(row) = rows.next()? {
        if !fits("effect/1", row)? {
            return Err(altered(format!("tool call {} of a call was changed", row.get::<_, i64>(2)?)));
        }
    }
    Ok(())
}

fn fits(kind: &str, row: &Row<'_>) -> rusqlite::Result<bool> {
    let seal: Option<Vec<u8>> = row.get(0)?;
    Ok(seal.is_some_and(|seal| seal.len() == 32) && digest(&row.get::<_, Vec<u8>>(0)?) == of_row(kind, row)?)
}

/// Writes keys of an agent, and its new version with its sum.
pub(super) fn write_context(connection: &Connection, agent: i64, writes: &Writes) -> rusqlite::Result<(i64, Digest)> {
    let mut sum = match stored_sum(connection, agent)? {
        Some(sum) => Sum::of(&sum),
        None => whole_sum(connection, agent)?,
    };
    sum.take(&agent_row(connection, agent)?);
    for (key, value) in writes {
        let old: Option<String> = connection
            .prepare_cached("SELECT value FROM agent_context WHERE agent = ?1 AND key = ?2")?
            .query_row(params![agent, key], |row| row.get(0))
            .optional()?;
        if let Some(old) = old {
            sum.take(&of_key(key, &old));
        }
        match value {
            Some(value) => {
                let json = value.to_json();
                let text = secret::scrub(&json);
                connection
                    .prepare_cached("INSERT OR REPLACE INTO agent_context VALUES (?1, ?2, ?3)")?
                    .execute(params![agent, key, text])?;
                sum.add(&of_key(key, &text));
            }
            None => {
                connection
                    .prepare_cached("DELETE FROM agent_context WHERE agent = ?1 AND key = ?2")?
                    .execute(params![agent, key])?;
            }
        }
    }
    let version: i64 = connection
        .prepare_cached("UPDATE agents SET version = version + 1 WHERE agent = ?1 RETURNING version")?
        .query_row([agent], |row| row.get(0))?;
    sum.add(&agent_row(connection, agent)?);
    put_sum(connection, agent, sum)?;
    Ok((version, sum.digest()))
}

/// Seals an agent that was just made.
pub(super) fn seal_agent(connection: &Connection, agent: i64) -> rusqlite::Result<()> {
    let sum = whole_sum(connection, agent)?;
    put_sum(connection, agent, sum)
}

/// Refuses an agent that is not what was written. Reads all of its keys.
pub(super) fn check_agent(connection: &Connection, agent: i64) -> rusqlite::Result<()> {
    if stored_sum(connection, agent)? == Some(whole_sum(connection, agent)?.digest()) {
        return Ok(());
    }
    Err(altered(format!("the context of agent number {agent} was changed")))
}

fn stored_sum(connection: &Connection, agent: i64) -> rusqlite::Result<Option<Digest>> {
    let sum: Option<Vec<u8>> =
        connection.prepare_cached("SELECT sum FROM agents WHERE agent = ?1")?.query_row([agent], |row| row.get(0))?;
    Ok(sum.map(|sum| digest(&sum)))
}

fn put_sum(connection: &Connection, agent: i64, sum: Sum) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE agents SET sum = ?2 WHERE agent = ?1")?
        .execute(params![agent, sum.digest().0])
        .map(drop)
}

fn agent_row(connection: &Connection, agent: i64) -> rusqlite::Result<Digest> {
    connection.prepare_cached(&format!("{AGENT} WHERE agent = ?1"))?.query_row([agent], |row| of_row("agent/1", row))
}

fn whole_sum(connection: &Connection, agent: i64) -> rusqlite::Result<Sum> {
    let mut sum = Sum::default();
    sum.add(&agent_row(connection, agent)?);
    let mut statement = connection.prepare_cached("SELECT key, value FROM agent_context WHERE agent = ?1")?;
    let mut rows = statement.query([agent])?;
    while let Some(row) = rows.next()? {
        sum.add(&of_key(row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?));
    }
    Ok(sum)
}

/// Seals everything: a store of an earlier version is taken as it is found.
pub(super) fn seal_everything(connection: &Connection) -> rusqlite::Result<()> {
    for agent in numbers(connection)? {
        seal_agent(connection, agent)?;
    }
    for program in keys(connection, "SELECT program FROM programs")? {
        seal_program(connection, &digest(&program))?;
    }
    keys(connection, "SELECT DISTINCT run FROM effects")?.iter().try_for_each(|run| seal_effects(connection, run))
}

/// Checks everything (`Store::verify`).
pub(super) fn check_everything(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let check = || -> rusqlite::Result<()> {
        // An index that lost an entry hides what is there.
        let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if found != "ok" {
            return Err(altered(found));
        }
        for agent in numbers(connection)? {
            check_agent(connection, agent)?;
        }
        for program in keys(connection, "SELECT program FROM programs")? {
            if !program_fits(connection, &digest(&program))? {
                return Err(altered(format!("the kept program {} was changed", digest(&program))));
            }
        }
        let lost = "SELECT count(*) FROM programs WHERE code NOT IN (SELECT hash FROM codes)";
        let lost: i64 = connection.query_row(lost, [], |row| row.get(0))?;
        if lost > 0 {
            return Err(altered(format!("the texts of {lost} kept programs are missing")));
        }
        let mut codes = connection.prepare_cached("SELECT hash, code FROM codes")?;
        let mut codes = codes.query([])?;
        while let Some(row) = codes.next()? {
            let hash = digest(row.get_ref(0)?.as_blob()?);
            if Digest::of_bytes(row.get_ref(1)?.as_str()?.as_bytes()) != hash {
                return Err(altered(format!("the text of the program {hash} was changed")));
            }
        }
        let mut delegates = connection.prepare_cached(DELEGATE)?;
        let mut delegates = delegates.query([])?;
        while let Some(row) = delegates.next()? {
            if !fits("delegate/1", row)? {
                return Err(altered(format!("the delegate {:?} was changed", row.get::<_, String>(3)?)));
            }
        }
        let runs = keys(connection, "SELECT DISTINCT run FROM effects")?;
        runs.iter().try_for_each(|run| check_effects(connection, run))
    };
    check().map_err(|error| failure(&error, path))
}

fn numbers(connection: &Connection) -> rusqlite::Result<Vec<i64>> {
    connection.prepare_cached("SELECT agent FROM agents")?.query_map([], |row| row.get(0))?.collect()
}

fn keys(connection: &Connection, query: &str) -> rusqlite::Result<Vec<Vec<u8>>> {
    connection.prepare_cached(query)?.query_map([], |row| row.get(0))?.collect()
}

/// Something that is not what was written; [`failure`] makes it a damaged store.
pub(super) fn altered(what: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Null, what.into())
}
