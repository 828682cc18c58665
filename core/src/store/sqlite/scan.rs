//! Walks over JSON text without building values: what is only to be hashed need not be understood.
//!
//! It reads what this store writes: no white space, keys without escapes. It takes any other text for a fault, and then
//! somebody looks more closely. It never panics, and never reads beyond the text.

/// One field of an object: its key and its value's own text.
pub(super) type Field<'a> = (&'a str, &'a str);

/// The items of a list, each as its own text; `None` when the text is no list.
pub(super) fn items<'a>(text: &'a str, mut item: impl FnMut(&'a str) -> Option<()>) -> Option<()> {
    let end = each(text, b'[', b']', |at| {
        let end = skip(text.as_bytes(), at)?;
        item(text.get(at..end)?)?;
        Some(end)
    })?;
    (end == text.len()).then_some(())
}

/// The fields of an object; `None` when the text is no object.
pub(super) fn fields<'a>(text: &'a str, mut field: impl FnMut(Field<'a>) -> Option<()>) -> Option<()> {
    let bytes = text.as_bytes();
    let end = each(text, b'{', b'}', |at| {
        let colon = skip(bytes, at)?;
        let key = text.get(at..colon)?.strip_prefix('"')?.strip_suffix('"')?;
        (*bytes.get(colon)? == b':' && !key.contains('\\')).then_some(())?;
        let end = skip(bytes, colon + 1)?;
        field((key, text.get(colon + 1..end)?))?;
        Some(end)
    })?;
    (end == text.len()).then_some(())
}

/// The parts between two brackets, divided by commas: `part` gets where one begins and says where it ends.
fn each(text: &str, open: u8, close: u8, mut part: impl FnMut(usize) -> Option<usize>) -> Option<usize> {
    let bytes = text.as_bytes();
    (*bytes.first()? == open).then_some(())?;
    if *bytes.get(1)? == close {
        return Some(2);
    }
    let mut at = 1;
    loop {
        at = part(at)?;
        match *bytes.get(at)? {
            b',' => at += 1,
            other => return (other == close).then_some(at + 1),
        }
    }
}

/// Where the value that begins at `at` ends. Brackets must match in number; what they enclose is not looked at.
fn skip(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match *bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            b',' | b':' => {
                (depth > 0).then_some(())?;
                at += 1;
                continue;
            }
            b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'+' => {
                let plain = |byte: &u8| !matches!(byte, b',' | b':' | b'}' | b']' | b'{' | b'[' | b'"');
                at += bytes.get(at..)?.iter().take_while(|byte| plain(byte)).count();
            }
            _ => return None,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Behind the closing quote of the string that begins at `at`.
fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Option<Vec<&str>> {
        let mut found = Vec::new();
        items(text, |item| {
            found.push(item);
            Some(())
        })
        .map(|()| found)
    }

    #[test]
    fn values_keep_their_own_text() {
        assert_eq!(listed("[]"), Some(vec![]));
        assert_eq!(
            listed(r#"[1,-2.5e3,true,"a,\"]\\",{"a":[1,{"b":"}"}]},[[]],null]"#),
            Some(vec!["1", "-2.5e3", "true", r#""a,\"]\\""#, r#"{"a":[1,{"b":"}"}]}"#, "[[]]", "null"])
        );
        let mut found = Vec::new();
        let read = fields(r#"{"action":{"seq":1},"state":"INIT","x":[]}"#, |field| {
            found.push(field);
            Some(())
        });
        assert_eq!((read, found), (Some(()), vec![("action", r#"{"seq":1}"#), ("state", "\"INIT\""), ("x", "[]")]));
    }

    #[test]
    fn what_this_store_does_not_write_is_a_fault() {
        for text in [
            "", "[", "[1", "[1,", "[,]", "[1]]", "[1] ", "[ 1]", "[\"a]", "[{]", "{}", "[1}", "[\"\\\"]", "[:]",
            "[\u{7f}]",
        ] {
            assert_eq!(listed(text), None, "{text:?}");
        }
        for text in
            ["", "{", "[]", "{1}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\"1}", r#"{"\u0061":1}"#, "{\"a\":1}x"]
        {
            assert_eq!(fields(text, |_| Some(())), None, "{text:?}");
        }
    }
}
