//! Measured floors and ratios of the Rust side: CPU time of the measuring thread, medians over batches, all in one run.
//!
//! Absolute times depend on the machine; the ratio to the floor (a bare interpreter call in the same run) does not.

use std::fs::File;
use std::hint::black_box;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use cadenza_core::agent::Agent;
use cadenza_core::ids::CallId;
use cadenza_core::log::BackgroundLog;
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::{Durability, ProgramSource};
use cadenza_core::program::Language;
use cadenza_core::program::rhai::MeteredAllocator;
use cadenza_core::provider::{ModelSpec, Scripted};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{LogOption, Options, Reuse, StoreOption};
use cadenza_core::store::{Began, Change, SqliteStore};
use cadenza_core::tools::Tool;
use cadenza_core::value::{Map, Value};
use mimalloc::MiMalloc;

mod providers;

/// As in the products that are measured.
#[global_allocator]
static ALLOCATOR: MeteredAllocator<MiMalloc> = MeteredAllocator(MiMalloc);

const BATCHES: usize = 41;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => tables(),
        ["store"] => durable(),
        ["providers"] => providers::tables(),
        ["die", path] => die(Path::new(path)),
        ["http-floor", url, requests, delay] => http_floor(url, requests.parse().expect("a count"), delay),
        ["profile", language, reuse, log, calls] => profile(language, reuse, log, calls.parse().expect("a count")),
        _ => panic!(
            "usage: cadenza-bench [store | providers | http-floor URL COUNT DELAY_MS | profile LANGUAGE auto|off log|store|- CALLS]"
        ),
    }
}

/// One kind of call again and again, for a profiler to look at.
fn profile(language: &str, reuse: &str, log: &str, calls: usize) {
    let reuse = if reuse == "off" { Reuse::Off } else { Reuse::Auto };
    let language = Language::from_name(language).expect("lua or rhai");
    let folder = Folder::new("profile");
    let agent = match log {
        "store" => stored(&folder.0.join("app.db"), language, Durability::Batch, reuse),
        log => agent(language, log == "log", reuse),
    };
    (0..calls).for_each(|_| add(&agent));
    agent.runtime().flush();
}

