//! Short reads: each is one statement or a few, and no cursor outlives its call.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, TransactionBehavior, params};

use super::row::{self, Sealed, digest, run_bytes, run_id, tapes};
use super::shared::Shared;
use super::state;
use super::writer::now;
use crate::contract::ExecutionContract;
use crate::ids::{CallId, Digest};
use crate::kernel::{StoredError, StoredRun};
use crate::log::record::rfc3339;
use crate::program::Language;
use crate::program::registry::{Key, Origin, Pins, ProgramState, Saved};
use crate::store::{AgentId, AgentListed, AgentState, CallQuery, Delegate, StoredCall};
use crate::value::{Map, Value};

const CALL: &str = "SELECT gseq, run, record, status, (SELECT code FROM codes WHERE hash = runs.code),
  (SELECT shared.record FROM shared WHERE shared.hash = runs.shared), tape FROM runs";

/// A field of a record, its own or one that it shares.
fn field(name: &str) -> String {
    format!(
        "coalesce(json_extract(record, '$.{name}'), \
         (SELECT json_extract(shared.record, '$.{name}') FROM shared WHERE shared.hash = runs.shared))"
    )
}

/// One call.
pub(super) fn call(connection: &Connection, id: CallId) -> rusqlite::Result<Option<StoredCall>> {
    let found = connection
        .prepare_cached(&format!("{CALL} WHERE run = ?1"))?
        .query_row([run_bytes(id)], stored_call)
        .optional()?;
    match found {
        None => Ok(None),
        Some(mut call) => {
            call.effects = effects(connection, id)?;
            Ok(Some(call))
        }
    }
}

/// Calls that are asked for. Only the conditions that are there stand in the statement, so that an index can serve them:
/// the work does not grow with the history, only with what is asked for.
pub(super) fn calls(connection: &Connection, query: &CallQuery) -> rusqlite::Result<Vec<StoredCall>> {
    let CallQuery { namespace, role, method, agent, agent_name, status, below, since, before, after, limit } = query;
    let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
    let (agent, below) = (agent.map(|agent| agent.0), below.map(|trace| trace.0.to_be_bytes()));
    let since = since.map(rfc3339);
    let one_name = role.is_some() != method.is_some();
    let others = namespace.is_some() || agent.is_some() || agent_name.is_some() || status.is_some();
    if one_name && !others && below.is_none() && since.is_none() && after.is_none() {
        let mut one = connection.prepare_cached(&format!("{CALL} WHERE gseq = ?1"))?;
        let places = places(connection, query, before.unwrap_or(i64::MAX), limit)?;
        return places.into_iter().map(|gseq| one.query_row([gseq], stored_call)).collect();
    }
    // A call of before there were namespaces in records belongs to the default one.
    let in_namespace = format!("coalesce({}, 'default') = ?", field("namespace"));
    // A call ends `ok`, as an `error`, or `interrupted`, by its host or with its process.
    let ended_so =
        format!("? = iif({} = 'INTERRUPTED', 'interrupted', {})", field("agent_outcome"), field("outcome_status"));
    let conditions: [(&str, Option<&dyn ToSql>); 10] = [
        ("gseq < ?", before.as_ref().map(|before| before as _)),
        ("gseq > ?", after.as_ref().map(|after| after as _)),
        ("role = ?", role.as_ref().map(|role| role as _)),
        ("method = ?", method.as_ref().map(|method| method as _)),
        ("agent = ?", agent.as_ref().map(|agent| agent as _)),
        ("agent IN (SELECT agent FROM agents WHERE name = ?)", agent_name.as_ref().map(|name| name as _)),
        (&ended_so, status.as_ref().map(|status| status as _)),
        (&in_namespace, namespace.as_ref().map(|namespace| namespace as _)),
        ("trace = ? AND depth > 0", below.as_ref().map(|trace| trace as _)),
        // Both in UTC with six digits: their order as texts is their order in time.
        ("json_extract(record, '$.timestamp') >= ?", since.as_ref().map(|since| since as _)),
    ];
    let asked = conditions.into_iter().filter_map(|(condition, value)| Some((condition, value?)));
    let (conditions, mut values): (Vec<&str>, Vec<&dyn ToSql>) = asked.unzip();
    let wanted = if conditions.is_empty() { "true".to_owned() } else { conditions.join(" AND ") };
    let order = if after.is_some() { "ASC" } else { "DESC" };
    values.push(&limit);
    connection
        .prepare_cached(&format!("{CALL} WHERE {wanted} ORDER BY gseq {order} LIMIT ?"))?
        .query_map(values.as_slice(), stored_call)?
        .collect()
}

