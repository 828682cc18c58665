//! Classifies failed replies of model servers, in the order and by the table of model-wire-formats.md section 8:
//! structured codes, then the HTTP status, then message patterns when those say nothing. (Transport failures, first in
//! that order, never get here: see `http`.)
//!
//! Pure: time is an argument, and so is what must stay hidden. It knows all vendors at once, because compatible servers borrow each other's codes.

use std::time::{Duration, SystemTime};

use serde_json::Value as Json;

use super::http::{Hidden, PROXY_REFUSES};
use super::{ProviderError, ProviderErrorClass};
use crate::printable::printable;

/// Longest wait that is taken from a server's word.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Most bytes of the server's own words in a message.
const MAX_QUOTED_BYTES: usize = 1 << 10;

/// Codes of a server that failed, whatever words stand beside them.
const BROKEN: [&str; 5] = ["server_error", "api_error", "internal", "internal_error", "internal_server_error"];

/// A reply that is not a completion.
pub(crate) struct Refusal<'a> {
    /// HTTP status; also 200, for servers that put errors there.
    pub status: u16,
    /// A header by lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<&'a str>,
    /// All header names, lower-case.
    pub header_names: &'a [&'a str],
    /// The body, as text.
    pub body: &'a str,
    /// What must not be told of it.
    pub hidden: &'a Hidden,
    /// Now, for waits that are given as a point in time.
    pub now: SystemTime,
}

/// The failure that a refusal stands for. `model` names the provider in the message.
pub(crate) fn classify(model: &str, refusal: &Refusal<'_>) -> ProviderError {
    let evidence = Evidence::read(refusal);
    let class = evidence.by_code().or_else(|| evidence.by_status()).unwrap_or_else(|| evidence.by_message());
    let mut error = ProviderError::new(class, evidence.message(model, class));
    error.retry_after = retry_after(refusal, &evidence, class);
    error
}

/// What a refusal says, taken apart.
struct Evidence {
    /// The HTTP status, or the one that the body names when HTTP says success.
    status: u16,
    /// Codes, types and reasons of the body, lower-case.
    codes: Vec<String>,
    /// The server's words.
    message: String,
    /// `message`, lower-case.
    lower: String,
    /// Whether the body names reasons of a moderation.
    flagged: bool,
    /// A delay in the body.
    body_delay: Option<Duration>,
    /// Whether a header asks to wait.
    retry_header: bool,
}

impl Evidence {
    fn read(refusal: &Refusal<'_>) -> Self {
        // Before anything is cut: half a key would not be found.
        let json: Option<Json> =
            serde_json::from_str(refusal.body).ok().map(|json: Json| refusal.hidden.scrub_json(&json));
        // Gemini wraps errors in a one-element list at times.
        let root = match &json {
            Some(Json::Array(list)) if list.len() == 1 => list.first(),
            other => other.as_ref(),
        };
        let error = root.and_then(|root| root.get("error")).or(root);
        let mut evidence = Self {
            status: refusal.status,
            codes: Vec::new(),
            message: String::new(),
            lower: String::new(),
            flagged: false,
            body_delay: None,
            retry_header: (refusal.header)("retry-after").or((refusal.header)("retry-after-ms")).is_some(),
        };
        if let Some(error) = error {
            evidence.take(error, refusal.hidden);
        }
        if let Some(Json::String(code)) = root.and_then(|root| root.get("code")) {
            evidence.codes.push(code.to_lowercase());
        }
        if evidence.message.is_empty() {
            evidence.message = match root {
                Some(root) => cut(&refusal.hidden.scrub_failure(&root.to_string())).to_owned(),
                None => readable(&refusal.hidden.scrub_raw(refusal.body)),
            };
        }
        evidence.lower = evidence.message.to_lowercase();
        evidence
    }

