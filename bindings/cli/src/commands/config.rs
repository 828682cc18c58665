//! `cadenza config`.

use cadenza_core::printable::printable_json;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::config::Origin;
use cadenza_core::runtime::options::{NAMES, StoreOption};
use cadenza_core::store::default_path;
use cadenza_core::value::{Map, Value};

use super::{say, say_json};
use crate::Context;
use crate::failure::{Exit, Failure};
use crate::options::AgentOptions;

/// Options that hold a secret: shown as a mask.
const SECRET: [&str; 3] = ["api_key", "headers", "proxy"];
/// What stands for a secret.
const MASK: &str = "***";

/// Shows the resolved configuration.
#[derive(Debug, clap::Args)]
pub struct ConfigCommand {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    agents: AgentOptions,
}

/// One line of the table.
struct Row {
    name: &'static str,
    value: Value,
    origin: String,
    /// False for what was said of a provider that a nearer place then replaced.
    used: bool,
}

/// The value of that option; what is said of single targets and providers holds the same secrets, further down.
fn without_secrets(name: &str, value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        _ if SECRET.contains(&name) => MASK.into(),
        Value::List(list) => Value::List(list.iter().map(|item| without_secrets("", item)).collect()),
        Value::Map(map) => {
            Value::Map(map.iter().map(|(name, item)| (name.clone(), without_secrets(name, item))).collect())
        }
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => value.clone(),
    }
}

impl ConfigCommand {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let config = self.agents.config()?;
        let resolved = config.resolve_model()?;
        let mut options = config.options()?;
        let named = options.store.is_some();
        // Looking at the configuration does not make a store.
        options.store = Some(StoreOption::Memory);
        let runtime = Runtime::builder().options(options).build().map_err(Failure::usage)?;
        let mut in_force = runtime.settings();
        if let Some(path) = default_path().filter(|_| !named) {
            in_force.insert("store".to_owned(), path.display().to_string().into());
        }
        let rows: Vec<Row> = NAMES
            .into_iter()
            .filter_map(|name| {
                let given = config.settings().get(name).map(|setting| &setting.value);
                let value = match given.or_else(|| in_force.get(name)) {
                    Some(value) => cadenza_core::log::masked(&without_secrets(name, value)),
                    // Not set and without a default: nothing to say.
                    None => return None,
                };
                let (value, origin) = match (name, config.origin(name)) {
                    ("model", Origin::Default) => (resolved.provider.model().into(), resolved.origin.to_string()),
                    (_, origin) => (value, origin.to_string()),
                };
                Some(Row { name, value, origin, used: given.is_none() || config.holds(name) })
            })
            .collect();
        if self.json {
            let options = rows.into_iter().map(|row| {
                let entry = Map::from([
                    ("value".to_owned(), row.value),
                    ("origin".to_owned(), row.origin.into()),
                    ("used".to_owned(), row.used.into()),
                ]);
                (row.name.to_owned(), Value::Map(entry))
            });
            let file = config.file().map(|path| path.display().to_string());
            let notes = resolved.notes.into_iter().map(Value::from).collect();
            let whole = Map::from([
                ("file".to_owned(), file.into()),
                ("options".to_owned(), Value::Map(options.collect())),
                ("notes".to_owned(), Value::List(notes)),
            ]);
            say_json(&Value::Map(whole));
            return Ok(Exit::Ok);
        }
        let file = config.file().map_or("none".to_owned(), |path| path.display().to_string());
        say(&context.style.faint(&format!("configuration file: {file}")));
        let width = |text: fn(&Row) -> usize| rows.iter().map(text).max().unwrap_or(0).min(40);
        let (names, values) = (width(|row| row.name.len()), width(|row| row.value.to_json().chars().count()));
        for row in &rows {
            let name = context.style.name(&format!("{:names$}", row.name));
            let value = format!("{:values$}", printable_json(&row.value.to_json()));
            let unused = if row.used { "" } else { "; not used, because the model or its address is another" };
            say(&format!("{name}  {value}  {}", context.style.faint(&format!("{}{unused}", row.origin))));
        }
        for note in &resolved.notes {
            say(&context.style.faint(&format!("note: {note}")));
        }
        Ok(Exit::Ok)
    }
}
