//! What a parsed program is changed into before it runs.
//!
//! 1. Values that are put inside others pass a guard ([`super::nesting`]).
//! 2. `x.call(...)` becomes a function of our own: Rhai keeps that name for function pointers, and agents are called too.
//! 3. For every function `f` of the program there is a method `f` of agents, so that `child.f(1)` calls the child even
//!    when the program has a function of that name.
//!
//! Rhai lets us build expressions and functions, but not the type of a function's body. A changed body is therefore
//! reached through one expression of our own (custom syntax), which a small parser of ours wraps around it. Positions
//! stay as the program's author wrote them. Nothing is evaluated here.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use rhai::{
    AST, ASTNode, BinaryExpr, CustomExpr, Dynamic, Engine, EvalContext, Expr, Expression, FnCallExpr, FnCallHashes,
    ImmutableString, Module, Position, ScriptFuncDef, Stmt, StmtBlock,
};

use super::call::Native;
use super::nesting;

/// What `x.call(...)` becomes.
pub(super) const CALL: &str = "cadenza_call";

/// The most arguments of such a call; with more it stays what it is in Rhai.
pub(super) const MAX_CALL_ARGUMENTS: usize = 16;

/// The name of the agents' type, in messages and for methods.
pub(super) const AGENT: &str = "Agent";

/// The expression that evaluates what it holds and checks how deep the value nests. No program can spell it.
const GUARD: &str = "nest$";

/// The same for a value that goes into a captured variable.
const GUARD_CAPTURED: &str = "keep$";

/// The expression that evaluates what it holds and turns it into text: for interpolated strings.
const TEXT: &str = "text$";

/// The expression that gives a copy of a captured variable, so that the closure may look at it while it is worked on.
const COPY: &str = "copy$";

/// The expression that runs a function's changed body. Only our own small parser knows it as syntax.
const BODY: &str = "cadenza_body";

/// Rhai's name for adding arguments to a function pointer: how a closure gets what it captures.
const CURRY: &str = "curry";

/// Functions whose result may hold what a closure returned.
const BUILDERS: [&str; 4] = ["map", "zip", "call", CALL];

/// Methods that put their arguments into their object.
const KEEPERS: [&str; 8] = ["push", "insert", "append", "set", "pad", "splice", "mixin", "fill_with"];

/// Methods that call closures and leave their object as it is.
const READERS: [&str; 16] = [
    "map",
    "filter",
    "reduce",
    "reduce_rev",
    "some",
    "all",
    "find",
    "find_map",
    "index_of",
    "zip",
    "order",
    "order_by",
    "sorted",
    "sorted_by",
    "keys",
    "values",
];

/// What [`BODY`] runs.
#[derive(Clone)]
struct Body(Arc<Expr>);

/// Teaches an engine to run rewritten programs.
pub(super) fn register(engine: &mut Engine) -> Result<(), String> {
    engine
        .register_custom_syntax_handler(GUARD, false, |context, inputs, _| guarded(context, inputs, nesting::check))?;
    engine.register_custom_syntax_handler(GUARD_CAPTURED, false, |context, inputs, _| {
        guarded(context, inputs, nesting::check_captured)
    })?;
    engine.register_custom_syntax_handler(TEXT, false, |context, inputs, _| {
        let mut value = evaluated(context, inputs)?;
        if value.is_array() || value.is_map() || value.is_variant() || value.is_shared() {
            return context.call_native_fn_raw("to_string", true, &mut [&mut value]);
        }
        Ok(value)
    })?;
    engine
        .register_custom_syntax_handler(COPY, false, |context, inputs, _| Ok(evaluated(context, inputs)?.flatten()))?;
    engine.register_custom_syntax_handler(BODY, false, |context, _, state| {
        // The state is always ours; without it there is nothing to run.
        let Some(body) = state.read_lock::<Body>().map(|body| body.0.clone()) else { return Ok(Dynamic::UNIT) };
        #[expect(deprecated, reason = "marked volatile, not deprecated; the version is pinned")]
        context.eval_expression_tree_raw(&Expression::from(&*body), true)
    })?;
    Ok(())
}

fn guarded(context: &mut EvalContext, inputs: &[Expression], check: fn(&Dynamic) -> Native<()>) -> Native<Dynamic> {
    let value = evaluated(context, inputs)?;
    check(&value)?;
    Ok(value)
}

fn evaluated(context: &mut EvalContext, inputs: &[Expression]) -> Native<Dynamic> {
    // There is always one.
    inputs.first().map_or(Ok(Dynamic::UNIT), |input| context.eval_expression_tree(input))
}

/// Whether values that are put inside others are checked: in programs, not in trusted scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guards {
    On,
    Off,
}

