//! The journal of one call: what must be on the disk before something happens that cannot be taken back (P1, P5).
//!
//! A call that only runs a kept program has nothing to say before its end, and costs the disk one write. One that asks a
//! model or calls a tool says first that it has begun: a process that dies then leaves an interrupted call, not a gap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use crate::canonical;
use crate::contract::ExecutionContract;
use crate::ids::CallId;
use crate::outcome::Durability;
use crate::store::{Began, Change, Intent, Store, StoreError};
use crate::tools::{Effect, Tool};
use crate::value::{Map, Value};

/// The journal of one call; without a store it says nothing.
pub(super) struct Journal<'a> {
    store: Option<&'a Arc<dyn Store>>,
    pub(super) durability: Durability,
    run: CallId,
    deadline: Instant,
    began: AtomicBool,
    tool_calls: AtomicU32,
}

impl<'a> Journal<'a> {
    pub(super) fn new(
        store: Option<&'a Arc<dyn Store>>,
        durability: Durability,
        run: CallId,
        deadline: Instant,
    ) -> Self {
        let store = store.filter(|_| durability != Durability::Memory);
        let durability = if store.is_some() { durability } else { Durability::Memory };
        Self { store, durability, run, deadline, began: AtomicBool::new(false), tool_calls: AtomicU32::new(0) }
    }

    /// Where this call is written down.
    pub(super) fn store(&self) -> Option<&'a Arc<dyn Store>> {
        self.store
    }

    /// Takes changes at the level that the call promises.
    pub(super) fn write(&self, unit: Vec<Change>) -> Result<(), StoreError> {
        self.store.map_or(Ok(()), |store| store.write(unit, self.durability, Some(self.deadline)))
    }

    /// Says, once, that the call has begun.
    pub(super) fn begin(
        &self,
        record: impl FnOnce() -> Map,
        contract: &Arc<ExecutionContract>,
    ) -> Result<(), StoreError> {
        if self.store.is_none() || self.began.load(Ordering::Acquire) {
            return Ok(());
        }
        let began = Began { run: self.run, record: record(), contract: contract.clone() };
        self.write(vec![Change::Began(Arc::new(began))])?;
        // Not before it was taken: an intent without a beginning would be nobody's when the process dies.
        self.began.store(true, Ordering::Release);
        Ok(())
    }

    /// Says that a tool is about to run; on the disk when this returns, whatever the call promises. Returns its number. One
    /// without effects is written down with its answer.
    pub(super) fn intend(&self, tool: &Tool, args: &Map) -> Result<u32, StoreError> {
        let call_no = self.tool_calls.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(store) = self.store.filter(|_| tool.effect() != Effect::Pure) {
            store.write(vec![self.intent(call_no, tool, args)], Durability::Strict, Some(self.deadline))?;
        }
        Ok(call_no)
    }

    fn intent(&self, call_no: u32, tool: &Tool, args: &Map) -> Change {
        let idem_key = canonical::hash_with(|out| {
            out.list(|list| {
                list.item().str("effect/1");
                list.item().str(&self.run.to_string());
                list.item().uint(u64::from(call_no));
                list.item().str(tool.name());
                list.item().value_map(args);
            });
        });
        let (run, tool, effect, args) = (self.run, tool.name().clone(), tool.effect(), args.clone());
        Change::Intent(Arc::new(Intent { run, call_no, tool, effect, args, idem_key }))
    }

    /// Says what the tool answered.
    pub(super) fn effect(
        &self,
        call_no: u32,
        tool: &Tool,
        args: &Map,
        result: &Result<Value, String>,
    ) -> Result<(), StoreError> {
        let Some(store) = self.store else { return Ok(()) };
        let answered = Change::Effect { run: self.run, call_no, result: result.clone() };
        match tool.effect() {
            // Nothing is lost with it that could not be asked again: nobody waits for the disk.
            Effect::Pure => {
                store.write(vec![self.intent(call_no, tool, args), answered], Durability::Batch, Some(self.deadline))
            }
            Effect::Idempotent | Effect::Effectful => self.write(vec![answered]),
        }
    }
}
