//! Everyday functions that people and models expect and Rhai's standard library lacks.
//!
//! | function | gives |
//! |---|---|
//! | `list.join(", ")`, `list.join()` | text of all items |
//! | `list.sum()`, `list.product()`, `list.mean()` | a number; integers stay exact |
//! | `list.min()`, `list.max()` | the smallest, largest item; `()` for an empty list |
//! | `list.first()`, `list.last()` | an item, `()` for an empty list |
//! | `list.sorted()`, `list.reversed()`, `list.unique()` | a new list; the old one stays |
//! | `list.flatten()`, `list.enumerate()` | one level less; `[[0, a], [1, b]]` |
//! | `x.round(2)`, `x.to_fixed(2)` | a number, text with two decimals |
//! | `text.trimmed()`, `text.replaced(a, b)`, `text.repeat(n)` | new text (`trim` and `replace` change in place) |
//! | `text.lines()` | list of lines |
//! | `type_name(x)` | `null`, `bool`, `number`, `string`, `list`, `map` or Rhai's own name |
//!
//! Nothing here replaces a function of Rhai with a different meaning. `sort`, `order` and `dedup` are replaced because
//! Rhai's swallow a comparer's errors, panic where there is no order (NaN), and cannot be stopped while they compare.

use std::cmp::Ordering;

use rhai::{Array, Dynamic, EvalAltResult, FnPtr, ImmutableString, Module, NativeCallContext, Position};

use super::call::{Call, Native, raise, terminated};
use super::engine::{set, set_mutator};
use super::nesting;
use super::text::text_of;

/// Registers them.
pub(super) fn register(module: &mut Module) {
    register_numbers(module);
    register_lists(module);
    register_sorting(module);
    register_texts(module);
}

fn register_numbers(module: &mut Module) {
    set(module, "round", |number: f64, digits: i64| rounded(number, digits));
    set(module, "round", |number: i64, digits: i64| -> f64 { rounded(number as f64, digits) });
    set(module, "to_fixed", |number: f64, digits: i64| format!("{number:.*}", digits.clamp(0, 100) as usize));
    set(module, "to_fixed", |number: i64, digits: i64| format!("{:.*}", digits.clamp(0, 100) as usize, number as f64));
}

/// Rounds half away from zero to `digits` decimals, negative for tens and hundreds.
fn rounded(number: f64, digits: i64) -> f64 {
    if digits > 300 || !number.is_finite() {
        return number;
    }
    // Through decimal text: 2.675 is shown, and therefore rounded, as people read it.
    if (0..=17).contains(&digits) {
        let scale = 10_f64.powi(digits as i32);
        let scaled = (number * scale).round() / scale;
        return if scaled.is_finite() { scaled } else { number };
    }
    let scale = 10_f64.powi(digits.max(-400) as i32);
    let scaled = (number * scale).round() / scale;
    if scaled.is_finite() { scaled } else { 0.0 }
}

fn register_lists(module: &mut Module) {
    set(module, "join", |context: NativeCallContext, list: &mut Array, separator: &str| {
        joined(&context, list, separator)
    });
    set(module, "join", |context: NativeCallContext, list: &mut Array| joined(&context, list, ""));
    set(module, "sum", |list: &mut Array| fold(list, "sum", 0, i64::checked_add, |sum, item| sum + item));
    set(module, "product", |list: &mut Array| {
        fold(list, "product", 1, i64::checked_mul, |product, item| product * item)
    });
    for name in ["mean", "avg", "average"] {
        set(module, name, |list: &mut Array| -> Native<Dynamic> {
            if list.is_empty() {
                return Ok(Dynamic::UNIT);
            }
            let sum =
                list.iter().try_fold(0.0, |sum, item| Ok::<_, Box<EvalAltResult>>(sum + number(item, "mean")?))?;
            Ok((sum / list.len() as f64).into())
        });
    }
    set(module, "min", |context: NativeCallContext, list: &mut Array| extreme(&context, list, "<"));
    set(module, "max", |context: NativeCallContext, list: &mut Array| extreme(&context, list, ">"));
    set(module, "first", |list: &mut Array| list.first().cloned().unwrap_or_default());
    set(module, "last", |list: &mut Array| list.last().cloned().unwrap_or_default());
    set(module, "reversed", |list: &mut Array| -> Array { list.iter().rev().cloned().collect() });
    set(module, "unique", |context: NativeCallContext, list: &mut Array| -> Native<Array> {
        let mut unique = Array::new();
        for item in list.iter() {
            let mut known = false;
            for other in &unique {
                let (mut one, mut other) = (item.clone(), other.clone());
                known = context.call_native_fn_raw("==", true, &mut [&mut one, &mut other])?.as_bool().unwrap_or(false);
                if known {
                    break;
                }
            }
            if !known {
                unique.push(item.clone());
            }
        }
        Ok(unique)
    });
    set(module, "flatten", |list: &mut Array| -> Array {
        let mut flat = Array::new();
        for item in list.iter() {
            match item.as_array_ref() {
                Ok(inner) => flat.extend(inner.iter().cloned()),
                Err(_) => flat.push(item.clone()),
            }
        }
        flat
    });
    set(module, "enumerate", |list: &mut Array| -> Native<Array> {
        let pairs = list.iter().enumerate().map(|(index, item)| {
            nesting::check(item)?;
            Ok(Dynamic::from_array(vec![(index as i64).into(), item.clone()]))
        });
        pairs.collect()
    });
}

