//! The filters, tests, functions and methods that templates may use.
//!
//! The environment starts empty: a name that is not listed here does not exist. Every operation
//! that could make much out of little (`replace`, `join`, `indent`, `tojson`) is written here with
//! its bounds. `format`, `center` and the other fillers are left out, since no published chat
//! template needs them.

use std::sync::Arc;

use minijinja::value::{
    FunctionArgs, FunctionResult, Kwargs, Rest, ValueKind, ValueOrKwargs, from_args,
};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};
use minijinja_contrib::pycompat;

use super::clock::CalendarTime;
use super::limits::{JsonStyle, MAX_STRING_BYTES, RenderBudget, write_json};
use crate::error::TextError;

/// How much of its arguments a library filter pays for.
#[derive(Clone, Copy)]
enum Price {
    /// The lengths of the arguments.
    Shallow,
    /// Everything in the arguments.
    Deep,
    /// Everything in the arguments, for each time that a sorting filter compares it.
    Sorted,
}

impl Price {
    fn charge(self, budget: &RenderBudget, arguments: &[Value]) -> Result<(), Error> {
        for argument in arguments {
            match self {
                Self::Shallow => budget.charge_shallow(argument)?,
                Self::Deep => budget.charge_deep(argument)?,
                Self::Sorted => budget.charge_sorted(argument)?,
            }
        }
        Ok(())
    }
}

/// Adds one of the engine's filters, with a price.
fn add_priced<F, Rv, Args>(
    environment: &mut Environment<'_>,
    budget: &Arc<RenderBudget>,
    name: &'static str,
    price: Price,
    filter: F,
) where
    F: functions::Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let unpriced = format!("{name}!");
    environment.add_filter(unpriced.clone(), filter);
    let own = Arc::clone(budget);
    environment.add_filter(name, move |state: &mut State, all: Rest<ValueOrKwargs>| {
        let all = all.into_values();
        price.charge(&own, &all)?;
        state.apply_filter(&unpriced, &all)
    });
}

/// Fills an empty environment.
pub(crate) fn install(
    environment: &mut Environment<'_>,
    budget: &Arc<RenderBudget>,
    clock: Option<CalendarTime>,
) {
    install_priced(environment, budget);
    install_own(environment, budget);
    install_tests(environment, budget);
    install_functions(environment, budget, clock);
    let own = Arc::clone(budget);
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        call_method(&own, state, value, method, arguments)
    });
}

fn install_priced(environment: &mut Environment<'_>, budget: &Arc<RenderBudget>) {
    macro_rules! priced {
        ($price:ident: $($name:literal $filter:ident),+) => {
            $(add_priced(environment, budget, $name, Price::$price, filters::$filter);)+
        };
    }
    priced!(Shallow: "trim" trim, "upper" upper, "lower" lower, "title" title,
        "capitalize" capitalize, "length" length, "count" length, "items" items,
        "reverse" reverse, "default" default, "d" default, "abs" abs, "int" int, "float" float,
        "round" round, "first" first, "last" last, "list" list, "bool" bool, "select" select,
        "reject" reject, "selectattr" selectattr, "rejectattr" rejectattr, "map" map);
    priced!(Deep: "sum" sum, "min" min, "max" max);
    priced!(Sorted: "dictsort" dictsort, "sort" sort, "unique" unique);
}

fn install_own(environment: &mut Environment<'_>, budget: &Arc<RenderBudget>) {
    let own = Arc::clone(budget);
    environment.add_filter("replace", move |text: Value, from: Value, to: Value| {
        replace(&own, &text, &from, &to, None)
    });
    let own = Arc::clone(budget);
    environment.add_filter("join", move |list: Value, separator: Option<Value>| {
        join(&own, &list, &separator.unwrap_or_else(|| Value::from("")))
    });
    let own = Arc::clone(budget);
    environment.add_filter("string", move |value: Value| printed(&own, &value));
    // A prompt is plain text: nothing is escaped, so everything is safe.
    let own = Arc::clone(budget);
    environment.add_filter("safe", move |value: Value| printed(&own, &value));
    let own = Arc::clone(budget);
    environment.add_filter("tojson", move |value: Value, rest: Rest<ValueOrKwargs>| {
        to_json(&own, &value, &rest.into_values())
    });
    let own = Arc::clone(budget);
    environment.add_filter("indent", move |text: Value, rest: Rest<ValueOrKwargs>| {
        indent(&own, &text, &rest.into_values())
    });
}

