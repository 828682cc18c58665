//! How deep values nest, checked while they are built.
//!
//! Rhai clones, compares and frees values by native recursion and bounds their size, never their depth: a value that
//! holds itself a hundred thousand times kills the process when it is freed. [`super::rewrite`] puts a check around
//! every expression that can put one value inside another, and the functions here replace those that do the same. The
//! functions that could allocate without bound in one step are replaced too.

use rhai::{Array, Dynamic, FnPtr, ImmutableString, Map as RhaiMap, Module};

use super::call::{Call, Native, raise};
use super::engine::{set, set_mutator};

/// Nesting of any value inside a program. Results are held to `max_value_depth`, which is smaller.
pub(super) const MAX_NESTING: usize = 400;

/// Values visited by one check, as often as they are reached.
const MAX_VISITED: usize = 8_000_000;

/// Captured variables reached by one check. Closures may share them so that there are exponentially many ways to each,
/// and Rhai walks all of them (to hash, to print): what it cannot walk is refused here.
const MAX_CAPTURED: usize = 4_096;

/// Registers the replaced functions.
pub(super) fn register(module: &mut Module) {
    register_arrays(module);
    register_maps(module);
    register_strings(module);
}

/// Fails when a value nests too deeply to be put inside another one.
pub(super) fn check(value: &Dynamic) -> Native<()> {
    if is_flat(value) {
        return Ok(());
    }
    Walk::default().down(value, 0)
}

/// The same for a value that goes into a captured variable: it must not hold a closure that captures, or the two could
/// hold each other and never be freed.
pub(super) fn check_captured(value: &Dynamic) -> Native<()> {
    if is_flat(value) {
        return Ok(());
    }
    let mut walk = Walk { refuse_captures: true, ..Walk::default() };
    walk.down(value, 0)
}

fn is_flat(value: &Dynamic) -> bool {
    !(value.is_array() || value.is_map() || value.is_fnptr() || value.is_shared())
}

#[derive(Default)]
struct Walk {
    visited: usize,
    captured: usize,
    refuse_captures: bool,
}

