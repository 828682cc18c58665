//! Values as source text: what a user or a model would write to say them.

use cadenza_core::program::Language;
use cadenza_core::value::Value;

/// The value as a program or script of that language writes it.
pub fn literal(value: &Value, language: Language) -> String {
    match (value, language) {
        (Value::Null, Language::Lua) => "null".to_owned(),
        (Value::Null, Language::Rhai) => "()".to_owned(),
        (Value::Bool(_) | Value::Int(_), _) => value.to_json(),
        (Value::Float(number), Language::Lua) if number.is_nan() => "(0/0)".to_owned(),
        (Value::Float(number), Language::Lua) if number.is_infinite() => {
            format!("{}math.huge", if *number < 0.0 { "-" } else { "" })
        }
        (Value::Float(number), _) => format!("{number:?}"),
        (Value::String(text), language) => quoted(text, language),
        (Value::List(items), language) => {
            let items = items.iter().map(|item| literal(item, language)).collect::<Vec<_>>().join(", ");
            match language {
                Language::Lua => format!("array{{{items}}}"),
                Language::Rhai => format!("[{items}]"),
            }
        }
        (Value::Map(map), Language::Lua) => {
            let entries =
                map.iter().map(|(key, item)| format!("[{}] = {}", quoted(key, language), literal(item, language)));
            format!("object{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        (Value::Map(map), Language::Rhai) => {
            let entries =
                map.iter().map(|(key, item)| format!("{}: {}", quoted(key, language), literal(item, language)));
            format!("#{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Text between quotes. Both languages know these escapes.
pub fn quoted(text: &str, language: Language) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match (character, language) {
            ('"', _) => out.push_str("\\\""),
            ('\\', _) => out.push_str("\\\\"),
            ('\n', _) => out.push_str("\\n"),
            ('\r', _) => out.push_str("\\r"),
            ('\t', _) => out.push_str("\\t"),
            (control, _) if control.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(control))),
            (other, _) => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_say_the_value_in_each_language() {
        let value = Value::from_json(r#"{"a b":[1,2.0,null,"x\"\n"],"e":[]}"#).unwrap();
        assert_eq!(
            literal(&value, Language::Lua),
            r#"object{["a b"] = array{1, 2.0, null, "x\"\n"}, ["e"] = array{}}"#
        );
        assert_eq!(literal(&value, Language::Rhai), r#"#{"a b": [1, 2.0, (), "x\"\n"], "e": []}"#);
    }
}
