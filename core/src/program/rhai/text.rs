//! How lists, maps and functions look as text: as in Rhai, but rendered by us, so that rendering counts as steps, can be
//! stopped, and never follows what closures captured.

use std::fmt::Write;

use rhai::{Array, Dynamic, FloatWrapper, FnPtr, ImmutableString, Map as RhaiMap, Module, NativeCallContext};

use super::call::{Call, Native, raise, terminated};
use super::engine::{set, set_mutator};
use super::nesting::reserve;

/// Items rendered between two steps of the interpreter's clock.
const ITEMS_PER_STEP: usize = 64;

/// Registers them.
pub(super) fn register(module: &mut Module) {
    for name in ["to_string", "print", "to_debug", "debug"] {
        set(module, name, |context: NativeCallContext, list: &mut Array| -> Native<ImmutableString> {
            let mut render = Render { context: &context, text: String::new(), items: 0 };
            render.list(list)?;
            Ok(render.text.into())
        });
        set(module, name, |context: NativeCallContext, map: &mut RhaiMap| -> Native<ImmutableString> {
            let mut render = Render { context: &context, text: String::new(), items: 0 };
            render.map(map)?;
            Ok(render.text.into())
        });
        set(module, name, |function: &mut FnPtr| -> ImmutableString { format!("Fn({})", function.fn_name()).into() });
    }
    // Rhai's own versions go on with a rendering of their own when ours is stopped.
    set(module, "+", |context: NativeCallContext, text: ImmutableString, item: Dynamic| -> Native<ImmutableString> {
        joined(&text, &text_of(&context, &mut { item })?)
    });
    set(module, "+", |context: NativeCallContext, item: Dynamic, text: &str| -> Native<ImmutableString> {
        joined(&text_of(&context, &mut { item })?, text)
    });
    for name in ["+=", "append"] {
        set_mutator(
            module,
            name,
            |context: NativeCallContext, text: &mut ImmutableString, item: Dynamic| -> Native<()> {
                *text = joined(text, &text_of(&context, &mut { item })?)?;
                Ok(())
            },
        );
    }
}

fn joined(one: &str, other: &str) -> Native<ImmutableString> {
    reserve(one.len() + other.len())?;
    Ok(format!("{one}{other}").into())
}

/// A value as text, or the error of its rendering.
pub(super) fn text_of(context: &NativeCallContext, value: &mut Dynamic) -> Native<ImmutableString> {
    if let Ok(text) = value.as_immutable_string_ref() {
        return Ok(text.clone());
    }
    let text = context.call_native_fn_raw("to_string", true, &mut [value])?;
    text.into_immutable_string().map_err(|other| raise(format!("{other} has no text")))
}

struct Render<'c> {
    context: &'c NativeCallContext<'c>,
    text: String,
    items: usize,
}

impl Render<'_> {
    fn list(&mut self, list: &mut Array) -> Native<()> {
        self.text.push('[');
        for (index, item) in list.iter_mut().enumerate() {
            if index > 0 {
                self.text.push_str(", ");
            }
            self.item(item)?;
        }
        self.text.push(']');
        Ok(())
    }

    fn map(&mut self, map: &mut RhaiMap) -> Native<()> {
        self.text.push_str("#{");
        for (index, (key, item)) in map.iter_mut().enumerate() {
            if index > 0 {
                self.text.push_str(", ");
            }
            self.plain(format_args!("{key:?}: "));
            self.item(item)?;
        }
        self.text.push('}');
        Ok(())
    }

    fn item(&mut self, item: &mut Dynamic) -> Native<()> {
        self.items += 1;
        if self.items % ITEMS_PER_STEP == 0 && Call::step().is_some() {
            return Err(terminated());
        }
        if let Ok(number) = item.as_int() {
            self.plain(format_args!("{number}"));
        } else if let Ok(number) = item.as_float() {
            self.plain(format_args!("{:?}", FloatWrapper::new(number)));
        } else if let Ok(truth) = item.as_bool() {
            self.plain(format_args!("{truth}"));
        } else if let Ok(letter) = item.as_char() {
            self.plain(format_args!("{letter:?}"));
        } else if item.is_unit() {
            self.text.push_str("()");
        } else if let Ok(text) = item.as_immutable_string_ref() {
            // Texts are shared by their copies: a short list may hold more than fits.
            reserve(self.text.len().saturating_add(text.len()))?;
            let _ = write!(self.text, "{:?}", text.as_str());
        } else if item.is_array() {
            if let Ok(mut list) = item.as_array_mut() {
                self.list(&mut list)?;
            }
        } else if item.is_map() {
            if let Ok(mut map) = item.as_map_mut() {
                self.map(&mut map)?;
            }
        } else {
            let shown = self.context.call_native_fn_raw("to_debug", true, &mut [item])?;
            self.plain(format_args!("{shown}"));
        }
        Ok(())
    }

    fn plain(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a `String` does not fail.
        let _ = self.text.write_fmt(text);
    }
}