/// What a bare client reaches: that many waiting requests at once, each the size of a small prompt. Prints the rate.
fn http_floor(url: &str, requests: usize, delay: &str) {
    let body = serde_json::json!({
        "model": format!("delay:{delay}"),
        "messages": [
            {"role": "system", "content": "x".repeat(4_000)},
            {"role": "user", "content": "Role: calculator\nMethod: work"},
        ],
    });
    // The provider of the runtime under test does the same once.
    rustls::crypto::ring::default_provider().install_default().ok();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let elapsed = runtime.block_on(async {
        let client = reqwest::Client::new();
        let start = std::time::Instant::now();
        let tasks: Vec<_> = (0..requests)
            .map(|_| {
                let request = client.post(format!("{url}/chat/completions")).json(&body);
                tokio::spawn(async move { request.send().await?.json::<serde_json::Value>().await })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic").expect("an answer");
        }
        start.elapsed()
    });
    println!("{}", requests as f64 / elapsed.as_secs_f64());
}

fn tables() {
    let mut table = Table::default();
    table.floor("bare Luau call (mlua, a + b)", bare_luau());
    for language in Language::ALL {
        for (log, name) in [(false, "log off"), (true, "log on")] {
            let agent = agent(language, log, Reuse::Auto);
            table.row(&format!("reused call, {language}, {name}"), target(log, 10.0, 15.0), reused(&agent));
        }
        table.row(&format!("cold call, {language}, instant model"), Some(60.0), cold(language));
    }
    table.row("parent + delegate + child, lua", Some(120.0), delegating(Language::Lua));
    table.row("parent + delegate + child, rhai", Some(120.0), delegating(Language::Rhai));
    let runtime = runtime(Language::Lua, false, Reuse::Auto);
    table.row(
        "construct",
        Some(3.0),
        median(2_000, || {
            black_box(runtime.agent("calculator", Options::default()).expect("no options to refuse"));
        }),
    );
    let calc = agent(Language::Lua, false, Reuse::Auto);
    table.row("setter", Some(0.7), median(20_000, || calc.set("memory", 5.into()).expect("an identifier")));
    table.row(
        "read",
        Some(0.4),
        median(20_000, || {
            black_box(calc.runtime_context().get("memory"));
        }),
    );
    growth(&mut table);
    table.note("memory per idle agent", format!("{:.2} KB (target 1.5 KB)", idle_agent_bytes() / 1024.0));
    table.print();
    durable();
    providers::tables();
}

/// Calls that are stored before a store is opened, verified and replayed; together they have a million entries and more.
const HISTORY: usize = 100_000;
/// Calls that a process leaves unfinished when it dies.
const UNFINISHED: usize = 1_000;

/// What a store costs, and how fast it is read back. Waiting for the disk is set against a bare append of 4 KB with
/// fdatasync in the same run.
fn durable() {
    println!("\nStore: one SQLite file in {}", std::env::temp_dir().display());
    let folder = Folder::new("store");
    let path = folder.0.join("app.db");
    let memory = stored(&path, Language::Lua, Durability::Memory, Reuse::Auto);
    let batch = stored(&path, Language::Lua, Durability::Batch, Reuse::Auto);
    let ratio = paired(&memory, &batch);
    println!("{:<42} {ratio:>9.2} × memory   target ≤ 1.3 ×", "reused call, batch (CPU, calling thread)");
    waits(&folder, &path);

    let store = batch.runtime().store().expect("it has one").clone();
    let before = bytes(&path);
    let start = Instant::now();
    (0..HISTORY).for_each(|number| add_to(&batch, number as i64));
    batch.runtime().flush();
    let rate = HISTORY as f64 / start.elapsed().as_secs_f64();
    println!("{:<42} {rate:>9.0} calls/s to the disk", "reused calls, batch, sustained");
    let size = (bytes(&path) - before) as f64 / HISTORY as f64;
    println!("{:<42} {size:>9.0} bytes", "size per reused call");

    let start = cpu_us();
    let report = store.verify().expect("it is whole");
    let entries = report.entries as f64 / (cpu_us() - start) * 1e6;
    println!("{:<42} {entries:>9.0} entries/s   target ≥ 300,000 a core", "verify");
    let calls = batch.runtime().call_maps(2_000).expect("they are there");
    // Another runtime: this one would replay its last calls from memory.
    let reader = stored(&path, Language::Lua, Durability::Batch, Reuse::Auto);
    let start = Instant::now();
    for call in &calls {
        let id = call["call_id"].as_str().and_then(CallId::parse).expect("an id");
        reader.runtime().replay(id).expect("it replays");
    }
    let replayed = calls.len() as f64 / start.elapsed().as_secs_f64();
    println!("{:<42} {replayed:>9.0} calls/s", "replay, from the store, programs included");
    drop((batch, memory, reader, store));
    opening(&path, report.entries);
}

/// Calls that wait for the disk.
fn waits(folder: &Folder, path: &Path) {
    let disk = wall(300, &mut {
        let mut file = raw_file(&folder.0);
        move || raw_append(&mut file)
    });
    println!("{:<42} {disk:>9.1} µs   (floor)", "append of 4 KB and fdatasync");
    let print = |name: &str, us: f64, target: &str| {
        println!("{name:<42} {us:>9.1} µs {:>8.2} × floor{target}", us / disk);
    };
    let strict = stored(path, Language::Lua, Durability::Strict, Reuse::Auto);
    add(&strict);
    print(
        "reused call, strict, one caller",
        wall(300, &mut || add(&strict)),
        "   target ≤ 120 µs on a fast disk (R19)",
    );
    let effectful = || {
        let outcome = strict.call("ring", vec![Value::Int(2)], Map::new()).expect("a good name");
        assert!(outcome.ok(), "{:?}", outcome.error());
        outcome.metadata.expect("every call has it").source
    };
    effectful();
    assert_eq!(effectful(), ProgramSource::Reused);
    print(
        "call with a tool, strict, one caller",
        wall(100, &mut || {
            effectful();
        }),
        "   target ≤ 300 µs on a fast disk (R19)",
    );
    for (reuse, name, target) in [(Reuse::Auto, "reused", ""), (Reuse::Off, "cold", "   target ≤ 1.2 ×")] {
        for callers in [4, 16] {
            let agents: Vec<Agent> =
                (0..callers).map(|_| stored(path, Language::Lua, Durability::Strict, reuse)).collect();
            agents.iter().for_each(add);
            let start = Instant::now();
            std::thread::scope(|scope| {
                agents.iter().for_each(|agent| drop(scope.spawn(|| (0..100).for_each(|_| add(agent)))));
            });
            let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(callers * 100);
            print(&format!("{name} call, strict, {callers} callers, each"), each, target);
        }
    }
}

/// Opening a store with a long history, and one that a killed process left calls in.
fn opening(path: &Path, entries: i64) {
    let open = || {
        let start = Instant::now();
        let store = SqliteStore::open(path).expect("a store");
        let opened = start.elapsed().as_secs_f64() * 1e3;
        drop(store);
        opened
    };
    println!("{:<42} {:>9.1} ms   target ≤ 100 ms", format!("opening, {entries} entries"), open());
    let status = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["die".as_ref(), path.as_os_str()])
        .status()
        .expect("it starts");
    assert!(!status.success(), "it dies");
    println!("{:<42} {:>9.1} ms   target ≤ 1,000 ms", format!("opening, {UNFINISHED} unfinished calls"), open());
}