impl Walk {
    /// Fails when `value` reaches deeper than [`MAX_NESTING`] below the start, or too wide.
    fn down(&mut self, value: &Dynamic, above: usize) -> Native<()> {
        self.visited += 1;
        if above >= MAX_NESTING || self.visited > MAX_VISITED {
            return Err(raise(format!("a value nests deeper than {MAX_NESTING} levels or holds itself")));
        }
        if value.is_shared() {
            self.captured += 1;
            if self.captured > MAX_CAPTURED {
                return Err(raise("closures capture each other too often".to_owned()));
            }
            return match value.read_lock::<Dynamic>() {
                Some(inner) => self.down(&inner, above),
                None => Err(raise("a captured variable is in use".to_owned())),
            };
        }
        if let Ok(array) = value.as_array_ref() {
            array.iter().try_for_each(|item| self.below(item, above))?;
        } else if let Ok(map) = value.as_map_ref() {
            map.values().try_for_each(|item| self.below(item, above))?;
        } else if let Some(function) = value.read_lock::<FnPtr>() {
            for item in function.curry() {
                if self.refuse_captures && item.is_shared() {
                    let message = "a closure cannot be kept in a variable that closures capture; use `this`";
                    return Err(raise(message.to_owned()));
                }
                self.below(item, above)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn below(&mut self, item: &Dynamic, above: usize) -> Native<()> {
        if is_flat(item) {
            self.visited += 1;
            return Ok(());
        }
        self.down(item, above + 1)
    }
}

/// Fails when `bytes` do not fit at once. Without a program (a trusted script) everything fits.
pub(super) fn reserve(bytes: usize) -> Native<()> {
    Call::current(|call| call.map_or(Ok(()), |call| call.reserve(bytes)))
}

/// Memory of a value, roughly; stops counting where it is certainly too much.
fn weight(value: &Dynamic) -> usize {
    const ENTRY: usize = 64;
    if let Ok(array) = value.as_array_ref() {
        array.iter().map(weight).fold(ENTRY, usize::saturating_add)
    } else if let Ok(map) = value.as_map_ref() {
        map.values().map(weight).fold(ENTRY, |sum, item| sum.saturating_add(item).saturating_add(ENTRY))
    } else {
        // A string is shared by its copies.
        size_of::<Dynamic>()
    }
}

fn register_arrays(module: &mut Module) {
    set_mutator(module, "push", |array: &mut Array, item: Dynamic| -> Native<()> {
        check(&item)?;
        array.push(item);
        Ok(())
    });
    set_mutator(module, "insert", |array: &mut Array, index: i64, item: Dynamic| -> Native<()> {
        check(&item)?;
        let index = offset(array.len(), index);
        array.insert(index, item);
        Ok(())
    });
    set_mutator(module, "set", |array: &mut Array, index: i64, item: Dynamic| -> Native<()> {
        check(&item)?;
        let from_end = usize::try_from(index.unsigned_abs()).ok().and_then(|back| array.len().checked_sub(back));
        let index = if index < 0 { from_end } else { usize::try_from(index).ok() };
        if let Some(slot) = index.and_then(|index| array.get_mut(index)) {
            *slot = item;
        }
        Ok(())
    });
    set_mutator(module, "pad", |array: &mut Array, length: i64, item: Dynamic| -> Native<()> {
        let Ok(length) = usize::try_from(length) else { return Ok(()) };
        if length > array.len() {
            check(&item)?;
            reserve(weight(&item).saturating_mul(length - array.len()))?;
            array.resize(length, item);
        }
        Ok(())
    });
}

/// Where an insertion goes: negative counts from the end, outside is clamped.
fn offset(length: usize, index: i64) -> usize {
    if index < 0 {
        length.saturating_sub(usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX))
    } else {
        usize::try_from(index).unwrap_or(usize::MAX).min(length)
    }
}

fn register_maps(module: &mut Module) {
    set_mutator(module, "set", |map: &mut RhaiMap, key: &str, item: Dynamic| -> Native<()> {
        check(&item)?;
        map.insert(key.into(), item);
        Ok(())
    });
}

fn register_strings(module: &mut Module) {
    set_mutator(module, "pad", |text: &mut ImmutableString, length: i64, letter: char| {
        pad(text, length, letter.encode_utf8(&mut [0; 4]))
    });
    set_mutator(module, "pad", |text: &mut ImmutableString, length: i64, padding: &str| pad(text, length, padding));
    set_mutator(module, "replace", |text: &mut ImmutableString, from: &str, to: &str| replace(text, from, to));
    set_mutator(module, "replace", |text: &mut ImmutableString, from: &str, to: char| {
        replace(text, from, to.encode_utf8(&mut [0; 4]))
    });
    set_mutator(module, "replace", |text: &mut ImmutableString, from: char, to: &str| {
        replace(text, from.encode_utf8(&mut [0; 4]), to)
    });
    set_mutator(module, "replace", |text: &mut ImmutableString, from: char, to: char| {
        replace(text, from.encode_utf8(&mut [0; 4]), to.encode_utf8(&mut [0; 4]))
    });
    set(module, "split", |text: &str, separator: &str| pieces(text, text.split(separator)));
    set(module, "split", |text: &str, separator: char| pieces(text, text.split(separator)));
    set(module, "split", |text: &str| pieces(text, text.split_whitespace()));
    set(module, "split_rev", |text: &str, separator: &str| pieces(text, text.rsplit(separator)));
    set(module, "split_rev", |text: &str, separator: char| pieces(text, text.rsplit(separator)));
    set(module, "to_chars", |text: &str| -> Native<Array> {
        reserve(text.len().saturating_mul(size_of::<Dynamic>()))?;
        Ok(text.chars().map(Dynamic::from_char).collect())
    });
    set(module, "repeat", |text: &str, times: i64| -> Native<ImmutableString> {
        let times = usize::try_from(times).unwrap_or(0);
        reserve(text.len().saturating_mul(times))?;
        Ok(text.repeat(times).into())
    });
}

/// Appends `padding` until the text has `length` characters.
fn pad(text: &mut ImmutableString, length: i64, padding: &str) -> Native<()> {
    let missing = usize::try_from(length).unwrap_or(0).saturating_sub(text.chars().count());
    if missing == 0 || padding.is_empty() {
        return Ok(());
    }
    reserve(missing.saturating_mul(padding.chars().map(char::len_utf8).max().unwrap_or(1)))?;
    let filled = text.make_mut();
    filled.extend(padding.chars().cycle().take(missing));
    Ok(())
}

pub(super) fn replace(text: &mut ImmutableString, from: &str, to: &str) -> Native<()> {
    let matches = text.matches(from).count();
    if matches == 0 {
        return Ok(());
    }
    reserve(matches.saturating_mul(to.len()).saturating_add(text.len()))?;
    *text = text.replace(from, to).into();
    Ok(())
}

/// The pieces of a text as an array, when they fit.
pub(super) fn pieces<'t>(text: &str, pieces: impl Iterator<Item = &'t str>) -> Native<Array> {
    /// A short string: its place in the array, its count and its header.
    const PIECE: usize = 80;
    // Only a text that could hold too many pieces is worth the reservation.
    reserve(text.len())?;
    let mut array = Array::new();
    for piece in pieces {
        array.push(piece.into());
        if array.len() % 4096 == 0 {
            reserve(4096 * PIECE)?;
        }
    }
    Ok(array)
}
