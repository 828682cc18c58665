//! The tables, and what a file must be to be a store: ours, whole, and not from the future.

use std::path::Path;

use rusqlite::Connection;

use crate::store::StoreError;

/// `CDNZ`: marks a SQLite file as a store.
const APPLICATION_ID: i32 = 0x4344_4E5A;
/// The version that this build writes.
pub(super) const VERSION: i32 = STEPS.len() as i32;

/// What leads from each version to the next. A new store takes all steps, so each is tried every time.
const STEPS: [&str; 3] = [VERSION_1, VERSION_2, VERSION_3];

/// Ended runs are appended and never changed: the triggers say so to every program that opens the file.
const VERSION_1: &str = "
CREATE TABLE owners(
  owner INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, started INTEGER NOT NULL
) STRICT;
CREATE TABLE contracts(hash BLOB PRIMARY KEY, body TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE codes(hash BLOB PRIMARY KEY, language TEXT NOT NULL, code TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE agents(
  agent INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL,
  version INTEGER NOT NULL, created INTEGER NOT NULL, UNIQUE(namespace, name)
) STRICT;
CREATE TABLE agent_context(
  agent INTEGER NOT NULL REFERENCES agents, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY(agent, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE open_runs(
  run BLOB PRIMARY KEY, owner INTEGER NOT NULL, record TEXT NOT NULL, contract BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE effects(
  run BLOB NOT NULL, call_no INTEGER NOT NULL, tool TEXT NOT NULL, args TEXT NOT NULL, idem_key BLOB NOT NULL,
  status TEXT NOT NULL, result TEXT, PRIMARY KEY(run, call_no)
) STRICT, WITHOUT ROWID;
CREATE TABLE runs(
  gseq INTEGER PRIMARY KEY, run BLOB NOT NULL UNIQUE, agent INTEGER, role TEXT NOT NULL, method TEXT NOT NULL,
  status TEXT NOT NULL, durability TEXT NOT NULL, contract BLOB NOT NULL, code BLOB, record TEXT NOT NULL,
  header TEXT NOT NULL, entries TEXT NOT NULL, hashes BLOB NOT NULL, seal BLOB NOT NULL
) STRICT;
CREATE INDEX runs_by_method ON runs(role, method);
CREATE INDEX runs_by_agent ON runs(agent) WHERE agent IS NOT NULL;
CREATE TRIGGER runs_stay_1 BEFORE UPDATE ON runs BEGIN SELECT RAISE(ABORT, 'ended runs are never changed'); END;
CREATE TRIGGER runs_stay_2 BEFORE DELETE ON runs BEGIN SELECT RAISE(ABORT, 'ended runs are never deleted'); END;
CREATE TABLE programs(
  program BLOB PRIMARY KEY, namespace TEXT NOT NULL, role TEXT NOT NULL, method TEXT NOT NULL, contract BLOB NOT NULL,
  shape TEXT NOT NULL, language TEXT NOT NULL, interface INTEGER NOT NULL, code BLOB NOT NULL, model TEXT NOT NULL,
  version INTEGER NOT NULL, inputs TEXT NOT NULL, context TEXT, probeable INTEGER NOT NULL, state TEXT NOT NULL,
  created_run BLOB, created INTEGER NOT NULL,
  uses INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, failures_in_a_row INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX programs_by_key ON programs(namespace, role, method);
";

/// What a program was answered (`tape`), what reused calls have in common (`shared`), the tree of calls, tools that
/// delegation made, and what speaks against a program.
/// Runs of version 1 have no trace and no tape, and keep their seals.
const VERSION_2: &str = "
ALTER TABLE runs ADD COLUMN trace BLOB;
ALTER TABLE runs ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN tape TEXT;
ALTER TABLE runs ADD COLUMN shared BLOB;
CREATE TABLE shared(
  hash BLOB PRIMARY KEY, record TEXT NOT NULL, header TEXT NOT NULL, entries TEXT NOT NULL, hashes BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX runs_by_trace ON runs(trace) WHERE depth > 0;
ALTER TABLE programs ADD COLUMN note TEXT;
ALTER TABLE effects ADD COLUMN class TEXT NOT NULL DEFAULT 'effectful';
CREATE TABLE tools(
  namespace TEXT NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL, options TEXT NOT NULL, created INTEGER NOT NULL,
  uses INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, last_used INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY(namespace, owner, name)
) STRICT, WITHOUT ROWID;
";

/// Seals of what changes; see `state`.
const VERSION_3: &str = "
ALTER TABLE agents ADD COLUMN sum BLOB;
ALTER TABLE programs ADD COLUMN seal BLOB;
ALTER TABLE effects ADD COLUMN seal BLOB;
ALTER TABLE tools ADD COLUMN seal BLOB;
";

/// Settings of every connection.
pub(super) fn configure(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(super::patience))?;
    connection.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.execute_batch("PRAGMA mmap_size = 0")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Makes the file a store if it is empty; refuses what is not ours.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let refused = |error: rusqlite::Error| super::failure(&error, path);
    configure(connection).map_err(refused)?;
    // In one transaction: another process may be making the store just now.
    let reading = connection.transaction().map_err(refused)?;
    let (application, version) = marks(&reading).map_err(refused)?;
    let tables: i64 = reading.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(refused)?;
    drop(reading);
    if application != APPLICATION_ID {
        if application != 0 || tables > 0 {
            return Err(StoreError::Foreign { path: path.to_owned() });
        }
    } else if version > VERSION {
        return Err(StoreError::Future { path: path.to_owned(), version, known: VERSION });
    }
    connection.pragma_update(None, "journal_mode", "wal").map_err(refused)?;
    // Where that fails, SQLite goes on without a log and without an error, and says "wal" when it is asked.
    let frames: i64 = connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1)).map_err(refused)?;
    if frames < 0 {
        return Err(StoreError::Io { path: path.to_owned(), message: "its log cannot be switched on".to_owned() });
    }
    connection.pragma_update(None, "synchronous", "full").map_err(refused)?;
    if version < VERSION {
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(refused)?;
        // Another process may have been quicker.
        let (_, version) = marks(&transaction).map_err(refused)?;
        if version < VERSION {
            for step in STEPS.iter().skip(usize::try_from(version).unwrap_or_default()) {
                transaction.execute_batch(step).map_err(refused)?;
            }
            super::state::seal_everything(&transaction).map_err(refused)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(refused)?;
            transaction.pragma_update(None, "user_version", VERSION).map_err(refused)?;
        }
        transaction.commit().map_err(refused)?;
    }
    Ok(())
}

fn marks(connection: &Connection) -> rusqlite::Result<(i32, i32)> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    Ok((pragma("application_id")?, pragma("user_version")?))
}