fn printed(budget: &RenderBudget, value: &Value) -> Result<Value, Error> {
    let mut text = String::new();
    budget.print(&mut text, value)?;
    Ok(Value::from(text))
}

fn replace(
    budget: &RenderBudget,
    text: &Value,
    from: &Value,
    to: &Value,
    count: Option<usize>,
) -> Result<Value, Error> {
    let (mut spelled, mut old, mut new) = (String::new(), String::new(), String::new());
    budget.print(&mut spelled, text)?;
    budget.print(&mut old, from)?;
    budget.print(&mut new, to)?;
    budget.charge(spelled.len())?;
    let count = spelled.matches(old.as_str()).count().min(count.unwrap_or(usize::MAX));
    budget.charge_string(spelled.len().saturating_add(count.saturating_mul(new.len())))?;
    Ok(Value::from(spelled.replacen(&old, &new, count)))
}

fn join(budget: &RenderBudget, list: &Value, separator: &Value) -> Result<Value, Error> {
    let (mut text, mut between) = (String::new(), String::new());
    budget.print(&mut between, separator)?;
    for (index, item) in list.try_iter()?.checked().enumerate() {
        if index > 0 {
            budget.append(&mut text, &between)?;
        }
        budget.charge(1)?;
        budget.print(&mut text, &item?)?;
    }
    Ok(Value::from(text))
}

/// The widest indentation: deeper ones only fill memory.
const MAX_INDENT: usize = 64;

fn bounded_indent(budget: &RenderBudget, width: usize) -> Result<usize, Error> {
    if width > MAX_INDENT {
        let limit = MAX_INDENT as u64;
        return Err(budget.refuse(TextError::TemplateLimit { what: "indentation", limit }));
    }
    Ok(width)
}

/// Splits positional arguments from keyword arguments, which come last.
fn split_arguments(arguments: &[Value]) -> Result<(&[Value], Kwargs), Error> {
    if let Some((last, positional)) = arguments.split_last()
        && last.kind() == ValueKind::Map
        && let Ok(options) = Kwargs::try_from(last.clone())
    {
        return Ok((positional, options));
    }
    Ok((arguments, from_args::<(Kwargs,)>(&[])?.0))
}

/// Does what Python's `json.dumps` does as Hugging Face's `tojson` calls it: no escapes for HTML,
/// and all of Unicode as it is.
fn to_json(budget: &RenderBudget, value: &Value, rest: &[Value]) -> Result<Value, Error> {
    let (positional, options) = split_arguments(rest)?;
    let (indent,): (Option<Value>,) = from_args(positional)?;
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => {
            let width = indent.as_usize().ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, "tojson: indent is not a count")
            })?;
            Some(bounded_indent(budget, width)?)
        }
    };
    let style = JsonStyle {
        indent,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut text = String::new();
    write_json(budget, &mut text, value, &style, 0)?;
    Ok(Value::from(text))
}

fn indent(budget: &RenderBudget, text: &Value, rest: &[Value]) -> Result<Value, Error> {
    let (positional, options) = split_arguments(rest)?;
    let (width, first, blank): (Option<usize>, Option<bool>, Option<bool>) = from_args(positional)?;
    let width = width.or(options.get::<Option<usize>>("width")?).unwrap_or(4);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let space = " ".repeat(bounded_indent(budget, width)?);
    let (mut spelled, mut indented) = (String::new(), String::new());
    budget.print(&mut spelled, text)?;
    for (index, line) in spelled.split('\n').enumerate() {
        if index > 0 {
            budget.append(&mut indented, "\n")?;
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            budget.append(&mut indented, &space)?;
        }
        budget.append(&mut indented, line)?;
    }
    Ok(Value::from(indented))
}

