//! One Luau VM for generated programs: built once, sealed, and used for one execution at a time.
//!
//! After `build`, nothing a program does can change what the next one finds: libraries and our own objects are
//! read-only, each program runs in an environment of its own, and the little state that proxies keep for a call is
//! cleared after it. A VM that met a limit, a memory error or a panic is dropped by its owner, never repaired.

use std::collections::HashMap;
use std::sync::{Arc, Once};

use mlua::chunk::ChunkMode;
use mlua::ffi;
use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value as LuaValue};

use super::convert::Marks;
use super::job::{Job, Slot};
use super::{Compiled, interrupt, iterate, surface};
use crate::ids::Digest;

/// The guards.
static GUARD: surface::Prelude = surface::Prelude::new(include_str!("guard.luau"));

/// Loaded programs that a VM keeps; each costs about 1.5 KB.
const MAX_LOADED: usize = 128;

/// Executions after which a VM is replaced.
const MAX_CALLS: u32 = 10_000;

/// Garbage of earlier calls that a VM may carry into the next one.
const MAX_GARBAGE: usize = 1 << 20;

/// A sealed VM.
pub(super) struct Vm {
    lua: Lua,
    slot: Arc<Slot>,
    /// The identities of our own objects in this VM.
    pub(super) marks: Arc<Marks>,
    environment_meta: Table,
    reset: Function,
    on_error: Function,
    loaded: HashMap<Digest, Loaded>,
    /// Heap of the VM itself, after building.
    base: usize,
    limit: usize,
    calls: u32,
}

/// A program's main function in this VM, with an environment that is still empty.
struct Loaded {
    main: Function,
    environment: Table,
}

/// How the interpreter left a program.
pub(super) enum Left {
    /// It returned these values.
    Returned(MultiValue),
    /// It raised this value.
    Raised(LuaValue),
    /// It ran out of memory.
    OutOfMemory,
}

impl Vm {
    /// Builds and seals a VM.
    pub(super) fn build() -> mlua::Result<Self> {
        set_flags();
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::UTF8 | StdLib::BIT | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        let slot = Arc::new(Slot::default());
        let marks = Arc::new(Marks::new(&lua)?);
        let surface = surface::install(&lua, &slot, &marks, true)?;
        let mark_table = lua.create_table()?;
        mark_table.raw_set("array", &marks.array)?;
        mark_table.raw_set("object", &marks.object)?;
        mark_table.raw_set("proxies", &marks.proxies)?;
        mark_table.raw_set("null", LuaValue::NULL)?;
        let (guarded, reset, declare): (Table, Function, Function) =
            GUARD.load(&lua)?.call((&surface.host, mark_table, &surface.inner, iterate::NAME))?;
        // Everything that is not on the list goes: the list is what the two preludes return.
        let globals = lua.globals();
        let names = globals.pairs::<LuaValue, LuaValue>().map(|pair| Ok(pair?.0)).collect::<mlua::Result<Vec<_>>>()?;
        for name in names {
            globals.raw_set(name, LuaValue::Nil)?;
        }
        for table in [&surface.globals, &guarded] {
            for pair in table.pairs::<LuaValue, LuaValue>() {
                let (name, value) = pair?;
                globals.raw_set(name, value)?;
            }
        }
        lua.sandbox(true)?;
        let environment_meta = lua.create_table()?;
        environment_meta.raw_set("__index", globals)?;
        environment_meta.raw_set("__newindex", declare)?;
        environment_meta.raw_set("__metatable", "locked")?;
        environment_meta.set_readonly(true);
        interrupt::install(&lua)?;
        // SAFETY: `on_error` is a C function that keeps to the stack discipline of message handlers.
        let on_error = unsafe { lua.create_c_function(interrupt::on_error)? };
        lua.gc_collect()?;
        let base = lua.used_memory();
        Ok(Self {
            lua,
            slot,
            marks,
            environment_meta,
            reset,
            on_error,
            loaded: HashMap::new(),
            base,
            limit: 0,
            calls: 0,
        })
    }

    /// Heap of the VM itself.
    pub(super) fn base(&self) -> usize {
        self.base
    }

    /// Sets the memory that a program may use on top of the VM's own, and says what heap that makes.
    pub(super) fn set_memory(&mut self, bytes: usize) -> mlua::Result<usize> {
        let limit = self.base.saturating_add(bytes);
        if limit != self.limit {
            self.lua.set_memory_limit(limit)?;
            self.limit = limit;
        }
        Ok(limit)
    }