/// Leaves unfinished calls in the store, and dies as by kill -9.
fn die(path: &Path) {
    let agent = stored(path, Language::Lua, Durability::Batch, Reuse::Auto);
    add(&agent);
    let contract = agent.history()[0].contract.clone();
    let store = agent.runtime().store().expect("it has one");
    for _ in 0..UNFINISHED {
        let record = Map::from([("role".to_owned(), "calculator".into()), ("method".to_owned(), "add".into())]);
        let began = Began { run: CallId::fresh(), record, contract: contract.clone() };
        store.write(vec![Change::Began(Arc::new(began))], Durability::Batch, None).expect("room");
    }
    store.sync().expect("a disk");
    std::process::abort();
}

/// An agent whose calls are kept in that file.
fn stored(path: &Path, language: Language, durability: Durability, reuse: Reuse) -> Agent {
    let tool = Tool::new("ring", "Rings.", Value::Map(Map::new()), |_, _| Ok(Value::Int(5))).expect("a good tool");
    let options = Options {
        model: Some(ModelSpec::Provider(scripted(language))),
        language: Some(language),
        store: Some(StoreOption::Path(path.to_owned())),
        durability: Some(durability),
        reuse: Some(reuse),
        tools: Some(vec![Arc::new(tool)]),
        ..Options::default()
    };
    let runtime = Runtime::builder().options(options).build().expect("the options are valid");
    runtime.agent("calculator", Options::default()).expect("no options to refuse")
}

/// CPU of the calling thread in calls of `other` over that in calls of `one`, in turns: the machine's noise falls on both.
fn paired(one: &Agent, other: &Agent) -> f64 {
    const CALLS: usize = 500;
    let measure = |agent: &Agent| {
        let start = cpu_us();
        (0..CALLS).for_each(|_| add(agent));
        cpu_us() - start
    };
    [one, other].iter().for_each(|agent| (0..CALLS).for_each(|_| add(agent)));
    let mut ratios: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let one = measure(one);
            measure(other) / one
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios[BATCHES / 2]
}

/// Bytes of the store's file and of its log.
fn bytes(path: &Path) -> u64 {
    let log = path.with_extension("db-wal");
    [path, &log].iter().map(|path| std::fs::metadata(path).map_or(0, |file| file.len())).sum()
}

/// A folder for one measurement, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cadenza-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn raw_file(folder: &Path) -> File {
    File::create(folder.join("raw")).expect("a file")
}

fn raw_append(file: &mut File) {
    file.write_all(&[7; 4096]).and_then(|()| file.sync_data()).expect("a disk");
}

/// Median microseconds of wall time per call.
fn wall(calls: usize, call: &mut dyn FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..calls)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[calls / 2]
}

fn target(log: bool, without: f64, with: f64) -> Option<f64> {
    Some(if log { with } else { without })
}