fn register_sorting(module: &mut Module) {
    for (name, direction) in [("sort", Direction::Up), ("sort_desc", Direction::Down)] {
        set_mutator(module, name, move |list: &mut Array| -> Native<()> {
            *list = sorted(list, direction)?;
            Ok(())
        });
    }
    for (name, direction) in [("order", Direction::Up), ("sorted", Direction::Up), ("order_desc", Direction::Down)] {
        set(module, name, move |list: &mut Array| sorted(list, direction));
    }
    for name in ["sort", "sort_by"] {
        set_mutator(module, name, |context: NativeCallContext, list: &mut Array, by: FnPtr| -> Native<()> {
            *list = sorted_by(&context, list, &by)?;
            Ok(())
        });
    }
    for name in ["order", "order_by", "sorted", "sorted_by"] {
        set(module, name, |context: NativeCallContext, list: &mut Array, by: FnPtr| sorted_by(&context, list, &by));
    }
    set_mutator(module, "dedup", |context: NativeCallContext, list: &mut Array, same: FnPtr| -> Native<()> {
        let mut kept = Array::new();
        for item in list.iter() {
            let is_same = match kept.last() {
                Some(last) => same.call_raw(&context, None, [last.clone(), item.clone()])?.as_bool().unwrap_or(false),
                None => false,
            };
            if !is_same {
                kept.push(item.clone());
            }
        }
        *list = kept;
        Ok(())
    });
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

fn sorted_by(context: &NativeCallContext, list: &Array, by: &FnPtr) -> Native<Array> {
    merge_sort(list, |one, other| compare(context, by, one, other))
}

/// Items in their natural order: all numbers, all texts, all letters or all truth values.
fn sorted(list: &Array, direction: Direction) -> Native<Array> {
    /// Compared bytes that count as one step.
    const BYTES_PER_STEP: usize = 4096;
    let mut compared = 0;
    merge_sort(list, |one, other| {
        let (order, bytes) = natural_order(one, other)?;
        compared += bytes;
        if compared >= BYTES_PER_STEP {
            // Long texts take many steps at once; one look at the clock is enough for them.
            compared = 0;
            if Call::step().is_some() {
                return Err(terminated());
            }
        }
        Ok(match direction {
            Direction::Up => order,
            Direction::Down => order.reverse(),
        })
    })
}

/// How two items are ordered, and how many bytes that took. NaN is equal to everything: there is no order to find.
fn natural_order(one: &Dynamic, other: &Dynamic) -> Native<(Ordering, usize)> {
    const NUMBER: usize = 16;
    if let (Ok(one), Ok(other)) = (one.as_int(), other.as_int()) {
        return Ok((one.cmp(&other), NUMBER));
    }
    if let (Ok(one), Ok(other)) = (one.as_immutable_string_ref(), other.as_immutable_string_ref()) {
        return Ok((one.as_str().cmp(other.as_str()), NUMBER + one.len().min(other.len())));
    }
    let float = |value: &Dynamic| value.as_float().or_else(|_| value.as_int().map(|number| number as f64)).ok();
    if let (Some(one), Some(other)) = (float(one), float(other)) {
        return Ok((one.partial_cmp(&other).unwrap_or(Ordering::Equal), NUMBER));
    }
    if let (Ok(one), Ok(other)) = (one.as_char(), other.as_char()) {
        return Ok((one.cmp(&other), NUMBER));
    }
    if let (Ok(one), Ok(other)) = (one.as_bool(), other.as_bool()) {
        return Ok((one.cmp(&other), NUMBER));
    }
    if one.is_unit() && other.is_unit() {
        return Ok((Ordering::Equal, NUMBER));
    }
    let (one, other) = (super::engine::type_name(one), super::engine::type_name(other));
    Err(raise(format!("{one} and {other} have no order; give sort a comparer")))
}

/// A stable merge sort: unlike the standard library's it accepts any comparer, and it stops at the first error.
fn merge_sort(list: &Array, mut compare: impl FnMut(&Dynamic, &Dynamic) -> Native<Ordering>) -> Native<Array> {
    let mut from = list.clone();
    let mut width = 1;
    while width < from.len() {
        let mut merged = Array::with_capacity(from.len());
        for pair in from.chunks(2 * width) {
            let (left, right) = pair.split_at(width.min(pair.len()));
            let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
            while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
                let take_right = compare(one, other)? == Ordering::Greater;
                merged.extend(if take_right { right.next() } else { left.next() }.cloned());
            }
            merged.extend(left.chain(right).cloned());
        }
        from = merged;
        width *= 2;
    }
    Ok(from)
}