fn install_tests(environment: &mut Environment<'_>, budget: &Arc<RenderBudget>) {
    environment.add_test("defined", tests::is_defined);
    environment.add_test("undefined", tests::is_undefined);
    environment.add_test("none", tests::is_none);
    environment.add_test("boolean", tests::is_boolean);
    environment.add_test("number", tests::is_number);
    environment.add_test("integer", tests::is_integer);
    environment.add_test("float", tests::is_float);
    environment.add_test("string", tests::is_string);
    environment.add_test("sequence", tests::is_sequence);
    environment.add_test("iterable", tests::is_iterable);
    environment.add_test("mapping", tests::is_mapping);
    environment.add_test("odd", tests::is_odd);
    environment.add_test("even", tests::is_even);
    environment.add_test("divisibleby", tests::is_divisibleby);
    environment.add_test("true", tests::is_true);
    environment.add_test("false", tests::is_false);
    let equal = |budget: &Arc<RenderBudget>, wanted: bool| {
        let own = Arc::clone(budget);
        move |a: Value, b: Value| -> Result<bool, Error> {
            own.charge_deep(&a)?;
            own.charge_deep(&b)?;
            Ok((a == b) == wanted)
        }
    };
    for name in ["eq", "equalto", "==", "sameas"] {
        environment.add_test(name, equal(budget, true));
    }
    for name in ["ne", "!="] {
        environment.add_test(name, equal(budget, false));
    }
    let own = Arc::clone(budget);
    environment.add_test("in", move |state: &State, a: Value, b: Value| {
        own.charge_deep(&a)?;
        own.charge_deep(&b)?;
        tests::is_in(state, &a, &b)
    });
}

fn install_functions(
    environment: &mut Environment<'_>,
    budget: &Arc<RenderBudget>,
    clock: Option<CalendarTime>,
) {
    environment.add_function("range", functions::range);
    environment.add_function("namespace", functions::namespace);
    let own = Arc::clone(budget);
    environment.add_function("dict", move |value: Option<Value>, more: Kwargs| {
        own.charge_shallow(value.as_ref().unwrap_or(&Value::UNDEFINED))?;
        functions::dict(value, more)
    });
    let own = Arc::clone(budget);
    environment.add_function("raise_exception", move |message: Value| -> Result<Value, Error> {
        let mut text = String::new();
        own.print(&mut text, &message)?;
        Err(own.refuse(TextError::TemplateRefused { message: text }))
    });
    if let Some(time) = clock {
        let own = Arc::clone(budget);
        environment.add_function("strftime_now", move |pattern: String| {
            own.charge(pattern.len() * 16)?;
            time.format(&pattern)
        });
    }
}

/// Calls one of Python's methods of strings, maps and lists.
fn call_method(
    budget: &RenderBudget,
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    Price::Deep.charge(budget, arguments)?;
    budget.charge_shallow(value)?;
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, arguments);
    };
    match method {
        "replace" => {
            let (from, to, count): (Value, Value, Option<i64>) = from_args(arguments)?;
            let count = count.and_then(|count| usize::try_from(count).ok());
            replace(budget, value, &from, &to, count)
        }
        "join" => {
            let (list,): (Value,) = from_args(arguments)?;
            join(budget, &list, value)
        }
        "format" => Err(Error::new(
            ErrorKind::UnknownMethod,
            "str.format is not supported in chat templates",
        )),
        "split" | "splitlines" => {
            // Each piece costs about as much as 32 bytes of text.
            budget.charge(text.len().saturating_mul(32).min(MAX_STRING_BYTES * 32))?;
            pycompat::unknown_method_callback(state, value, method, arguments)
        }
        "strip" | "lstrip" | "rstrip" => {
            let set = arguments.first().and_then(Value::as_str).map_or(1, str::len);
            budget.charge(text.len().saturating_mul(set))?;
            pycompat::unknown_method_callback(state, value, method, arguments)
        }
        _ => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

/// Installs how the engine prints a value in `{{ }}`.
pub(crate) fn install_formatter(environment: &mut Environment<'_>, budget: &Arc<RenderBudget>) {
    let own = Arc::clone(budget);
    environment.set_formatter(move |out, _state, value| {
        let mut text = String::new();
        let text = match (value.as_str(), value.kind()) {
            (Some(string), _) => string,
            (None, ValueKind::Undefined) => return Ok(()),
            (None, _) => {
                own.print(&mut text, value)?;
                &text
            }
        };
        own.charge_written(text.len())?;
        out.write_str(text).map_err(Error::from)
    });
}