/// The rewritten program. `Err` only when our own wrapper does not parse.
pub(super) fn rewrite(ast: &AST, guards: Guards) -> Result<AST, String> {
    let mut captured = BTreeSet::new();
    ast.walk(&mut |path: &[ASTNode]| {
        if let Some(ASTNode::Stmt(Stmt::Share(variables))) = path.last() {
            captured.extend(variables.iter().map(|(name, _)| name.name.clone()));
        }
        true
    });
    let mut pass = Pass { guards, captured, this: false, changed: false };

    let mut statements = ast.statements().to_vec();
    statements.iter_mut().for_each(|statement| pass.statement(statement));

    let mut kept = Vec::new();
    let mut changed: Vec<(ScriptFuncDef, Expr)> = Vec::new();
    for (.., function) in ast.shared_lib().iter_script_fn_info() {
        let function = (**function).clone();
        let mut body = body_of(&function);
        (pass.this, pass.changed) = (false, false);
        body.iter_mut().for_each(|statement| pass.statement(statement));
        if !pass.this && function.this_type.is_none() && !function.name.contains('$') {
            changed.extend(agent_method(&function));
        }
        if pass.changed {
            let body = StmtBlock::new(body, Position::NONE, Position::NONE);
            changed.push((function, Expr::Stmt(Box::new(body))));
        } else {
            kept.push(function);
        }
    }

    let mut module = Module::new();
    kept.into_iter().chain(wrap_bodies(changed)?).for_each(|function| {
        module.set_script_fn(function);
    });
    Ok(AST::new(statements, module))
}

/// A copy of the statements of a function.
fn body_of(function: &ScriptFuncDef) -> Vec<Stmt> {
    let mut module = Module::new();
    module.set_script_fn(function.clone());
    let mut body = Vec::new();
    AST::new([], module).walk(&mut |path: &[ASTNode]| {
        if let [ASTNode::Stmt(statement)] = path {
            body.push((*statement).clone());
        }
        true
    });
    body
}

/// `fn Agent.f(a, b) { this.call("f", [a, b]) }`, so that a method of another agent is never mistaken for the
/// program's own function of that name.
fn agent_method(function: &ScriptFuncDef) -> Option<(ScriptFuncDef, Expr)> {
    let none = Position::NONE;
    let variable = |name: &ImmutableString| {
        Expr::Variable(Box::new((None, name.clone(), rhai::Namespace::default(), 0)), None, none)
    };
    let arguments = Expr::Array(function.params.iter().map(variable).collect(), none);
    let args = [Expr::StringConstant(function.name.clone(), none), arguments];
    let call = FnCallExpr {
        namespace: rhai::Namespace::default(),
        name: CALL.into(),
        hashes: call_hashes(args.len())?,
        args: args.into_iter().collect(),
        capture_parent_scope: false,
        op_token: None,
    };
    let chain = BinaryExpr { lhs: Expr::ThisPtr(none), rhs: Expr::MethodCall(Box::new(call), none) };
    let mut method = function.clone();
    method.this_type = Some(AGENT.into());
    Some((method, Expr::Dot(Box::new(chain), rhai::ASTFlags::NONE, none)))
}

/// What Rhai looks a method call of that name up by: read off a program that makes one, for Rhai does not tell.
fn call_hashes(arguments: usize) -> Option<FnCallHashes> {
    static HASHES: OnceLock<Vec<FnCallHashes>> = OnceLock::new();
    let hashes = HASHES.get_or_init(|| {
        let call = |count: usize| format!("x.{CALL}({});", vec!["0"; count].join(","));
        let text: String = (0..=MAX_CALL_ARGUMENTS).map(call).collect();
        let mut hashes = Vec::new();
        if let Ok(ast) = Engine::new_raw().compile(text) {
            ast.walk(&mut |path: &[ASTNode]| {
                if let Some(ASTNode::Expr(Expr::MethodCall(call, _))) = path.last() {
                    hashes.push(call.hashes);
                }
                true
            });
        }
        hashes
    });
    hashes.get(arguments).copied()
}

/// Gives each function its new body.
fn wrap_bodies(functions: Vec<(ScriptFuncDef, Expr)>) -> Result<Vec<ScriptFuncDef>, String> {
    if functions.is_empty() {
        return Ok(Vec::new());
    }
    let (mut functions, bodies): (Vec<_>, Vec<_>) =
        functions.into_iter().map(|(function, body)| (function, Body(Arc::new(body)))).unzip();
    let mut parser = Engine::new_raw();
    parser.register_custom_syntax_with_state_raw(
        BODY,
        move |symbols, _, state| {
            // First the keyword alone, then the keyword and the name of the body: `b0`, `b1`, ...
            let [_, name] = symbols else { return Ok(Some("$ident$".into())) };
            if let Some(body) = name.get(1..).and_then(|number| bodies.get(number.parse::<usize>().ok()?)) {
                *state = Dynamic::from(body.clone());
            }
            Ok(None)
        },
        false,
        |_, _, _| Ok(Dynamic::UNIT),
    );
    let text: String = (0..functions.len()).map(|index| format!("fn b{index}() {{ {BODY} b{index} }}\n")).collect();
    let wrapped = parser.compile(text).map_err(|error| error.to_string())?;
    for (index, function) in functions.iter_mut().enumerate() {
        let wrapper = wrapped.shared_lib().get_script_fn(format!("b{index}"), 0);
        function.body = wrapper.ok_or("a function's wrapper is missing")?.body.clone();
    }
    Ok(functions)
}