    /// Takes an error object (or text) of the body apart.
    fn take(&mut self, error: &Json, hidden: &Hidden) {
        if let Json::String(text) = error {
            self.message = cut(text).to_owned();
            return;
        }
        for key in ["code", "type", "status"] {
            match error.get(key) {
                Some(Json::String(code)) => self.codes.push(code.to_lowercase()),
                Some(Json::Number(number)) if self.status < 400 => {
                    let status = number.as_u64().and_then(|number| u16::try_from(number).ok());
                    self.status = status.filter(|status| (400..600).contains(status)).unwrap_or(self.status);
                }
                _other_json => {}
            }
        }
        let words = ["message", "detail", "msg", "error"].into_iter().find_map(|key| error.get(key));
        match words {
            Some(Json::String(text)) => self.message = cut(text).to_owned(),
            Some(other) => self.message = cut(&other.to_string()).to_owned(),
            None => {}
        }
        // OpenRouter's, beside words that only say that the server behind it refused: what that one said, and of what it
        // was accused.
        let raw = error.pointer("/metadata/raw").filter(|raw| !raw.is_null());
        let raw = raw.map(|raw| raw.as_str().map_or_else(|| raw.to_string(), str::to_owned));
        // A body of its own, with escapes of its own.
        if let Some(raw) = raw.map(|raw| readable(&hidden.scrub_raw(&raw))).filter(|raw| !raw.is_empty()) {
            self.message = cut(&format!("{}: {raw}", self.message)).to_owned();
        }
        self.flagged = error.pointer("/metadata/reasons").is_some_and(Json::is_array);
        match error.get("details") {
            Some(Json::Array(details)) => details.iter().for_each(|detail| self.take_detail(detail)),
            Some(detail) => self.take_detail(detail),
            None => {}
        }
    }

    fn take_detail(&mut self, detail: &Json) {
        for key in ["reason", "error_code"] {
            if let Some(code) = detail.get(key).and_then(Json::as_str) {
                self.codes.push(code.to_lowercase());
            }
        }
        if let Some(delay) = detail.get("retryDelay").and_then(Json::as_str) {
            self.body_delay = duration_text(delay);
        }
    }

    fn has(&self, codes: &[&str]) -> bool {
        self.codes.iter().any(|code| codes.contains(&code.as_str()))
    }

    /// Step 2: codes that mean one thing. Codes that only repeat the status (`invalid_request_error`) say nothing.
    fn by_code(&self) -> Option<ProviderErrorClass> {
        let quota = [
            "billing_error",
            "insufficient_quota",
            "credit_balance_exhausted",
            "organization_spend_limit_exceeded",
            "project_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
            "enforced_spend_limit_reached",
            "contract_spend_limit_reached",
        ];
        let auth = [
            "authentication_error",
            "permission_error",
            "invalid_api_key",
            "api_key_invalid",
            "permission_denied",
            "unauthenticated",
        ];
        if self.has(&quota) || (self.status == 402 && self.has(&["resource_exhausted"])) {
            Some(ProviderErrorClass::Quota)
        } else if self.has(&auth) {
            Some(self.unless_region_or_safety(ProviderErrorClass::Auth))
        } else if self.has(&["context_length_exceeded", "exceed_context_size_error", "request_too_large"]) {
            Some(ProviderErrorClass::ContextOverflow)
        } else if self.has(&["overloaded_error", "server_is_overloaded", "unavailable", "unavailable_error"])
            || (self.status == 503 && self.has(&["slow_down"]))
        {
            Some(self.overloaded())
        } else if self.has(&[
            "rate_limit_exceeded",
            "slow_down",
            "rate_limit_error",
            "resource_exhausted",
            "ramp_limit_exceeded",
        ]) {
            Some(ProviderErrorClass::RateLimit)
        } else if self.has(&["timeout_error", "deadline_exceeded"]) {
            Some(ProviderErrorClass::Timeout)
        } else if self.has(&["model_not_found", "unsupported_value"]) {
            Some(ProviderErrorClass::ModelError)
        } else if self.says_nothing_else() && self.has(&BROKEN) && !self.speaks_of_overflow() {
            Some(ProviderErrorClass::Network)
        } else {
            None
        }
    }

    /// Step 3. The words decide only where the table names them beside a status.
    fn by_status(&self) -> Option<ProviderErrorClass> {
        match self.status {
            401 => Some(ProviderErrorClass::Auth),
            // The proxy's word, not the target's: another one may be reached without it.
            407 => Some(ProviderErrorClass::Network),
            403 => Some(self.unless_region_or_safety(ProviderErrorClass::Auth)),
            402 => Some(ProviderErrorClass::Quota),
            429 => Some(ProviderErrorClass::RateLimit),
            529 => Some(self.overloaded()),
            413 => Some(ProviderErrorClass::ContextOverflow),
            // 422 is Text Generation Inference's, beyond the table.
            400 | 422 | 500 if self.speaks_of_overflow() => Some(ProviderErrorClass::ContextOverflow),
            // Anthropic says so of an empty account, with a code that says nothing.
            400 if self.speaks_of_an_empty_account() => Some(ProviderErrorClass::Quota),
            408 | 504 => Some(ProviderErrorClass::Timeout),
            409 | 500..=599 => Some(ProviderErrorClass::Network),
            400..=499 => Some(ProviderErrorClass::ModelError),
            _below_400_or_unknown => None,
        }
    }

