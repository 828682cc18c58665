//! Accounting: one entry for every request to a model, answered or not (SC-4.01 to 4.07), and what it cost.
//!
//! Vendors count cached input differently; an entry holds one normal form (S12). Costs are whole picodollars, so that
//! sums do not depend on their order. Decides nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::value::{Map, Value};

/// Most bytes of a name that somebody else gives.
const MAX_NAME_BYTES: usize = 256;

/// An amount of money: picodollars, 10^-12 US dollars. Sums stay at the largest amount instead of beginning again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(pub u64);

impl Cost {
    const PER_USD: f64 = 1e12;

    /// An amount of US dollars, rounded to whole picodollars; `None` below 0 and above 18 million.
    pub fn from_usd(usd: f64) -> Option<Self> {
        let picodollars = (usd * Self::PER_USD).round();
        // NaN is in no range; beyond 2^64 there are no whole picodollars.
        (0.0..1.8e19).contains(&picodollars).then_some(Self(picodollars as u64))
    }

    /// The amount in US dollars.
    pub fn usd(self) -> f64 {
        self.0 as f64 / Self::PER_USD
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} USD", self.usd())
    }
}

/// What a model's tokens cost: picodollars for one token, which is US dollars for a million times 10^6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Of a prompt token that no cache knew.
    pub input: u64,
    /// Of a completion token.
    pub output: u64,
    /// Of a prompt token that was read from the cache.
    pub cached: u64,
    /// Of a prompt token that was written to the cache.
    pub cache_write: u64,
}

impl Price {
    /// What this much costs (SC-4.06).
    pub fn of(&self, usage: &Usage) -> Cost {
        let tokens = Tokens::of(usage);
        let plain = tokens.input.saturating_sub(usage.cache_write);
        let parts = [
            (plain, self.input),
            (tokens.input - plain, self.cache_write),
            (tokens.cached, self.cached),
            (tokens.output, self.output),
        ];
        Cost(parts.iter().fold(0, |sum, (tokens, price)| sum.saturating_add(tokens.saturating_mul(*price))))
    }
}

/// Prices by model: `provider:name`, or the name alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices(BTreeMap<String, Price>);

impl Prices {
    /// Reads `{"openai:gpt-5.1": {"input": 1.25, "output": 10, "cached": 0.125}}`: US dollars for a million tokens. Cached
    /// tokens cost as much as others unless something else is said. `Err` says what to write instead.
    pub fn from_value(value: &Value) -> Result<Self, String> {
        let expected = "expected a map of models, each with the US dollars that a million tokens cost, such as \
                        {\"openai:gpt-5.1\": {\"input\": 1.25, \"output\": 10, \"cached\": 0.125}}";
        let models = match value {
            Value::Null => return Ok(Self::default()),
            other => other.as_map().ok_or(expected)?,
        };
        let mut prices = BTreeMap::new();
        for (model, fields) in models {
            let fields = fields.as_map().ok_or(expected)?;
            if let Some(unknown) = fields.keys().find(|name| !PRICE_FIELDS.contains(&name.as_str())) {
                return Err(format!("{model}: no price {unknown:?}; there are {}", PRICE_FIELDS.join(", ")));
            }
            let price = |name: &str| match fields.get(name) {
                None | Some(Value::Null) => Ok(None),
                Some(value) => {
                    let per_token = value.as_float().and_then(|usd| Cost::from_usd(usd / 1e6));
                    per_token.map(|cost| Some(cost.0)).ok_or_else(|| format!("{model}: {name} must be a number from 0"))
                }
            };
            let (Some(input), Some(output)) = (price("input")?, price("output")?) else {
                return Err(format!("{model}: `input` and `output` are needed"));
            };
            let (cached, cache_write) = (price("cached")?.unwrap_or(input), price("cache_write")?.unwrap_or(input));
            prices.insert(model.clone(), Price { input, output, cached, cache_write });
        }
        Ok(Self(prices))
    }

    /// What that much costs with a model; `None` without a price. The price is found by the model's full name, by its
    /// name alone, or by the name of the model that really answered.
    pub fn cost(&self, full: &str, actual: Option<&str>, usage: &Usage) -> Option<Cost> {
        let names = [Some(full), Some(split(full).1), actual];
        names.into_iter().flatten().find_map(|name| self.0.get(name)).map(|price| price.of(usage))
    }
}

const PRICE_FIELDS: [&str; 4] = ["input", "output", "cached", "cache_write"];

/// Model tokens of one reply, as a vendor counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// Of those, read from the provider's cache.
    pub cached: u64,
    /// Completion tokens, reasoning included.
    pub output: u64,
    /// Of the prompt tokens, written to the provider's cache.
    pub cache_write: u64,
    /// Of the completion tokens, reasoning.
    pub reasoning: u64,
}

/// Model tokens in one form for all vendors (S12): the sum is the true size of the window's use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Prompt tokens that were not read from a cache.
    pub input: u64,
    /// Completion tokens, reasoning included.
    pub output: u64,
    /// Prompt tokens that were read from a cache.
    pub cached: u64,
}

