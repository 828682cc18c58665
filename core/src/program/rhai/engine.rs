//! The engines: one that parses programs and one that runs them, with everything a program must not have left out.
//!
//! Left out: files, modules, `eval`, clocks, sleeping, byte strings, and every hook that could reach them by name.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rhai::packages::{
    BasicArrayPackage, BasicMapPackage, BasicMathPackage, BitFieldPackage, CorePackage, LogicPackage,
    MoreStringPackage, Package,
};
use rhai::{Dynamic, Engine, FuncRegistration, Module, OptimizationLevel};

use super::call::{Call, Native, raise};
use super::surface::Reach;
use super::{everyday, meter, nesting, rewrite, surface, text};
use crate::program::Limits;

/// Nesting of expressions and blocks in a program's text. Rhai counts every further term of a chain (`a + b + c`,
/// `else if`) as one level more.
const MAX_EXPRESSION_DEPTH: usize = 128;

/// Variables alive in one function.
const MAX_VARIABLES: usize = 1_000;

/// Functions of one program; methods for agents (see [`rewrite`]) count too.
const MAX_FUNCTIONS: usize = 1_000;

/// Words of the language that a program cannot use.
const DISABLED: [&str; 4] = ["eval", "import", "export", "curry"];

rhai::def_package! {
    /// Rhai's standard functions without blobs and clocks.
    pub StandardFunctions(module) :
        CorePackage, BitFieldPackage, LogicPackage, BasicMathPackage, BasicArrayPackage, BasicMapPackage, MoreStringPackage
    {}
}

/// The engine that parses. It knows no functions: nothing runs on it.
pub(super) fn parser() -> &'static Engine {
    static PARSER: OnceLock<Engine> = OnceLock::new();
    PARSER.get_or_init(|| {
        let mut engine = Engine::new_raw();
        engine.set_optimization_level(OptimizationLevel::None);
        engine.set_max_expr_depths(MAX_EXPRESSION_DEPTH, MAX_EXPRESSION_DEPTH);
        engine.set_max_functions(MAX_FUNCTIONS);
        for word in DISABLED {
            engine.disable_symbol(word);
        }
        engine
    })
}

/// Engines that run, by the limits that are settings of an engine; nearly always one.
#[derive(Default)]
pub(super) struct Engines(Mutex<Vec<(Settings, Arc<Engine>)>>);

/// The most calls inside calls, whatever the limits say: they nest on the native stack, and this many fit where programs
/// run (engines.md 2.5); what a program can reach through `this` grows with it too.
const MAX_CALL_DEPTH: usize = 200;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Settings {
    call_depth: usize,
    /// Bytes of text, items of a list, entries of a map: 0 where the meter bounds memory.
    sizes: [usize; 3],
}

impl Settings {
    fn of(limits: &Limits) -> Self {
        let sizes = if meter::installed() {
            [0; 3]
        } else {
            // Without the meter only single values are bounded, well below the limit for all of them.
            let share = (limits.max_memory_bytes / 16).max(4096);
            [share, share / size_of::<Dynamic>(), share / 64]
        };
        Self { call_depth: limits.max_call_depth.min(MAX_CALL_DEPTH), sizes }
    }
}

impl Engines {
    /// An engine for these limits.
    pub(super) fn for_limits(&self, limits: &Limits) -> Native<Arc<Engine>> {
        /// More different limits than anyone uses; the oldest engine goes.
        const KEPT: usize = 8;
        let settings = Settings::of(limits);
        let mut engines = self.0.lock();
        if let Some((_, engine)) = engines.iter().find(|(known, _)| *known == settings) {
            return Ok(engine.clone());
        }
        let engine = Arc::new(runner(settings)?);
        if engines.len() >= KEPT {
            engines.remove(0);
        }
        engines.push((settings, engine.clone()));
        Ok(engine)
    }
}

#[expect(deprecated, reason = "marked volatile, not deprecated; the version is pinned")]
fn runner(settings: Settings) -> Native<Engine> {
    let mut engine = Engine::new_raw();
    let (standard, own) = modules();
    engine.register_global_module(standard.clone());
    // Registered later, found first.
    engine.register_global_module(own.clone());
    surface::register_namespaces(&mut engine, &Reach::Program);
    surface::on_missing(&mut engine);
    rewrite::register(&mut engine).map_err(raise)?;

    engine.set_max_call_levels(settings.call_depth);
    engine.set_max_variables(MAX_VARIABLES);
    engine.set_max_modules(0);
    let [text, list, map] = settings.sizes;
    engine.set_max_string_size(text);
    engine.set_max_array_size(list);
    engine.set_max_map_size(map);
    for word in DISABLED {
        engine.disable_symbol(word);
    }

    engine.on_progress(|_| Call::step());
    engine.on_print(|text| Call::current(|call| call.into_iter().for_each(|call| call.print(text))));
    engine.on_debug(|text, _, _| Call::current(|call| call.into_iter().for_each(|call| call.print(text))));
    engine.on_var(|name, index, context| if index > 0 { Ok(None) } else { surface::resolve(name, &context) });
    Ok(engine)
}

/// Rhai's functions and ours, made once.
fn modules() -> &'static (Arc<Module>, Arc<Module>) {
    static MODULES: OnceLock<(Arc<Module>, Arc<Module>)> = OnceLock::new();
    MODULES.get_or_init(|| {
        let mut module = Module::new();
        surface::register(&mut module, &Reach::Program);
        surface::register_program(&mut module);
        nesting::register(&mut module);
        everyday::register(&mut module);
        text::register(&mut module);
        set(&mut module, "sleep", |_: i64| -> Native<()> { Err(raise("a program cannot sleep".to_owned())) });
        set(&mut module, "sleep", |_: f64| -> Native<()> { Err(raise("a program cannot sleep".to_owned())) });
        module.build_index();
        (StandardFunctions::new().as_shared_module(), module.into())
    })
}

/// Registers a function that any program sees; it leaves its object as it is.
pub(super) fn set<A: 'static, const N: usize, const X: bool, R, const F: bool, FUNC>(
    module: &mut Module,
    name: &str,
    function: FUNC,
) where
    R: rhai::Variant + Clone,
    FUNC: rhai::RhaiNativeFunc<A, N, X, R, F> + Send + Sync + 'static,
{
    FuncRegistration::new(name).in_global_namespace().with_purity(true).set_into_module(module, function);
}

/// Registers a method that changes its object.
pub(super) fn set_mutator<A: 'static, const N: usize, const X: bool, R, const F: bool, FUNC>(
    module: &mut Module,
    name: &str,
    function: FUNC,
) where
    R: rhai::Variant + Clone,
    FUNC: rhai::RhaiNativeFunc<A, N, X, R, F> + Send + Sync + 'static,
{
    FuncRegistration::new(name).in_global_namespace().with_purity(false).set_into_module(module, function);
}

/// The name of a value's type as people know it.
pub(super) fn type_name(value: &Dynamic) -> String {
    let full = value.type_name();
    let name = modules().1.get_custom_type_display_by_name(full).unwrap_or(full);
    name.rsplit("::").next().unwrap_or(name).to_owned()
}