/// Where the calls of one role, or of one method, are. The index is by both: it is walked from one pair to the next.
fn places(connection: &Connection, query: &CallQuery, before: i64, limit: i64) -> rusqlite::Result<Vec<i64>> {
    let mut method = connection
        .prepare_cached("SELECT role, method FROM runs WHERE role = ?1 AND method > ?2 ORDER BY method LIMIT 1")?;
    let mut role =
        connection.prepare_cached("SELECT role, method FROM runs WHERE role > ?1 ORDER BY role, method LIMIT 1")?;
    let mut newest = connection.prepare_cached(
        "SELECT gseq FROM runs WHERE role = ?1 AND method = ?2 AND gseq < ?3 ORDER BY gseq DESC LIMIT ?4",
    )?;
    let mut found: Vec<i64> = Vec::new();
    // A role begins before its first method.
    let mut pair = (query.role.clone().unwrap_or_default(), String::new());
    loop {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let next = match method.query_row([&pair.0, &pair.1], read).optional()? {
            None if query.role.is_none() => role.query_row([&pair.0], read).optional()?,
            next => next,
        };
        match next {
            Some(next) => pair = next,
            None => break,
        }
        if query.method.as_ref().is_none_or(|method| *method == pair.1) {
            let rows = newest.query_map(params![pair.0, pair.1, before, limit], |row| row.get(0))?;
            found.extend(rows.collect::<rusqlite::Result<Vec<i64>>>()?);
        }
    }
    found.sort_unstable_by(|left, right| right.cmp(left));
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(found)
}

fn stored_call(row: &Row<'_>) -> rusqlite::Result<StoredCall> {
    let mut record = row::record(row.get_ref(2)?.as_str()?, row.get_ref(5)?.as_str_or_null()?);
    record.insert("call_id".into(), run_id(row.get_ref(1)?.as_blob()?).to_string().into());
    record.insert("code".into(), row.get::<_, Option<String>>(4)?.as_deref().into());
    let tapes = tapes(row.get_ref(6)?.as_str_or_null()?);
    Ok(StoredCall { gseq: row.get(0)?, record, effects: Vec::new(), tapes })
}

fn effects(connection: &Connection, id: CallId) -> rusqlite::Result<Vec<Map>> {
    state::check_effects(connection, &run_bytes(id))?;
    let json = |text: Option<String>| text.and_then(|text| Value::from_json(&text).ok()).unwrap_or_default();
    connection
        .prepare_cached(
            "SELECT call_no, tool, args, status, result, class FROM effects WHERE run = ?1 ORDER BY call_no",
        )?
        .query_map([run_bytes(id)], |row| {
            Ok(Map::from([
                ("call_no".to_owned(), Value::Int(row.get(0)?)),
                ("tool".to_owned(), row.get::<_, String>(1)?.as_str().into()),
                ("args".to_owned(), json(row.get(2)?)),
                ("status".to_owned(), row.get::<_, String>(3)?.as_str().into()),
                ("result".to_owned(), json(row.get(4)?)),
                ("effect".to_owned(), row.get::<_, String>(5)?.as_str().into()),
            ]))
        })?
        .collect()
}

/// A transcript with its contract.
pub(super) fn run(connection: &Connection, id: CallId) -> rusqlite::Result<Option<Result<StoredRun, StoredError>>> {
    let sealed = connection
        .prepare_cached(&format!("SELECT {} FROM runs WHERE run = ?1", Sealed::COLUMNS))?
        .query_row([run_bytes(id)], |row| Sealed::read(row, 0, &mut |hash| shared(connection, hash)))
        .optional()?;
    let Some(sealed) = sealed else { return Ok(None) };
    let contract = contract(connection, &sealed.contract)?;
    Ok(Some(contract.and_then(|contract| sealed.run(contract))))
}