impl Tokens {
    /// The normal form of what a provider reported.
    pub fn of(usage: &Usage) -> Self {
        let cached = usage.cached.min(usage.input);
        Self { input: usage.input - cached, output: usage.output, cached }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output).saturating_add(self.cached)
    }

    fn add(&mut self, other: &Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cached = self.cached.saturating_add(other.cached);
    }
}

/// One request to a model, answered or not (SC-4.01).
#[derive(Clone, Debug, PartialEq)]
pub struct AccountingEntry {
    /// When it ended (S38); it began [`Self::latency`] before.
    pub timestamp: SystemTime,
    /// The target that was asked, such as `openai:gpt-5.1`.
    pub target: String,
    /// From sending to the whole reply, or to the failure (SC-4.04).
    pub latency: Duration,
    /// What it used; nothing when the reply did not say.
    pub usage: Usage,
    /// What it cost, when the model has a price.
    pub cost: Option<Cost>,
    /// Why the model stopped, when it says.
    pub stop_reason: Option<String>,
    /// The provider and the model that really answered, when the wire says and it is another (SC-4.07).
    pub actual_provider: Option<String>,
    /// See [`Self::actual_provider`].
    pub actual_model: Option<String>,
    /// Parameters that were left out because the model refuses them (S18).
    pub omitted_params: Vec<&'static str>,
    /// Class and words of the failure; `None` when a reply came (SC-4.02).
    pub error: Option<(&'static str, String)>,
}

impl AccountingEntry {
    /// The entry of a request that ended then and took so long; what came of it is still to be said.
    pub fn new(target: &str, timestamp: SystemTime, latency: Duration) -> Self {
        Self {
            timestamp,
            target: target.to_owned(),
            latency,
            usage: Usage::default(),
            cost: None,
            stop_reason: None,
            actual_provider: None,
            actual_model: None,
            omitted_params: Vec::new(),
            error: None,
        }
    }

    /// Notes why the reply ended, in the model's own word.
    pub fn stopped(&mut self, reason: Option<&str>) {
        self.stop_reason = reason.map(named);
    }

    /// Notes the provider and the model that answered, where they are not those that were asked.
    pub fn routed(&mut self, provider: Option<&str>, model: Option<&str>) {
        let (asked_provider, asked_model) = split(&self.target);
        let actual_provider = provider.filter(|actual| *actual != asked_provider).map(named);
        let actual_model = model.filter(|actual| *actual != asked_model && *actual != self.target).map(named);
        (self.actual_provider, self.actual_model) = (actual_provider, actual_model);
    }

    /// There is no usable reply (SC-4.02, SC-3.22). What one that came used stays counted. `message` holds no secret.
    pub fn refuse(&mut self, class: &'static str, message: String) {
        self.error = Some((class, message));
    }

    /// Who was asked: provider and model. A host's own provider has one name for both.
    pub fn provider_and_model(&self) -> (&str, &str) {
        split(&self.target)
    }

    /// The entry as data. Fields that nothing is known of are left out (SC-4.06).
    pub fn to_map(&self) -> Map {
        let whole = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let tokens = Tokens::of(&self.usage);
        let mut counts = Map::from([
            ("input_tokens".to_owned(), whole(tokens.input)),
            ("output_tokens".to_owned(), whole(tokens.output)),
            ("cached_tokens".to_owned(), whole(tokens.cached)),
            ("total_tokens".to_owned(), whole(tokens.total())),
        ]);
        let parts = [("cache_write_tokens", self.usage.cache_write), ("reasoning_tokens", self.usage.reasoning)];
        counts.extend(parts.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), whole(n))));
        let (provider, model) = self.provider_and_model();
        let mut map = Map::from([
            ("type".to_owned(), "llm".into()),
            ("timestamp_ms".to_owned(), whole(unix_ms(self.timestamp))),
            ("provider".to_owned(), provider.into()),
            ("model".to_owned(), model.into()),
            ("status".to_owned(), if self.error.is_none() { "ok" } else { "failed" }.into()),
            ("latency_ms".to_owned(), Value::Float((self.latency.as_secs_f64() * 1e6).round() / 1e3)),
            ("tokens".to_owned(), Value::Map(counts)),
        ]);
        let texts = [
            ("stop_reason", &self.stop_reason),
            ("actual_provider", &self.actual_provider),
            ("actual_model", &self.actual_model),
        ];
        map.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text.as_deref()?.into()))));
        if let Some(cost) = self.cost {
            map.insert("cost_usd".to_owned(), Value::Float(cost.usd()));
        }
        if !self.omitted_params.is_empty() {
            let omitted = self.omitted_params.iter().map(|name| (*name).into()).collect();
            map.insert("omitted_params".to_owned(), Value::List(omitted));
        }
        if let Some((class, message)) = &self.error {
            map.insert("error_class".to_owned(), (*class).into());
            map.insert("error".to_owned(), message.as_str().into());
        }
        map
    }
}

