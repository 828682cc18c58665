//! The golden corpus (`scenarios/eval/`): its files fit their schema, its checkers take what is right and refuse what is
//! wrong, every case can be solved in the sandbox in each language, and the embedded library answers what it answered before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cadenza_cli::eval::{self, Answer, Case, Evaluation, Report, Run, Stopped, check};
use cadenza_core::cancel::CancelToken;
use cadenza_core::program::Language;
use cadenza_core::provider::scripted::{Plan, PlanItem};
use cadenza_core::provider::{ModelSettings, Provider, ProviderError, ProviderErrorClass, Scripted, resolve};
use cadenza_core::runtime::options::{LogOption, Options};
use cadenza_core::value::Value;
use serde::Deserialize;

/// The program of one method, in each language.
type Texts = BTreeMap<String, String>;
/// Programs by case and method.
type Programs = BTreeMap<String, BTreeMap<String, Texts>>;

/// `tests/eval_programs.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Solutions {
    right: Programs,
    wrong: Programs,
}

fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(checkout(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn solutions() -> Solutions {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(&read("tests/eval_programs.yaml"), options).unwrap()
}

fn corpus() -> Vec<Case> {
    eval::cases(&[]).unwrap()
}

fn evaluation(provider: Arc<dyn Provider>, language: Language) -> Evaluation {
    // A failed program is not written again here: what the first one comes to is what is asked.
    let options = Options { log: Some(LogOption::Off), execution_repairs: Some(0), ..Options::default() };
    Evaluation { provider, language, options, repeat: 1, cancel: CancelToken::default() }
}

fn run(case: &Case, provider: impl Provider + 'static, language: Language) -> Run {
    let cases = std::slice::from_ref(case);
    let mut runs = evaluation(Arc::new(provider), language)
        .run(cases, &|_, _| {})
        .unwrap_or_else(|stopped| panic!("{} in {language}: {stopped:?}", case.id));
    runs.remove(0).remove(0)
}

fn item(texts: &Texts) -> PlanItem {
    let of = |language: &Language| texts.get(language.as_str()).map(|text| (*language, Arc::from(text.as_str())));
    PlanItem::Program(Language::ALL.iter().filter_map(of).collect())
}

/// A model that knows the right programs, except for what `other` puts in the place of one: for that method, its n-th request.
fn model(programs: &BTreeMap<String, Texts>, other: Option<(&str, usize, &Texts)>) -> Scripted {
    let mut plan = Plan::new();
    for (method, texts) in programs {
        match other {
            Some((wrong, before, texts_of_it)) if wrong == method => {
                (0..before).for_each(|_| plan.push(method, "right", item(texts)));
                plan.push(method, "wrong", item(texts_of_it));
            }
            Some(_) | None => plan.push(method, "right", item(texts)),
        }
    }
    Scripted::plan(plan)
}

/// A program that returns this answer, whatever it is asked.
fn constant(answer: &Answer) -> Texts {
    let (lua, rhai) = match answer {
        Answer::Value(value) => {
            let json = Value::from(value.to_json()).to_json();
            (format!("return json.decode({json})"), format!("return json::decode({json});"))
        }
        Answer::Error(name) => (
            format!("return Outcome.error{{error_type = \"{name}\", error_message = \"no\"}}"),
            format!("return Outcome::error(#{{error_type: \"{name}\", error_message: \"no\"}});"),
        ),
    };
    Texts::from([("lua".to_owned(), lua), ("rhai".to_owned(), rhai)])
}

#[test]
fn the_corpus_fits_its_schema_and_is_all_there() {
    let schema: serde_json::Value = serde_json::from_str(&read("scenarios/eval.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(checkout("scenarios/eval")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let options = serde_saphyr::options! { strict_booleans: true };
        let text = fs::read_to_string(&path).unwrap();
        let file: serde_json::Value = serde_saphyr::from_str_with_options(&text, options).unwrap();
        let faults: Vec<_> =
            schema.iter_errors(&file).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(faults.is_empty(), "{name}: {faults:#?}");
        names.push(name);
    }
    names.sort();
    assert_eq!(names, eval::CORPUS.map(|(name, _)| name.to_owned()), "every file is part of the command");
    let cases = corpus();
    assert!(cases.len() >= 60, "only {} cases", cases.len());
    let groups: BTreeSet<&str> = cases.iter().map(|case| case.group.as_str()).collect();
    assert_eq!(groups.len(), eval::CORPUS.len());
}

/// A checker that takes everything, or nothing, says nothing.
#[test]
fn every_checker_takes_what_is_right_and_refuses_what_is_wrong() {
    let mut faults = Vec::new();
    for case in corpus() {
        for call in &case.calls {
            for language in Language::ALL {
                for answer in &call.right {
                    if let Err(why) = check(call, answer, language) {
                        faults.push(format!("{} in {language}: refuses the right {answer:?}: {why}", case.id));
                    }
                }
                for answer in &call.wrong {
                    if check(call, answer, language).is_ok() {
                        faults.push(format!("{} in {language}: takes the wrong {answer:?}", case.id));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_case_can_be_solved_in_each_language() {
    let solutions = solutions();
    let mut faults = Vec::new();
    for case in corpus() {
        let Some(programs) = solutions.right.get(&case.id) else {
            faults.push(format!("{}: no program", case.id));
            continue;
        };
        for language in Language::ALL {
            let run = run(&case, model(programs, None), language);
            if let Some(why) = &run.failure {
                faults.push(format!("{} in {language}: {why}", case.id));
            }
            assert!(run.failure.is_some() || run.first_attempt, "{} in {language}", case.id);
            assert_eq!(run.latencies.len(), case.calls.len(), "{}", case.id);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let known: BTreeSet<String> = corpus().into_iter().map(|case| case.id).collect();
    let strangers: Vec<_> =
        solutions.right.keys().chain(solutions.wrong.keys()).filter(|id| !known.contains(*id)).collect();
    assert!(strangers.is_empty(), "programs of no case: {strangers:?}");
}

#[test]
fn wrong_programs_fail_their_cases() {
    let solutions = solutions();
    let mut passed = Vec::new();
    let mut tried = 0;
    for case in corpus() {
        let programs = &solutions.right[&case.id];
        for language in Language::ALL {
            let mut before: BTreeMap<&str, usize> = BTreeMap::new();
            for call in &case.calls {
                let earlier = before.entry(&call.method).or_default();
                // With reuse, nobody asks for the programs of later calls.
                let asked = *earlier == 0 || !case.options.contains_key("reuse");
                for answer in call.wrong.iter().filter(|_| asked) {
                    tried += 1;
                    let texts = constant(answer);
                    let failure = run(&case, model(programs, Some((&call.method, *earlier, &texts))), language).failure;
                    if failure.is_none() {
                        passed.push(format!("{} in {language}: {} with {answer:?}", case.id, call.method));
                    }
                }
                *earlier += 1;
            }
            for (method, texts) in solutions.wrong.get(&case.id).into_iter().flatten() {
                tried += 1;
                if run(&case, model(programs, Some((method, 0, texts))), language).failure.is_none() {
                    passed.push(format!("{} in {language}: the wrong program of {method}", case.id));
                }
            }
        }
    }
    assert!(passed.is_empty(), "passed although wrong:\n{}", passed.join("\n"));
    assert!(tried > 300, "only {tried} wrong programs");
}

/// What the embedded library answers, by case, is written down: what it loses and what it gains are both seen.
#[test]
fn the_library_answers_what_it_is_known_to_answer() {
    let settings = ModelSettings::default();
    let library = resolve(&"library".into(), &settings).unwrap().provider;
    let mut found = String::new();
    for case in corpus() {
        let passes = Language::ALL.map(|language| {
            let runs = evaluation(library.clone(), language).run(std::slice::from_ref(&case), &|_, _| {}).unwrap();
            runs[0][0].failure.is_none()
        });
        let languages: Vec<&str> = Language::ALL
            .iter()
            .zip(passes)
            .filter(|(_, passes)| *passes)
            .map(|(language, _)| language.as_str())
            .collect();
        if !languages.is_empty() {
            found.push_str(&format!("{} {}\n", case.id, languages.join(" ")));
        }
    }
    let path = checkout("tests/eval_library.txt");
    if std::env::var_os("CADENZA_WRITE_EXPECTED").is_some() {
        fs::write(&path, &found).unwrap();
    }
    assert_eq!(
        found,
        fs::read_to_string(&path).unwrap(),
        "CADENZA_WRITE_EXPECTED=1 writes tests/eval_library.txt anew"
    );
}

/// What the prompts of the corpus cost, by section: the figures that a change of their words has to answer for.
#[test]
fn prompts_of_the_corpus_cost_this_much() {
    let solutions = solutions();
    let cases = corpus();
    for (language, system) in [(Language::Lua, 745), (Language::Rhai, 905)] {
        let runs =
            cases.iter().map(|case| vec![run(case, model(&solutions.right[&case.id], None), language)]).collect();
        let report = Report::new("scripted", language, &cases, runs);
        assert!(report.ok());
        let sections: BTreeMap<&str, u64> = report.sections().into_iter().collect();
        println!("{language}: {sections:?}");
        assert_eq!((sections["system"], sections["frame"]), (system, 44), "{language}: {sections:?}");
        assert!(sections["total"] <= system + 110, "{language}: {sections:?}");
    }
}

fn failing(class: ProviderErrorClass) -> Arc<dyn Provider> {
    Arc::new(Scripted::respond(move |_| Err(ProviderError::new(class, "nobody there"))))
}

#[test]
fn a_model_that_cannot_be_reached_is_no_failed_model() {
    let cases = corpus();
    let run =
        |class, cases: &[Case]| evaluation(failing(class), Language::Lua).run(cases, &|_, _| {}).map(|runs| runs.len());
    let unreachable = Err(Stopped::Unreachable("nobody there".to_owned()));
    for class in [ProviderErrorClass::Auth, ProviderErrorClass::Network] {
        assert_eq!(run(class, &cases), unreachable, "{class:?}");
        assert_eq!(run(class, &cases[..1]), unreachable, "{class:?}, and a single case");
    }
    // A model that refuses requests is there.
    assert_eq!(run(ProviderErrorClass::ModelError, &cases[..4]), Ok(4));
}

#[test]
fn a_report_counts_runs_attempts_tokens_and_time() {
    let cases = eval::only(corpus(), &["calculator.add".to_owned(), "text.explain".to_owned()]).unwrap();
    assert_eq!(cases.len(), 2);
    // The first answer for `add` is no program, the one for `explain` is wrong.
    let model = Scripted::respond(|request| {
        let text = match (&*request.method, request.attempt) {
            ("add", 1) => "return return",
            ("add", _) => "return args[1] + args[2]",
            _ => "return 'because'",
        };
        let usage = cadenza_core::provider::Usage { input: 100, output: 10, ..Default::default() };
        Ok(cadenza_core::provider::ModelReply { usage: Some(usage), ..cadenza_core::provider::ModelReply::text(text) })
    });
    let evaluation = Evaluation { repeat: 3, ..evaluation(Arc::new(model), Language::Lua) };
    let heard = std::cell::Cell::new(0);
    let runs = evaluation.run(&cases, &|_, run| heard.set(heard.get() + usize::from(run.is_some()))).unwrap();
    assert_eq!(heard.get(), 6);
    let report = Report::new("scripted", Language::Lua, &cases, runs);
    assert!(!report.ok());
    let total = report.total();
    assert_eq!((total.runs, total.passed, total.first_attempt, total.attempts), (6, 3, 0, 9));
    assert_eq!((total.tokens_in, total.tokens_out), (900, 90));
    assert!(total.median_ms > 0.0 && total.p95_ms >= total.median_ms);
    let groups = report.groups();
    assert_eq!((groups["calculator"].passed, groups["text"].passed, groups.len()), (3, 0, 2));
    let json: serde_json::Value = serde_json::from_str(&report.to_value().to_json()).unwrap();
    assert_eq!(
        (&json["version"], &json["cases"][0]["id"], &json["cases"][0]["passed"]),
        (&1.into(), &"calculator.add".into(), &3.into())
    );
    assert!(json["cases"][1]["failure"].as_str().unwrap().starts_with("explain: expected text with /"));
    let tokens = &json["prompt_tokens"];
    assert_eq!(tokens["system"], 745);
    assert!(tokens["total"].as_u64().unwrap() > 790 && tokens["arguments"].as_u64().unwrap() > 3, "{tokens}");
}

#[test]
fn corpus_files_are_refused_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.yaml");
    let call = |expect: &str| {
        format!(
            "version: 1\ngroup: a\ncases:\n- id: a.b\n  role: r\n  calls:\n  - {{ method: m, expect: {expect}, right: [1], wrong: [2] }}\n"
        )
    };
    for (text, why) in [
        ("version: 2\ngroup: a\ncases: []\n".to_owned(), "mine.yaml:1: version is"),
        (
            "version: 1\ngroup: a\ncases:\n- { id: b.c, role: r, calls: [] }\n".to_owned(),
            "mine.yaml:4: the id `b.c` does not begin",
        ),
        (
            "version: 1\ngroup: a\ncases:\n- { id: a.c, role: r, calls: [] }\n".to_owned(),
            "mine.yaml:4: the case `a.c` has no calls",
        ),
        (
            "version: 1\ngroup: a\ncases:\n- { id: a.c, role: r, options: { max_cals: 1 }, calls: [] }\n".to_owned(),
            "did you mean \"max_calls\"?",
        ),
        (call("{ value: 1, approx: 1 }"), "mine.yaml:7: an expectation is one of: ok, value"),
        (call("{ }"), "an expectation is one of"),
        (call("{ within: 1 }"), "`within` goes with `approx`"),
        (call("{ approx: 1, within: 0 }"), "`within` is a number above 0"),
        (call("{ matches: \"(\" }"), "`matches`: regex parse error"),
        (call("{ assert: { lua: \"true\" } }"), "an assert needs the field `rhai`"),
        (call("{ ok: false }"), "`ok` is true or left out"),
        (call("{ value: 1 }").replace(", wrong: [2]", ""), "needs an answer under `wrong`"),
        (call("{ value: 1 }").replace("right: [1]", "rigth: [1]"), "a call has no field `rigth`"),
    ] {
        fs::write(&path, &text).unwrap();
        let error = eval::cases(std::slice::from_ref(&path)).unwrap_err().to_string();
        assert!(error.contains(why), "{error}\n{text}");
    }
    fs::write(&path, call("{ value: 1 }")).unwrap();
    let twice = eval::cases(&[path.clone(), path]).unwrap_err().to_string();
    assert!(twice.contains("mine.yaml:4: the id `a.b` is there twice"), "{twice}");
    let nothing = eval::only(corpus(), &["nothing".to_owned()]).unwrap_err().to_string();
    assert!(nothing.contains("no case and no group is called \"nothing\"; groups are: calculator, csv, "), "{nothing}");
}