    /// Whether the VM may serve another execution.
    pub(super) fn is_fresh_enough(&self) -> bool {
        self.calls < MAX_CALLS
    }

    /// Runs a program to its end. The caller keeps the thread's meter set and looks at it afterwards.
    pub(super) fn run(&mut self, digest: Digest, compiled: &Compiled, job: &Job<'_>) -> mlua::Result<Left> {
        self.calls += 1;
        let main = {
            let _unmetered = interrupt::Running::unmetered();
            self.main(digest, compiled)?
        };
        // SAFETY: the guard is dropped at the end of this function, before `job`; the VM is borrowed mutably.
        let _occupied = unsafe { self.slot.occupy(job) };
        let arguments = if compiled.uses_varargs {
            job.reads.borrow_mut().all_args = true;
            surface::all_args(&self.lua, &self.marks, job)?.sequence_values().collect::<mlua::Result<MultiValue>>()?
        } else {
            MultiValue::new()
        };
        let mut status = ffi::LUA_OK;
        // SAFETY: the state is that of this live VM, whose lock `exec_raw` holds; on its stack are the message handler,
        // the function and its arguments, which is what `lua_pcall` takes. It leaves the handler and the results, or one
        // error value; the handler is removed and `exec_raw` takes the rest. Nothing in the closure needs dropping when
        // an error unwinds through it.
        let values: MultiValue = unsafe {
            self.lua.exec_raw((&self.on_error, main, arguments), |state| {
                let handler = 1;
                let count = ffi::lua_gettop(state) - handler - 1;
                status = ffi::lua_pcall(state, count, ffi::LUA_MULTRET, handler);
                ffi::lua_remove(state, handler);
            })?
        };
        Ok(match status {
            ffi::LUA_OK => Left::Returned(values),
            ffi::LUA_ERRMEM => Left::OutOfMemory,
            _any_error => Left::Raised(values.into_iter().next().unwrap_or(LuaValue::Nil)),
        })
    }

    /// Reads something in the VM on the runtime's own account, with the job still reachable by proxies.
    pub(super) fn after<R>(&self, job: &Job<'_>, f: impl FnOnce() -> R) -> R {
        let _unmetered = interrupt::Running::unmetered();
        // SAFETY: the guard is dropped at the end of this function, before `job`; one thread owns the VM.
        let _occupied = unsafe { self.slot.occupy(job) };
        f()
    }

    /// Makes the VM ready for the next execution; false if it should be dropped.
    pub(super) fn tidy(&mut self, digest: Digest, touched: bool) -> bool {
        let _unmetered = interrupt::Running::unmetered();
        if touched && self.reset.call::<()>(()).is_err() {
            return false;
        }
        // Globals die with the call. Nothing else of the environment can have changed: its metatable is locked.
        if let Some(loaded) = self.loaded.get(&digest)
            && !loaded.environment.is_empty()
            && loaded.environment.clear().is_err()
        {
            return false;
        }
        self.lua.used_memory() <= self.base + MAX_GARBAGE || self.lua.gc_collect().is_ok()
    }

    fn main(&mut self, digest: Digest, compiled: &Compiled) -> mlua::Result<Function> {
        if let Some(loaded) = self.loaded.get(&digest) {
            return Ok(loaded.main.clone());
        }
        if self.loaded.len() >= MAX_LOADED {
            self.loaded.clear();
        }
        let environment = self.environment()?;
        let main = self
            .lua
            .load(&compiled.bytecode[..])
            .set_name("=program")
            .set_mode(ChunkMode::Binary)
            .set_environment(environment.clone())
            .into_function()?;
        self.loaded.insert(digest, Loaded { main: main.clone(), environment });
        Ok(main)
    }

    /// A fresh, empty environment over the read-only globals.
    fn environment(&self) -> mlua::Result<Table> {
        let environment = self.lua.create_table()?;
        environment.set_metatable(Some(self.environment_meta.clone()))?;
        environment.set_safeenv(true);
        Ok(environment)
    }
}

/// Luau's own fixes that are off by default: `table.move` over empty ranges, and tables under memory pressure.
fn set_flags() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for flag in ["LuauTableMoveTimeoutFix", "LuauTableRobustOom"] {
            if Lua::set_fflag(flag, true).is_err() {
                tracing::warn!(flag, "this build of Luau does not know the flag");
            }
        }
    });
}