struct Pass {
    guards: Guards,
    /// Names of variables that any closure of the program captures.
    captured: BTreeSet<ImmutableString>,
    /// The current function uses `this`.
    this: bool,
    /// The current function was changed.
    changed: bool,
}

impl Pass {
    fn block(&mut self, block: &mut StmtBlock) {
        block.statements_mut().iter_mut().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &mut Stmt) {
        match statement {
            Stmt::If(flow, _) | Stmt::While(flow, _) | Stmt::Do(flow, _, _) | Stmt::TryCatch(flow, _) => {
                self.expression(&mut flow.expr);
                self.block(&mut flow.body);
                self.block(&mut flow.branch);
            }
            Stmt::For(parts, _) => {
                let (_, _, flow) = &mut **parts;
                self.expression(&mut flow.expr);
                self.block(&mut flow.body);
                self.block(&mut flow.branch);
            }
            Stmt::Switch(parts, _) => {
                let (subject, cases) = &mut **parts;
                self.expression(subject);
                for case in &mut cases.expressions {
                    self.expression(&mut case.lhs);
                    self.expression(&mut case.rhs);
                }
            }
            Stmt::Var(parts, _, _) => self.expression(&mut parts.1),
            Stmt::Assignment(parts) => self.assignment(&mut parts.1),
            Stmt::FnCall(call, position) => {
                self.arguments(call);
                // The last statement of a function is its value.
                if BUILDERS.contains(&call.name.as_str()) {
                    let mut value = Expr::FnCall(call.clone(), *position);
                    self.guard(&mut value, GUARD);
                    *statement = Stmt::Expr(Box::new(value));
                }
            }
            Stmt::Block(block) => self.block(block),
            Stmt::Expr(value) | Stmt::BreakLoop(Some(value), _, _) | Stmt::Return(Some(value), _, _) => {
                self.expression(value);
            }
            // What is left holds no expression; `import` and `export` do not parse.
            _ => {}
        }
    }

    /// `left = right`, and every `left += right`.
    fn assignment(&mut self, sides: &mut BinaryExpr) {
        if let Expr::Dot(place, _, _) | Expr::Index(place, _, _) = &mut sides.lhs {
            self.chain(place);
        }
        self.this |= matches!(sides.lhs, Expr::ThisPtr(_));
        self.expression(&mut sides.rhs);
        if is_flat(&sides.rhs) {
            return;
        }
        let inside = matches!(sides.lhs, Expr::Dot(..) | Expr::Index(..));
        if self.is_captured(root(&sides.lhs)) {
            self.guard(&mut sides.rhs, GUARD_CAPTURED);
        } else if inside {
            self.guard(&mut sides.rhs, GUARD);
        }
    }

    fn expression(&mut self, expression: &mut Expr) {
        match expression {
            Expr::Array(items, _) => {
                items.iter_mut().for_each(|item| self.expression(item));
                if !items.iter().all(is_flat) {
                    self.guard(expression, GUARD);
                }
            }
            Expr::Map(parts, _) => {
                parts.0.iter_mut().for_each(|(_, item)| self.expression(item));
                if !parts.0.iter().all(|(_, item)| is_flat(item)) {
                    self.guard(expression, GUARD);
                }
            }
            Expr::InterpolatedString(parts, _) => {
                for part in parts.iter_mut() {
                    self.expression(part);
                    if !is_flat(part) {
                        self.guard(part, TEXT);
                    }
                }
            }
            Expr::And(parts, _) | Expr::Or(parts, _) | Expr::Coalesce(parts, _) => {
                parts.iter_mut().for_each(|part| self.expression(part));
            }
            Expr::Stmt(block) => self.block(block),
            Expr::FnCall(call, _) => {
                self.arguments(call);
                if call.name == CURRY || BUILDERS.contains(&call.name.as_str()) {
                    self.guard(expression, GUARD);
                }
            }
            Expr::Dot(sides, _, _) | Expr::Index(sides, _, _) => {
                if self.chain(sides) {
                    self.guard(expression, GUARD);
                }
            }
            Expr::ThisPtr(_) => self.this = true,
            _ => {}
        }
    }