    /// Step 4: a success status with an error inside, and no code that is known.
    fn by_message(&self) -> ProviderErrorClass {
        let speaks = |words: &[&str]| words.iter().any(|word| self.lower.contains(word));
        // Codes that only repeat a status say something where there is none.
        let wrong = ["invalid_request_error", "invalid_argument", "not_found_error", "bad_request", "badrequesterror"];
        if self.speaks_of_overflow() {
            ProviderErrorClass::ContextOverflow
        } else if self.speaks_of_an_empty_account() || speaks(&["credit balance", "billing"]) {
            ProviderErrorClass::Quota
        } else if speaks(&["invalid api key", "incorrect api key", "unauthorized", "authentication"]) {
            ProviderErrorClass::Auth
        } else if speaks(&["rate limit", "too many requests"]) {
            ProviderErrorClass::RateLimit
        } else if speaks(&["overloaded"]) {
            self.overloaded()
        } else if speaks(&["timed out", "timeout"]) {
            ProviderErrorClass::Timeout
        } else if speaks(&["unexpectedly stopped", "error was encountered while running"]) {
            ProviderErrorClass::Network
        } else if self.has(&wrong)
            || self.codes.iter().any(|code| code.starts_with("invalid_"))
            || speaks(&["model not found", "does not exist", "unsupported"])
        {
            ProviderErrorClass::ModelError
        } else {
            ProviderErrorClass::InvalidResponse
        }
    }

    /// Whether the status is no more than a success, or than that the server failed.
    fn says_nothing_else(&self) -> bool {
        self.status < 400 || self.status == 500
    }

    /// An overloaded server that says when to come back is a rate limit; otherwise the next target is better.
    fn overloaded(&self) -> ProviderErrorClass {
        if self.retry_header { ProviderErrorClass::RateLimit } else { ProviderErrorClass::Network }
    }

    /// A 403 about the caller's country or about safety is not about the key: another target may answer.
    fn unless_region_or_safety(&self, class: ProviderErrorClass) -> ProviderErrorClass {
        let about = |word: &str| self.lower.contains(word) || self.codes.iter().any(|code| code.contains(word));
        let words = ["country", "region", "safety", "moderation", "input was flagged"];
        let excepted = self.status == 403 && (self.flagged || words.into_iter().any(about));
        if excepted { ProviderErrorClass::ModelError } else { class }
    }

    fn speaks_of_overflow(&self) -> bool {
        [
            "prompt is too long",
            "maximum context length",
            "context_length_exceeded",
            "exceed_context_size_error",
            // OpenAI, Anthropic, Gemini, LM Studio; older llama.cpp; Text Generation Inference, of gateways too.
            "exceeds the context window",
            "exceed context limit",
            "exceeds the maximum number of tokens",
            "greater than the context length",
            "with a larger context length",
            "exceeds the available context size",
            "`inputs` tokens + `max_new_tokens` must be <=",
        ]
        .iter()
        .any(|pattern| self.lower.contains(pattern))
    }

    /// Whole phrases, because a refused request may be quoted beside them: the class ends a call.
    fn speaks_of_an_empty_account(&self) -> bool {
        ["credit balance is too low", "api usage limits", "insufficient quota", "exceeded your current quota"]
            .iter()
            .any(|pattern| self.lower.contains(pattern))
    }

    fn message(&self, model: &str, class: ProviderErrorClass) -> String {
        let what = match class {
            ProviderErrorClass::Network if self.status == 407 => PROXY_REFUSES,
            ProviderErrorClass::Auth => "authentication failed; check the API key and what it may use",
            ProviderErrorClass::Quota => "the account's quota or credit is used up; add credit or use another key",
            ProviderErrorClass::RateLimit => "too many requests; wait, or configure more targets",
            ProviderErrorClass::ContextOverflow => {
                "the request is larger than the model's context window; use a larger model or keep less in the context"
            }
            ProviderErrorClass::Timeout => "the server gave up waiting for the model",
            ProviderErrorClass::Network => "the server failed",
            ProviderErrorClass::ModelError if self.status == 404 => {
                "the server does not know it; check the model's name, and the path in `base_url`"
            }
            ProviderErrorClass::ModelError => "the server refuses the request; check the model's name and the options",
            ProviderErrorClass::InvalidResponse => "the server answered with something that is not a completion",
            ProviderErrorClass::Failed => "the provider failed",
            ProviderErrorClass::Cancelled => "the request was cancelled",
        };
        let mut text = format!("{model}: {what} (HTTP {}", self.status);
        if let Some(code) = self.codes.first() {
            text.push_str(", ");
            text.push_str(&code[..code.floor_char_boundary(64)]);
        }
        text.push(')');
        if !self.message.is_empty() {
            text.push_str(": ");
            text.push_str(&self.message);
        }
        // The server's words end on terminals.
        printable(&text).into_owned()
    }
}