/// What a comparer says: a number below, at or above zero, or whether the first comes first.
fn compare(context: &NativeCallContext, by: &FnPtr, one: &Dynamic, other: &Dynamic) -> Native<Ordering> {
    let answer = by.call_raw(context, None, [one.clone(), other.clone()])?;
    if let Ok(number) = answer.as_int() {
        return Ok(number.cmp(&0));
    }
    if let Ok(number) = answer.as_float() {
        return Ok(number.partial_cmp(&0.0).unwrap_or(Ordering::Equal));
    }
    match answer.as_bool() {
        Ok(true) => Ok(Ordering::Less),
        Ok(false) => Ok(Ordering::Greater),
        Err(other) => Err(raise(format!("a comparer returns a number, not {other}"))),
    }
}

fn joined(context: &NativeCallContext, list: &mut Array, separator: &str) -> Native<ImmutableString> {
    let mut text = String::new();
    for (index, item) in list.iter_mut().enumerate() {
        if index > 0 {
            text.push_str(separator);
        }
        if let Ok(piece) = item.as_immutable_string_ref() {
            nesting::reserve(text.len() + separator.len() + piece.len())?;
            text.push_str(&piece);
            continue;
        }
        text.push_str(&text_of(context, item)?);
        nesting::reserve(text.len() + separator.len())?;
    }
    Ok(text.into())
}

fn number(value: &Dynamic, function: &str) -> Native<f64> {
    if let Ok(number) = value.as_int() {
        return Ok(number as f64);
    }
    value.as_float().map_err(|other| raise(format!("{function}: every item must be a number, not {other}")))
}

/// Integers as long as all are integers; an overflow is an error, as everywhere in Rhai.
fn fold(
    list: &Array,
    name: &str,
    start: i64,
    exact: fn(i64, i64) -> Option<i64>,
    float: fn(f64, f64) -> f64,
) -> Native<Dynamic> {
    let mut whole = start;
    for (index, item) in list.iter().enumerate() {
        let Ok(item) = item.as_int() else {
            let rest =
                list[index..].iter().try_fold(whole as f64, |sum, item| Native::Ok(float(sum, number(item, name)?)));
            return Ok(rest?.into());
        };
        let overflow = || EvalAltResult::ErrorArithmetic(format!("{name}: integer overflow"), Position::NONE);
        whole = exact(whole, item).ok_or_else(overflow)?;
    }
    Ok(whole.into())
}

/// The first item that no other one beats.
fn extreme(context: &NativeCallContext, list: &Array, beats: &str) -> Native<Dynamic> {
    let mut best: Option<Dynamic> = None;
    for item in list {
        let better = match &best {
            None => true,
            Some(best) => {
                let (mut one, mut other) = (item.clone(), best.clone());
                let better = context.call_native_fn_raw(beats, true, &mut [&mut one, &mut other])?;
                better.as_bool().map_err(|_| raise("the items cannot be compared".to_owned()))?
            }
        };
        if better {
            best = Some(item.clone());
        }
    }
    Ok(best.unwrap_or_default())
}

fn register_texts(module: &mut Module) {
    set(module, "trimmed", |text: &str| -> ImmutableString { text.trim().into() });
    set(module, "replaced", |text: ImmutableString, from: &str, to: &str| -> Native<ImmutableString> {
        let mut text = text;
        nesting::replace(&mut text, from, to)?;
        Ok(text)
    });
    set(module, "lines", |text: &str| nesting::pieces(text, text.lines()));
    set(module, "type_name", |value: Dynamic| -> ImmutableString {
        if value.is_unit() {
            "null".into()
        } else if value.is_bool() {
            "bool".into()
        } else if value.is_int() || value.is_float() {
            "number".into()
        } else if value.is_string() || value.is_char() {
            "string".into()
        } else if value.is_array() {
            "list".into()
        } else if value.is_map() {
            "map".into()
        } else {
            super::engine::type_name(&value).into()
        }
    });
}
