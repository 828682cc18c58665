//! A calculator that nobody programmed: its methods are written when they are first called.
//!
//! Runs on the embedded library, without key and network. Set `CADENZA_MODEL` (for example to `openai:gpt-5.1`) and a
//! model writes the programs instead; nothing here changes. Run it with:
//! `cargo run -p cadenza-core --example calculator`

use std::error::Error;

use cadenza_core::agent::Agent;
use cadenza_core::runtime::options::Options;
use cadenza_core::value::{Map, Value};

fn main() -> Result<(), Box<dyn Error>> {
    let calc = Agent::for_role("calculator", Options::default())?;

    calc.set("memory", Value::Int(5))?; // a setter: writes what the agent remembers, asks nobody
    println!("5 + 3 = {}", calc.call("add", vec![3.into()], Map::new())?.value());
    println!("the memory is now {}", calc.runtime_context().get("memory").unwrap_or_default());

    let expression = "2 * (3 + 4) ^ 2";
    println!("{expression} = {}", calc.call("evaluate", vec![expression.into()], Map::new())?.value());
    println!("15 % of 80 = {}", calc.call("percent", vec![15.into(), 80.into()], Map::new())?.value());
    let named = Map::from([("price".to_owned(), 50.into())]);
    println!("price with tax: {}", calc.call("evaluate", vec!["price * 1.2".into()], named)?.value());

    // Every call returns an Outcome; a failure is one too, with a type that a caller can act on.
    let outcome = calc.call("divide", vec![1.into(), 0.into()], Map::new())?;
    if let Some(error) = outcome.error() {
        println!("1 / 0: {} - {}", error.error_type, error.message);
    }

    // The second call of a kind plays the kept program: no model, microseconds.
    for (a, b) in [(2, 3), (20, 30)] {
        let outcome = calc.call("add", vec![a.into(), b.into()], Map::new())?;
        let source = outcome.metadata.as_ref().map_or("unknown", |metadata| metadata.source.as_str());
        println!("{a} + {b} = {} ({source})", outcome.value());
    }
    Ok(())
}
