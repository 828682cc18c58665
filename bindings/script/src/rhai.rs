//! Scripts in Rhai: an engine with its standard library, the Agent surface, `fs`, `args` and `import`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cadenza_core::cancel::CancelToken;
use cadenza_core::program::Host as _;
use cadenza_core::program::rhai::{install_script, prepare_script};
use cadenza_core::runtime::Runtime;
use parking_lot::Mutex;
use rhai::{
    AST, Array, Blob, Dynamic, Engine, EvalAltResult, FuncRegistration, LexError, Module, ModuleResolver,
    NativeCallContext, OptimizationLevel, ParseError, ParseErrorType, Position, Scope, Shared,
};

use crate::host::{Console, Trusted};
use crate::{Evaluated, Script, ScriptError, files};

/// Native stack of a running script: Rhai recurses on it, for expressions and for calls.
const STACK: usize = 64 << 20;
/// Depth of a script's own calls that this stack surely holds, also in a debug build.
const MAX_CALLS: usize = 256;
/// Nesting of expressions that this stack surely holds.
const MAX_NESTING: usize = 256;

/// Runs a script to its end.
pub(crate) fn run(script: &Script<'_>, runtime: Runtime, console: &Console) -> Result<(), ScriptError> {
    let host = Arc::new(Trusted::new(runtime, console, false));
    let engine = engine(&host, &script.folder())?;
    let name = script.path.display().to_string();
    on_large_stack(|| {
        let mut ast = compile(&engine, script.source, &name)?;
        ast.set_source(name.as_str());
        let mut scope = Scope::new();
        let args: Array = script.args.iter().map(|arg| arg.as_str().into()).collect();
        scope.push_constant("args", args);
        engine.run_ast_with_scope(&mut scope, &ast).map_err(|error| failure(*error, &name))
    })
}

/// A trusted engine whose modules lie in `folder`.
pub(crate) fn engine(host: &Arc<Trusted>, folder: &Path) -> Result<Engine, ScriptError> {
    let mut engine = Engine::new();
    engine.set_max_call_levels(MAX_CALLS);
    engine.set_max_expr_depths(MAX_NESTING, MAX_NESTING);
    engine.set_optimization_level(OptimizationLevel::None);
    engine.set_module_resolver(Folder { path: folder.to_owned(), loaded: Mutex::default() });
    install_script(&mut engine, host.clone()).map_err(ScriptError::failed)?;
    engine.register_static_module("fs", fs(folder.to_owned()).into());
    let printer = host.clone();
    engine.on_print(move |text| printer.print(text));
    let printer = host.clone();
    engine.on_debug(move |text, _, _| printer.print(text));
    let watched = host.clone();
    engine.on_progress(move |_| watched.is_cancelled().then_some(Dynamic::UNIT));
    Ok(engine)
}

/// A text that runs on such an engine.
pub(crate) fn compile(engine: &Engine, source: &str, name: &str) -> Result<AST, ScriptError> {
    let ast = engine.compile(source).map_err(|error| unparsed(&error, name))?;
    prepare_script(&ast).map_err(|message| ScriptError::failed(format!("{name}: {message}")))
}

/// `import`: modules of one folder, run once.
struct Folder {
    path: PathBuf,
    /// `None` while a module is loading.
    loaded: Mutex<BTreeMap<PathBuf, Option<Shared<Module>>>>,
}

impl ModuleResolver for Folder {
    fn resolve(
        &self,
        engine: &Engine,
        _source: Option<&str>,
        name: &str,
        position: Position,
    ) -> Result<Shared<Module>, Box<EvalAltResult>> {
        let failed =
            |message: String| -> Box<EvalAltResult> { EvalAltResult::ErrorRuntime(message.into(), position).into() };
        let path = files::module(&self.path, name, &["rhai"]).map_err(failed)?;
        // Not in the `match`: its guard would live as long as the arms.
        let before = self.loaded.lock().insert(path.clone(), None);
        match before {
            Some(Some(module)) => {
                self.loaded.lock().insert(path, Some(module.clone()));
                return Ok(module);
            }
            Some(None) => return Err(failed(format!("module {name:?} imports itself in a circle"))),
            None => {}
        }
        let module = self.load(engine, &path).map_err(|error| match error {
            Unloaded::Message(message) => failed(message),
            Unloaded::Raised(error) => EvalAltResult::ErrorInModule(path.display().to_string(), error, position).into(),
        });
        let mut loaded = self.loaded.lock();
        match module {
            Ok(module) => {
                loaded.insert(path, Some(module.clone()));
                Ok(module)
            }
            Err(error) => {
                loaded.remove(&path);
                Err(error)
            }
        }
    }
}