/// What reused calls have in common; one without content when it is missing.
pub(super) fn shared(connection: &Connection, hash: &Digest) -> rusqlite::Result<Arc<Shared>> {
    Ok(Arc::new(Shared::read(connection, hash)?.unwrap_or_else(|| Shared::missing(*hash))))
}

/// A stored contract.
pub(super) fn contract(
    connection: &Connection,
    hash: &Digest,
) -> rusqlite::Result<Result<ExecutionContract, StoredError>> {
    let body: Option<String> = connection
        .prepare_cached("SELECT body FROM contracts WHERE hash = ?1")?
        .query_row([hash.0], |row| row.get(0))
        .optional()?;
    let contract = body.as_deref().and_then(|body| ExecutionContract::from_json(body).ok());
    Ok(contract.ok_or(StoredError::Field("contract")))
}

/// A named agent, made when missing.
pub(super) fn open_agent(
    connection: &Connection,
    namespace: &str,
    name: &str,
    role: &str,
) -> rusqlite::Result<AgentState> {
    let find = || {
        connection
            .prepare_cached("SELECT agent FROM agents WHERE namespace = ?1 AND name = ?2")?
            .query_row([namespace, name], |row| row.get(0))
            .optional()
    };
    let id = match find()? {
        Some(id) => id,
        None => {
            let making = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            let made = making
                .prepare_cached(
                    "INSERT OR IGNORE INTO agents(namespace, name, role, version, created) VALUES (?1, ?2, ?3, 0, ?4)",
                )?
                .execute(params![namespace, name, role, now()])?;
            // Another process may have been quicker; either way it is there now.
            let id = find()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
            if made > 0 {
                state::seal_agent(&making, id)?;
            }
            making.commit()?;
            id
        }
    };
    changed_agent(connection, AgentId(id), -1)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// What an agent remembers, if it changed since `version`.
pub(super) fn changed_agent(
    connection: &Connection,
    id: AgentId,
    version: i64,
) -> rusqlite::Result<Option<AgentState>> {
    let changed = connection
        .prepare_cached("SELECT 1 FROM agents WHERE agent = ?1 AND version > ?2")?
        .exists(params![id.0, version])?;
    if !changed {
        return Ok(None);
    }
    // Version, keys and sum of one moment.
    let _moment = connection.unchecked_transaction()?;
    state::check_agent(connection, id.0)?;
    let mut statement = connection.prepare_cached(
        "SELECT role, version, key, value FROM agents LEFT JOIN agent_context USING (agent) WHERE agent = ?1",
    )?;
    let mut rows = statement.query([id.0])?;
    let mut state: Option<AgentState> = None;
    while let Some(row) = rows.next()? {
        let state = match &mut state {
            Some(state) => state,
            None => state.insert(AgentState { id, role: row.get(0)?, version: row.get(1)?, context: Map::new() }),
        };
        if let (Some(key), Some(value)) = (row.get::<_, Option<String>>(2)?, row.get::<_, Option<String>>(3)?) {
            state.context.insert(key, Value::from_json(&value).unwrap_or_default());
        }
    }
    Ok(state)
}

/// All named agents.
pub(super) fn agents(connection: &Connection) -> rusqlite::Result<Vec<AgentListed>> {
    connection
        .prepare_cached(
            "SELECT namespace, name, role, version, (SELECT count(*) FROM runs WHERE runs.agent = agents.agent)
             FROM agents ORDER BY namespace, name",
        )?
        .query_map([], |row| {
            Ok(AgentListed {
                namespace: row.get(0)?,
                name: row.get(1)?,
                role: row.get(2)?,
                version: row.get(3)?,
                calls: row.get(4)?,
            })
        })?
        .collect()
}

/// The delegates that agents of a role made: the one of that name, or those that are used most. One that was changed by anything but this store is left out.
pub(super) fn delegates(
    connection: &Connection,
    namespace: &str,
    maker: &str,
    name: Option<&str>,
) -> rusqlite::Result<Vec<Delegate>> {
    let rows: Vec<(String, String, i64)> = connection
        .prepare_cached(if name.is_some() {
            "SELECT name, options, uses FROM tools WHERE namespace = ?1 AND owner = ?2 AND name = ?3"
        } else {
            "SELECT name, options, uses FROM tools WHERE namespace = ?1 AND owner = ?2 AND ?3 IS NULL
             ORDER BY uses DESC, name LIMIT 64"
        })?
        .query_map(params![namespace, maker, name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut delegates = Vec::with_capacity(rows.len());
    for (name, contract, uses) in rows {
        let fits = state::delegate_fits(connection, namespace, maker, &name)?;
        let (true, Ok(Value::Map(contract))) = (fits, Value::from_json(&contract)) else {
            tracing::error!(name, "a delegate was changed in the store by something else; it is not taken up");
            continue;
        };
        delegates.push(Delegate { name: name.into(), contract, uses: uses.unsigned_abs() });
    }
    Ok(delegates)
}

const PROGRAM: &str =
    "SELECT namespace, role, method, contract, shape, programs.language, interface, codes.code, model, version, inputs,
  probeable, uses, failures, failures_in_a_row, state, programs.context, created, created_run, note, program, programs.code
  FROM programs JOIN codes ON codes.hash = programs.code";

/// Programs under one key, newest first, or all.
pub(super) fn programs(connection: &Connection, key: Option<&Key>) -> rusqlite::Result<Vec<Saved>> {
    let found: Vec<Option<Saved>> = match key {
        Some(key) => connection
            .prepare_cached(&format!(
                "{PROGRAM} WHERE namespace = ?1 AND role = ?2 AND method = ?3 AND contract = ?4 AND shape = ?5
                 AND programs.language = ?6 AND interface = ?7
                 ORDER BY state IN ('quarantined', 'candidate') OR failures_in_a_row >= 3, state = 'pinned' DESC,
                 created DESC LIMIT 8"
            ))?
            .query_map(
                params![
                    &*key.namespace,
                    &*key.role,
                    &*key.method,
                    key.contract.0,
                    key.shape,
                    key.language.as_str(),
                    key.interface
                ],
                |row| saved(connection, row),
            )?
            .collect::<rusqlite::Result<_>>()?,
        None => connection
            .prepare_cached(&format!("{PROGRAM} ORDER BY namespace, role, method, created"))?
            .query_map([], |row| saved(connection, row))?
            .collect::<rusqlite::Result<_>>()?,
    };
    Ok(found.into_iter().flatten().collect())
}

/// `None` for a language that this build does not know, and for what is not what was kept: that is never run.
fn saved(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<Option<Saved>> {
    let Some(language) = Language::from_name(row.get_ref(5)?.as_str()?) else { return Ok(None) };
    let program = digest(row.get_ref(20)?.as_blob()?);
    let code = Digest::of_bytes(row.get_ref(7)?.as_str()?.as_bytes());
    if code != digest(row.get_ref(21)?.as_blob()?) || !state::program_fits(connection, &program)? {
        tracing::error!(%program, "a kept program was changed in the store by something else; it is not run");
        return Ok(None);
    }
    let text = |index: usize| row.get::<_, String>(index).map(|text| text.as_str().into());
    let inputs = match Value::from_json(row.get_ref(10)?.as_str()?) {
        Ok(Value::List(inputs)) => inputs,
        Ok(_) | Err(_) => Vec::new(),
    };
    // Text that is no JSON is a pin that holds in no state.
    let pins: Option<String> = row.get(16)?;
    let pins = pins.map_or(Value::Null, |pins| Value::from_json(&pins).unwrap_or(Value::String(pins)));
    let pins = Pins::from_value(&pins);
    let input = |input: &Value| match input {
        Value::List(pair) => Some((pair.first()?.as_bool()?, Digest::parse(pair.get(1)?.as_str()?)?)),
        _ => None,
    };
    let saved = Saved {
        key: Key {
            namespace: text(0)?,
            role: text(1)?,
            method: text(2)?,
            contract: digest(row.get_ref(3)?.as_blob()?),
            shape: row.get(4)?,
            language,
            interface: row.get(6)?,
        },
        code: text(7)?,
        model: text(8)?,
        version: row.get(9)?,
        inputs: inputs.iter().filter_map(input).collect(),
        pins,
        probeable: row.get(11)?,
        uses: row.get::<_, i64>(12)?.unsigned_abs(),
        failures: row.get::<_, i64>(13)?.unsigned_abs(),
        failures_in_a_row: row.get(14)?,
        state: ProgramState::from_name(row.get_ref(15)?.as_str()?).unwrap_or_default(),
        origin: Origin {
            created: u64::try_from(row.get::<_, i64>(17)?).ok().map(|at| UNIX_EPOCH + Duration::from_micros(at)),
            call: row.get::<_, Option<Vec<u8>>>(18)?.map(|bytes| run_id(&bytes)),
        },
        note: row.get::<_, Option<String>>(19)?.as_deref().map(Arc::from),
    };
    if saved.id() != program {
        tracing::error!(%program, "a kept program was changed in the store by something else; it is not run");
        return Ok(None);
    }
    Ok(Some(saved))
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};

    use rusqlite::ffi;

    use super::*;
    use crate::store::SqliteStore;

    /// Steps of SQLite's machine in `work`.
    fn steps(connection: &Connection, work: impl FnOnce()) -> u64 {
        unsafe extern "C" fn count(counter: *mut c_void) -> c_int {
            // SAFETY: the pointer given below, which lives until the handler is taken away again.
            unsafe { *counter.cast::<u64>() += 1 };
            0
        }
        let mut counted = 0_u64;
        // SAFETY: the connection is open and used by this thread alone, and `counted` outlives the handler.
        unsafe { ffi::sqlite3_progress_handler(connection.handle(), 1, Some(count), (&raw mut counted).cast()) };
        work();
        // SAFETY: as above.
        unsafe { ffi::sqlite3_progress_handler(connection.handle(), 0, None, std::ptr::null_mut()) };
        counted
    }

    /// Adds `count` calls of one method.
    fn add(connection: &Connection, role: &str, method: &str, agent: Option<i64>, count: i64) {
        connection.execute_batch("BEGIN").unwrap();
        let before: i64 = connection.query_row("SELECT ifnull(max(gseq), 0) FROM runs", [], |row| row.get(0)).unwrap();
        for gseq in before + 1..=before + count {
            connection
                .prepare_cached(
                    "INSERT INTO runs(gseq, run, agent, role, method, status, durability, contract, record, header,
                     entries, hashes, seal) VALUES (?1, ?2, ?3, ?4, ?5, 'ok', 'batch', x'', '{}', '', '[]', x'', x'')",
                )
                .unwrap()
                .execute(params![gseq, run_bytes(CallId(gseq.unsigned_abs().into())), agent, role, method])
                .unwrap();
        }
        connection.execute_batch("COMMIT").unwrap();
    }

    #[test]
    fn looking_costs_the_same_with_a_long_history() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.db");
        drop(SqliteStore::open(&path).unwrap());
        let connection = crate::store::sqlite::connect(&path, false).unwrap();
        add(&connection, "counter", "increment", Some(1), 3);
        add(&connection, "calculator", "subtract", None, 20);
        add(&connection, "calculator", "add", None, 20);
        let query = |role: Option<&str>, method: Option<&str>, agent: Option<i64>| CallQuery {
            role: role.map(str::to_owned),
            method: method.map(str::to_owned),
            agent: agent.map(AgentId),
            limit: 5,
            ..CallQuery::default()
        };
        let ways = [
            (query(None, None, None), 5),
            (query(Some("calculator"), None, None), 5),
            (query(Some("counter"), None, None), 3),
            (query(None, Some("increment"), None), 3),
            (query(None, Some("nothing"), None), 0),
            (query(Some("calculator"), Some("subtract"), None), 5),
            (query(None, None, Some(1)), 3),
        ];
        let costs = || -> Vec<u64> {
            let listed = ways.iter().map(|(query, found)| {
                steps(&connection, || assert_eq!(calls(&connection, query).unwrap().len(), *found, "{query:?}"))
            });
            let one = steps(&connection, || assert!(call(&connection, CallId(2)).unwrap().is_some()));
            listed.chain([one]).collect()
        };
        let early = costs();
        add(&connection, "calculator", "add", None, 10_000);
        let late = costs();
        let grown = early.iter().zip(&late).find(|(early, late)| **early < 10 || **late > **early + 20);
        assert_eq!(grown, None, "{early:?}, then {late:?}");
    }
}