const ADD: [&str; 2] = ["return args[1] + args[2]", "args[0] + args[1]"];
const RING: [&str; 2] = ["return tools.ring{times = args[1]}", "tools.ring(#{times: args[0]})"];
const DELEGATE: [&str; 2] =
    [r#"return agent:delegate("calculator"):add(2, 3)"#, r#"agent.delegate("calculator", #{}).call("add", [2, 3])"#];

fn scripted(language: Language) -> Arc<Scripted> {
    Arc::new(Scripted::respond(move |request| {
        let programs = match &*request.method {
            "compute" => DELEGATE,
            "ring" => RING,
            _ => ADD,
        };
        Ok(ModelReply::text(programs[language as usize]))
    }))
}

fn runtime(language: Language, log: bool, reuse: Reuse) -> Runtime {
    let log = if log {
        let path = std::env::temp_dir().join(format!("cadenza-bench-{}.jsonl", std::process::id()));
        LogOption::Sink(Arc::new(BackgroundLog::to_file(&path)))
    } else {
        LogOption::Off
    };
    let options = Options {
        model: Some(ModelSpec::Provider(scripted(language))),
        language: Some(language),
        log: Some(log),
        reuse: Some(reuse),
        ..Options::default()
    };
    Runtime::builder().options(options).build().expect("the options are valid")
}

fn agent(language: Language, log: bool, reuse: Reuse) -> Agent {
    runtime(language, log, reuse).agent("calculator", Options::default()).expect("no options to refuse")
}

fn add(agent: &Agent) {
    let outcome = agent.call("add", vec![Value::Int(2), Value::Int(3)], Map::new()).expect("a good name");
    assert_eq!(outcome.value(), &Value::Int(5), "{:?}", outcome.error());
}

/// A sum of its own, so that no two calls are the same.
fn add_to(agent: &Agent, number: i64) {
    let outcome = agent.call("add", vec![Value::Int(number), Value::Int(3)], Map::new()).expect("a good name");
    assert_eq!(outcome.value(), &Value::Int(number + 3), "{:?}", outcome.error());
}

fn reused(agent: &Agent) -> f64 {
    add(agent);
    median(500, || add(agent))
}

fn cold(language: Language) -> f64 {
    let agent = agent(language, false, Reuse::Off);
    median(200, || add(&agent))
}

fn delegating(language: Language) -> f64 {
    let agent = agent(language, false, Reuse::Auto);
    let call = || {
        let outcome = agent.call("compute", Vec::new(), Map::new()).expect("a good name");
        assert_eq!(outcome.value(), &Value::Int(5), "{:?}", outcome.error());
    };
    call();
    median(200, call)
}

fn bare_luau() -> f64 {
    let lua = mlua::Lua::new();
    let add: mlua::Function = lua.load("local a, b = ... return a + b").into_function().expect("it compiles");
    median(5_000, || {
        black_box(add.call::<i64>((2, 3)).expect("it adds"));
    })
}

/// Call number 5,000 against call number 100: work per call does not grow with history.
fn growth(table: &mut Table) {
    let agent = agent(Language::Lua, false, Reuse::Auto);
    (0..100).for_each(|_| add(&agent));
    let early = median(100, || add(&agent));
    (0..5_000).for_each(|_| add(&agent));
    let late = median(100, || add(&agent));
    table.note("call 5,000 against call 100", format!("{:.2} times (target about 1)", late / early));
}

fn idle_agent_bytes() -> f64 {
    const AGENTS: usize = 20_000;
    let runtime = runtime(Language::Lua, false, Reuse::Auto);
    let before = MeteredAllocator::held();
    let agents: Vec<_> = (0..AGENTS)
        .map(|number| {
            let agent = runtime.agent("calculator", Options::default()).expect("no options to refuse");
            agent.set("memory", Value::Int(number as i64)).expect("an identifier");
            agent
        })
        .collect();
    let used = MeteredAllocator::held() - before;
    black_box(&agents);
    used as f64 / AGENTS as f64
}

/// CPU time of this thread in microseconds.
fn cpu_us() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that the call fills in.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Median microseconds of CPU per call over batches of `calls`.
fn median(calls: usize, mut call: impl FnMut()) -> f64 {
    (0..calls.min(50)).for_each(|_| call());
    let mut times: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = cpu_us();
            (0..calls).for_each(|_| call());
            (cpu_us() - start) / calls as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[BATCHES / 2]
}

#[derive(Default)]
struct Table {
    floor: f64,
    lines: Vec<String>,
}

impl Table {
    fn floor(&mut self, name: &str, us: f64) {
        self.floor = us;
        self.lines.push(format!("{name:<42} {us:>9.3} µs   (floor)"));
    }

    fn row(&mut self, name: &str, target: Option<f64>, us: f64) {
        let target = target.map(|target| format!("   target ≤ {target} µs")).unwrap_or_default();
        self.lines.push(format!("{name:<42} {us:>9.3} µs {:>8.1} × floor{target}", us / self.floor));
    }

    fn note(&mut self, name: &str, text: String) {
        self.lines.push(format!("{name:<42} {text}"));
    }

    fn print(&self) {
        println!("Rust: CPU time of the calling thread, medians of {BATCHES} batches");
        self.lines.iter().for_each(|line| println!("{line}"));
    }
}
