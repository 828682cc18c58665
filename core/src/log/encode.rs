//! The total encoder of log lines: every value has a form, none calls user code, sizes are capped, secrets masked.

use crate::log::record::CallRecord;
use crate::provider::secret::{self, NAMED_MASK, is_secret_name};
use crate::value::{Value, write_json_string};

/// Bytes of one string before it is cut.
const MAX_STRING: usize = 16 << 10;
/// Nodes of one field before the rest is cut.
const MAX_NODES: usize = 2_000;
/// Nesting before the rest is cut.
const MAX_DEPTH: usize = 32;

const CUT: &str = "[TRUNCATED]";

/// Appends the record's line, without the newline.
pub fn line(record: &CallRecord, out: &mut String) {
    let fields = record.to_map();
    out.push('{');
    for (index, (name, value)) in fields.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_json_string(name, out);
        out.push(':');
        let mut nodes = MAX_NODES;
        // Prompts and code are text that we made ourselves around masked data; only known secrets can hide in them.
        write(value, 0, &mut nodes, out);
    }
    out.push('}');
}

fn write(value: &Value, depth: usize, nodes: &mut usize, out: &mut String) {
    if *nodes == 0 || depth > MAX_DEPTH {
        // Lists and maps keep their type (formats.md section 2: `args` stays an array).
        return match value {
            Value::List(_) => out.push_str("[\"[TRUNCATED]\"]"),
            Value::Map(_) => out.push_str("{\"[TRUNCATED]\":true}"),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {
                write_json_string(CUT, out);
            }
        };
    }
    *nodes -= 1;
    match value {
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => value.write_json(out),
        Value::String(text) => write_text(text, out),
        Value::List(list) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                if *nodes == 0 {
                    write_json_string(CUT, out);
                    break;
                }
                write(item, depth + 1, nodes, out);
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (index, (key, item)) in map.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                if *nodes == 0 {
                    out.push_str("\"[TRUNCATED]\":true");
                    break;
                }
                write_text(key, out);
                out.push(':');
                if is_secret_name(key) && *item != Value::Null {
                    write_json_string(NAMED_MASK, out);
                } else {
                    write(item, depth + 1, nodes, out);
                }
            }
            out.push('}');
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    let text = secret::scrub(text);
    if text.len() <= MAX_STRING {
        return write_json_string(&text, out);
    }
    let cut = (0..=MAX_STRING).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0);
    write_json_string(&format!("{}{CUT}", &text[..cut]), out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Map;

    fn encoded(value: &Value) -> String {
        let mut out = String::new();
        write(value, 0, &mut MAX_NODES.clone(), &mut out);
        assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok(), "{out}");
        out
    }

    #[test]
    fn every_value_has_a_json_form_and_sizes_are_capped() {
        assert_eq!(encoded(&Value::Float(f64::NAN)), "\"NaN\"");
        let long = encoded(&Value::String("é".repeat(MAX_STRING)));
        assert!(long.len() < MAX_STRING + 32 && long.ends_with("[TRUNCATED]\""));
        let wide = encoded(&Value::List(vec![Value::Int(1); 5_000]));
        assert!(wide.ends_with(",\"[TRUNCATED]\"]"));
        let mut deep = Value::Null;
        for _ in 0..100 {
            deep = Value::List(vec![deep]);
        }
        assert!(encoded(&deep).contains("[TRUNCATED]"));
    }

    #[test]
    fn secrets_are_masked_by_name_and_by_value() {
        let map = Map::from([("api_key".to_owned(), "hunter2".into()), ("max_tokens".to_owned(), 5.into())]);
        assert_eq!(encoded(&Value::Map(map.clone())), r#"{"api_key":"***","max_tokens":5}"#);
        assert_eq!(secret::masked(&Value::Map(map)).to_json(), r#"{"api_key":"***","max_tokens":5}"#);
    }
}