    /// `first.link.link[link]`. Returns whether one of its methods builds a value out of others.
    fn chain(&mut self, sides: &mut BinaryExpr) -> bool {
        let captured = self.is_captured(Some(&sides.lhs));
        if captured && matches!(sides.lhs, Expr::Variable(..)) && only_reads(&sides.rhs) == Some(true) {
            self.wrap(&mut sides.lhs, COPY);
        }
        self.expression(&mut sides.lhs);
        self.link(&mut sides.rhs, captured)
    }

    /// What follows the first element of a chain.
    fn link(&mut self, link: &mut Expr, captured: bool) -> bool {
        match link {
            Expr::MethodCall(call, _) => {
                self.arguments(call);
                if call.name == "call"
                    && let Some(hashes) = call_hashes(call.args.len())
                {
                    call.hashes = hashes;
                    call.name = CALL.into();
                    self.changed = true;
                }
                if captured && KEEPERS.contains(&call.name.as_str()) {
                    call.args.iter_mut().filter(|argument| !is_flat(argument)).for_each(|argument| {
                        self.guard(argument, GUARD_CAPTURED);
                    });
                }
                BUILDERS.contains(&call.name.as_str())
            }
            Expr::Dot(sides, _, _) | Expr::Index(sides, _, _) => {
                // Either goes on with the chain or, inside `[...]`, is an expression of its own; both may be walked so.
                let first = match &mut sides.lhs {
                    link @ Expr::MethodCall(..) => self.link(link, captured),
                    other => {
                        self.expression(other);
                        false
                    }
                };
                self.link(&mut sides.rhs, captured) | first
            }
            other => {
                self.expression(other);
                false
            }
        }
    }

    fn arguments(&mut self, call: &mut FnCallExpr) {
        call.args.iter_mut().for_each(|argument| self.expression(argument));
        // `push(list, item)` is `list.push(item)`.
        if KEEPERS.contains(&call.name.as_str()) && self.is_captured(call.args.first()) {
            call.args.iter_mut().skip(1).filter(|argument| !is_flat(argument)).for_each(|argument| {
                self.guard(argument, GUARD_CAPTURED);
            });
        }
    }

    /// Whether a value kept in this place may be reached by a closure. `this` may be anything.
    fn is_captured(&self, place: Option<&Expr>) -> bool {
        match place {
            Some(Expr::Variable(parts, _, _)) => self.captured.contains(&parts.1),
            Some(Expr::ThisPtr(_)) => !self.captured.is_empty(),
            _ => false,
        }
    }

    fn guard(&mut self, expression: &mut Expr, guard: &'static str) {
        if self.guards == Guards::On {
            self.wrap(expression, guard);
        }
    }

    /// Puts one of our own expressions around another.
    fn wrap(&mut self, expression: &mut Expr, by: &'static str) {
        self.changed = true;
        let position = expression.position();
        let inner = std::mem::take(expression);
        let custom = CustomExpr {
            inputs: [inner].into_iter().collect(),
            tokens: [ImmutableString::from(by)].into_iter().collect(),
            state: Dynamic::UNIT,
            scope_may_be_changed: false,
            self_terminated: false,
        };
        *expression = Expr::Custom(Box::new(custom), position);
    }
}

/// Whether what follows a chain's first element calls a closure without changing anything: `Some(false)` when it calls
/// none, `None` when it may change something.
fn only_reads(link: &Expr) -> Option<bool> {
    match link {
        Expr::MethodCall(call, _) => READERS.contains(&call.name.as_str()).then_some(true),
        Expr::Dot(sides, _, _) | Expr::Index(sides, _, _) => Some(only_reads(&sides.lhs)? | only_reads(&sides.rhs)?),
        _ => Some(false),
    }
}

/// The variable that a chain begins with.
fn root(place: &Expr) -> Option<&Expr> {
    match place {
        Expr::Dot(sides, _, _) | Expr::Index(sides, _, _) => root(&sides.lhs),
        other => Some(other),
    }
}

/// Whether the value is certainly neither a container nor a function.
fn is_flat(expression: &Expr) -> bool {
    match expression {
        Expr::BoolConstant(..)
        | Expr::IntegerConstant(..)
        | Expr::FloatConstant(..)
        | Expr::CharConstant(..)
        | Expr::StringConstant(..)
        | Expr::InterpolatedString(..)
        | Expr::Unit(_)
        | Expr::And(..)
        | Expr::Or(..) => true,
        // `+` joins arrays and maps; other operators compute or compare.
        Expr::FnCall(call, _) => call.op_token.as_ref().is_some_and(|operator| *operator != rhai::Token::Plus),
        _ => false,
    }
}