/// Why a module is not there.
enum Unloaded {
    Message(String),
    Raised(Box<EvalAltResult>),
}

impl Folder {
    fn load(&self, engine: &Engine, path: &Path) -> Result<Shared<Module>, Unloaded> {
        let name = path.display().to_string();
        let source = std::fs::read_to_string(path).map_err(|error| Unloaded::Message(format!("{name}: {error}")))?;
        let mut ast = compile(engine, &source, &name).map_err(|error| Unloaded::Message(error.to_string()))?;
        ast.set_source(name);
        Module::eval_ast_as_new(Scope::new(), &ast, engine).map(Shared::new).map_err(Unloaded::Raised)
    }
}

type Raised<T> = Result<T, Box<EvalAltResult>>;

/// A failure of `fs` at the place of its call: Rhai gives it to functions with a module's name in front only when they
/// ask.
fn raised<T>(context: &NativeCallContext, result: Result<T, String>) -> Raised<T> {
    result.map_err(|message| EvalAltResult::ErrorRuntime(message.into(), context.call_position()).into())
}

fn fs(folder: PathBuf) -> Module {
    type Context<'a> = NativeCallContext<'a>;
    let mut module = Module::new();
    let own = FuncRegistration::new;
    let list = |names: Vec<String>| -> Array { names.into_iter().map(Dynamic::from).collect() };
    own("read").set_into_module(&mut module, |at: Context, path: &str| raised(&at, files::read_text(path)));
    own("lines").set_into_module(&mut module, move |at: Context, path: &str| -> Raised<Array> {
        raised(&at, files::lines(path)).map(list)
    });
    own("write").set_into_module(&mut module, |at: Context, path: &str, text: &str| {
        raised(&at, files::write(path, text.as_bytes()))
    });
    own("write")
        .set_into_module(&mut module, |at: Context, path: &str, bytes: Blob| raised(&at, files::write(path, &bytes)));
    own("append").set_into_module(&mut module, |at: Context, path: &str, text: &str| {
        raised(&at, files::append(path, text.as_bytes()))
    });
    own("append")
        .set_into_module(&mut module, |at: Context, path: &str, bytes: Blob| raised(&at, files::append(path, &bytes)));
    own("exists").set_into_module(&mut module, files::exists);
    own("beside").set_into_module(&mut module, move |name: &str| files::beside(&folder, name));
    own("list").set_into_module(&mut module, move |at: Context, path: &str| -> Raised<Array> {
        raised(&at, files::list(path)).map(list)
    });
    module
}

/// Runs on a thread of its own, whose stack is large enough for [`MAX_CALLS`] and [`MAX_NESTING`].
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, ScriptError> + Send) -> Result<T, ScriptError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cadenza-script".into()).stack_size(STACK);
        let running = thread
            .spawn_scoped(scope, work)
            .map_err(|error| ScriptError::failed(format!("no thread for the script: {error}")))?;
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// `path:line:column: message`.
pub(crate) fn unparsed(error: &ParseError, name: &str) -> ScriptError {
    ScriptError::failed(placed(name, error.position(), &error.err_type().to_string()))
}

fn placed(name: &str, position: Position, message: &str) -> String {
    match (position.line(), position.position()) {
        (Some(line), Some(column)) => format!("{name}:{line}:{column}: {message}"),
        (Some(line), None) => format!("{name}:{line}: {message}"),
        (None, _) => format!("{name}: {message}"),
    }
}

/// The innermost error with its place, and the calls around it.
pub(crate) fn failure(error: EvalAltResult, name: &str) -> ScriptError {
    let mut file = name.to_owned();
    let mut traceback = Vec::new();
    let mut error = error;
    loop {
        error = match error {
            EvalAltResult::ErrorInFunctionCall(function, source, inner, position) => {
                traceback.push(placed(&file, position, &format!("in call to {function}")));
                if !source.is_empty() {
                    file = source;
                }
                *inner
            }
            EvalAltResult::ErrorInModule(module, inner, position) => {
                traceback.push(placed(&file, position, &format!("in module {module}")));
                file = module;
                *inner
            }
            mut innermost => {
                let position = innermost.take_position();
                let message = match &innermost {
                    EvalAltResult::ErrorRuntime(value, _) if value.is_string() => value.to_string(),
                    EvalAltResult::ErrorRuntime(value, _) => format!("{value:?}"),
                    other => other.to_string(),
                };
                traceback.reverse();
                return ScriptError::Failed { message: placed(&file, position, &message), traceback };
            }
        };
    }
}