/// How long the server asks to wait: `retry-after-ms`, `retry-after`, a delay in the body, rate limit resets.
///
/// Zero when the server says that retrying here is of no use (`x-should-retry: false`): go on to the next target.
fn retry_after(refusal: &Refusal<'_>, evidence: &Evidence, class: ProviderErrorClass) -> Option<Duration> {
    if class.is_fatal() {
        return None;
    }
    let header = refusal.header;
    if header("x-should-retry").is_some_and(|value| value.trim().eq_ignore_ascii_case("false")) {
        return Some(Duration::ZERO);
    }
    header("retry-after-ms")
        .and_then(|text| seconds(text.trim().parse::<f64>().ok()? / 1_000.0))
        .or_else(|| header("retry-after").and_then(|text| retry_after_header(text.trim(), refusal.now)))
        .or(evidence.body_delay)
        .or_else(|| (class == ProviderErrorClass::RateLimit).then(|| resets(refusal)).flatten())
        .map(|wait| wait.min(MAX_RETRY_AFTER))
}

fn retry_after_header(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(number) = text.parse::<f64>() {
        return seconds(number);
    }
    if let Ok(date) = httpdate::parse_http_date(text) {
        return Some(date.duration_since(now).unwrap_or_default());
    }
    point_in_time(text, now)
}

/// The longest of the limits that are used up; when none says so, the longest of all.
fn resets(refusal: &Refusal<'_>) -> Option<Duration> {
    let mut used_up: Option<Duration> = None;
    let mut any: Option<Duration> = None;
    for name in refusal.header_names {
        let is_reset = name.starts_with("x-ratelimit-reset")
            || (name.starts_with("anthropic-ratelimit-") && name.ends_with("-reset"));
        let Some(text) = (refusal.header)(name).filter(|_| is_reset) else { continue };
        let Some(wait) = duration_text(text).or_else(|| point_in_time(text, refusal.now)) else { continue };
        any = any.max(Some(wait));
        let remaining = if name.starts_with("x-") {
            name.replacen("reset", "remaining", 1)
        } else {
            format!("{}-remaining", name.trim_end_matches("-reset"))
        };
        if (refusal.header)(&remaining).is_some_and(|left| left.trim() == "0") {
            used_up = used_up.max(Some(wait));
        }
    }
    used_up.or(any)
}

/// `12s`, `1.5s`, `250ms`, `6m0s`, `1h2m`, or bare seconds.
fn duration_text(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(number) = text.parse::<f64>() {
        // Seconds since 1970 are a point in time, not a wait.
        return seconds(number).filter(|wait| wait.as_secs() < 1_000_000_000);
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|character: char| character.is_ascii_digit()).unwrap_or(rest.len());
        total += number
            * match &rest[..unit] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                "d" => 86_400.0,
                _not_a_unit => return None,
            };
        rest = &rest[unit..];
    }
    seconds(total)
}

/// RFC 3339, or seconds or milliseconds since 1970.
fn point_in_time(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let since_epoch = match text.parse::<f64>() {
        Ok(number) if number >= 1e12 => seconds(number / 1_000.0)?,
        Ok(number) if number >= 1e9 => seconds(number)?,
        Ok(_) => return None,
        Err(_) => {
            let stamp: jiff::Timestamp = text.parse().ok()?;
            Duration::from_millis(u64::try_from(stamp.as_millisecond()).ok()?)
        }
    };
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Some(since_epoch.saturating_sub(now))
}

/// A wait from a server's number: never negative, never so large that adding it to a clock fails.
fn seconds(number: f64) -> Option<Duration> {
    number.is_finite().then(|| Duration::from_secs_f64(number.clamp(0.0, 1e11)))
}

/// The text of an HTML page or of a plain body, in one line.
fn readable(body: &str) -> String {
    let mut out = String::new();
    let mut in_tag = false;
    for character in body.chars() {
        match character {
            '<' => in_tag = true,
            '>' if in_tag => {
                in_tag = false;
                out.push(' ');
            }
            _text if in_tag => {}
            text if text.is_whitespace() || text.is_control() => out.push(' '),
            text => out.push(text),
        }
        if out.len() > 4 * MAX_QUOTED_BYTES {
            break;
        }
    }
    cut(&out.split_whitespace().collect::<Vec<_>>().join(" ")).to_owned()
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_QUOTED_BYTES)]
}