/// What all requests of a runtime used, by target. Does not grow with the number of requests.
#[derive(Debug, Default)]
pub struct Totals(HashMap<String, Total>);

/// What one target was asked and used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    /// Requests, answered or not.
    pub requests: u64,
    /// Of those, without a usable reply.
    pub failed: u64,
    /// What they used.
    pub tokens: Tokens,
    /// What they cost, as far as there are prices.
    pub cost: Cost,
    /// Of the requests, those without a price.
    pub unpriced: u64,
    /// Their latencies together.
    pub latency: Duration,
}

impl Total {
    /// The total of a target as data, with the names of [`AccountingEntry::to_map`].
    pub fn to_map(&self, target: &str) -> Map {
        let whole = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let (provider, model) = split(target);
        Map::from([
            ("target".to_owned(), target.into()),
            ("provider".to_owned(), provider.into()),
            ("model".to_owned(), model.into()),
            ("requests".to_owned(), whole(self.requests)),
            ("failed".to_owned(), whole(self.failed)),
            ("input_tokens".to_owned(), whole(self.tokens.input)),
            ("output_tokens".to_owned(), whole(self.tokens.output)),
            ("cached_tokens".to_owned(), whole(self.tokens.cached)),
            ("total_tokens".to_owned(), whole(self.tokens.total())),
            ("cost_usd".to_owned(), Value::Float(self.cost.usd())),
            ("unpriced".to_owned(), whole(self.unpriced)),
            ("latency_ms".to_owned(), Value::Float((self.latency.as_secs_f64() * 1e6).round() / 1e3)),
        ])
    }
}

impl Totals {
    /// Counts an entry.
    pub fn add(&mut self, entry: &AccountingEntry) {
        let total = match self.0.get_mut(&entry.target) {
            Some(total) => total,
            None => self.0.entry(entry.target.clone()).or_default(),
        };
        total.requests += 1;
        total.failed += u64::from(entry.error.is_some());
        total.tokens.add(&Tokens::of(&entry.usage));
        total.cost = total.cost.plus(entry.cost.unwrap_or_default());
        // A request that failed without tokens costs nothing, with a price or without one.
        total.unpriced += u64::from(entry.cost.is_none() && entry.usage != Usage::default());
        total.latency = total.latency.saturating_add(entry.latency);
    }

    /// The totals by target, sorted by name.
    pub fn by_target(&self) -> Vec<(&str, Total)> {
        let mut totals: Vec<_> = self.0.iter().map(|(target, total)| (target.as_str(), *total)).collect();
        totals.sort_unstable_by_key(|(target, _)| *target);
        totals
    }
}

/// A server's or a host's word for something, kept as far as a name goes.
fn named(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_NAME_BYTES)].to_owned()
}

/// `provider:name` in its two parts; a name without a provider is both.
fn split(target: &str) -> (&str, &str) {
    target.split_once(':').unwrap_or((target, target))
}

/// Milliseconds since 1970; 0 before.
fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(json: &str) -> Result<Prices, String> {
        Prices::from_value(&Value::from_json(json).unwrap())
    }

    #[test]
    fn sc_4_06_a_price_table_gives_costs() {
        let prices =
            prices(r#"{"openai:m": {"input": 1.25, "output": 10, "cached": 0.125}, "n": {"input": 2, "output": 4}}"#);
        let prices = prices.unwrap();
        let usage = Usage { input: 1_000, cached: 400, output: 50, ..Usage::default() };
        let cost = |target, actual| prices.cost(target, actual, &usage).map(Cost::usd);
        assert_eq!(cost("openai:m", None), Some(0.0013));
        assert_eq!(cost("gateway:n", None), Some(0.0022));
        assert_eq!(cost("gateway:auto", Some("n")), Some(0.0022));
        assert_eq!(cost("gateway:auto", None), None);
    }

    #[test]
    fn a_wrong_price_table_says_what_to_write() {
        for (json, expected) in [
            ("[]", "expected a map of models"),
            (r#"{"m": 5}"#, "expected a map of models"),
            (r#"{"m": {"input": 1}}"#, "m: `input` and `output` are needed"),
            (r#"{"m": {"input": -1, "output": 1}}"#, "m: input must be a number from 0"),
            (r#"{"m": {"in": 1}}"#, "m: no price \"in\"; there are input, output, cached, cache_write"),
        ] {
            let message = prices(json).unwrap_err();
            assert!(message.contains(expected), "{json}: {message}");
        }
    }

    #[test]
    fn sc_4_03_tokens_have_one_normal_form() {
        let usage = Usage { input: 100, cached: 30, output: 7, cache_write: 20, reasoning: 3 };
        let tokens = Tokens::of(&usage);
        assert_eq!(tokens, Tokens { input: 70, output: 7, cached: 30 });
        assert_eq!(tokens.total(), 107);
    }
}