/// An interactive session in Rhai.
pub struct RhaiSession {
    engine: Engine,
    host: Arc<Trusted>,
    scope: Scope<'static>,
    /// Functions of earlier inputs, as they were written.
    functions: AST,
    /// `import` statements of earlier inputs: each input begins with no modules.
    imports: String,
}

impl RhaiSession {
    /// A session whose agents belong to `runtime`.
    pub fn new(runtime: Runtime, console: &Console) -> Result<Self, ScriptError> {
        let host = Arc::new(Trusted::new(runtime, console, true));
        let engine = engine(&host, Path::new("."))?;
        Ok(Self { engine, host, scope: Scope::new(), functions: AST::empty(), imports: String::new() })
    }

    /// Runs one input: the value of its last expression comes back as text.
    pub fn eval(&mut self, source: &str, cancel: CancelToken) -> Result<Evaluated, ScriptError> {
        self.host.renew(cancel);
        // On the same line, so that positions keep their lines.
        let compiled = match self.engine.compile(format!("{}{source}", self.imports)) {
            Ok(compiled) => compiled,
            Err(error) if is_incomplete(&error, source) => return Ok(Evaluated::Incomplete),
            Err(error) => return Err(unparsed(&error, "input")),
        };
        let ast = self.functions.clone_functions_only().merge(&compiled);
        let prepared = prepare_script(&ast).map_err(ScriptError::failed)?;
        let (engine, scope, host) = (&self.engine, &mut self.scope, &self.host);
        let value = on_large_stack(|| match engine.eval_ast_with_scope::<Dynamic>(scope, &prepared) {
            Ok(value) => Ok(shown(engine, value)),
            Err(_) if host.is_cancelled() => Err(ScriptError::Interrupted),
            Err(error) => Err(failure(*error, "input")),
        })?;
        self.functions = ast.clone_functions_only();
        if source.trim_start().starts_with("import ") {
            let statement = source.trim().trim_end_matches(';');
            if !statement.contains([';', '\n']) {
                self.imports.push_str(&format!("{statement}; "));
            }
        }
        Ok(Evaluated::Value(value))
    }

    /// Variables of the session and what the surface offers, in order.
    pub fn names(&self) -> Vec<String> {
        let offered =
            ["Agent::for_role", "Outcome::ok", "Outcome::error", "json::encode", "json::decode", "kw", "print"];
        let functions = files::NAMES.iter().map(|name| format!("fs::{name}"));
        let variables = self.scope.iter_raw().map(|(name, _, _)| name.to_owned());
        let own = self.functions.iter_functions().map(|function| function.name.to_owned());
        let mut names: Vec<String> =
            offered.into_iter().map(str::to_owned).chain(functions).chain(variables).chain(own).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl std::fmt::Debug for RhaiSession {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RhaiSession").field("variables", &self.scope.len()).finish_non_exhaustive()
    }
}

/// A value as text; nothing for `()`.
fn shown(engine: &Engine, value: Dynamic) -> Option<String> {
    if value.is_unit() {
        return None;
    }
    let mut scope = Scope::new();
    scope.push("it", value);
    let text = engine.eval_with_scope::<String>(&mut scope, "json::encode(it)");
    Some(text.or_else(|_| engine.eval_with_scope::<String>(&mut scope, "to_string(it)")).unwrap_or_default())
}

/// Whether an input fails to parse only because it ends too early.
fn is_incomplete(error: &ParseError, source: &str) -> bool {
    match error.err_type() {
        ParseErrorType::UnexpectedEOF | ParseErrorType::BadInput(LexError::UnterminatedString) => true,
        ParseErrorType::MissingToken(..) | ParseErrorType::ExprExpected(..) | ParseErrorType::MissingSymbol(..) => {
            let last = source.trim_end();
            let end = (last.lines().count().max(1), last.lines().next_back().map_or(0, |line| line.chars().count()));
            match (error.position().line(), error.position().position()) {
                (Some(line), Some(column)) => (line, column) > end,
                (Some(line), None) => line >= end.0,
                (None, _) => true,
            }
        }
        _ => false,
    }
}
