//! The template operators, each paying for its operands before it acts.
//!
//! The names cannot be written as filters in a template: they contain characters that no identifier
//! has.

use std::sync::Arc;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, context};

use super::limits::RenderBudget;

pub(crate) const ADD: &str = "+";
pub(crate) const MULTIPLY: &str = "*";
pub(crate) const CONCATENATE: &str = "~";
pub(crate) const EQUAL: &str = "==";
pub(crate) const UNEQUAL: &str = "!=";
pub(crate) const LESS: &str = "<";
pub(crate) const AT_MOST: &str = "<=";
pub(crate) const GREATER: &str = ">";
pub(crate) const AT_LEAST: &str = ">=";
pub(crate) const CONTAINED: &str = "[in]";
pub(crate) const SLICE: &str = "[:]";
pub(crate) const ITEM: &str = "[]";
pub(crate) const MAP: &str = "{:}";
pub(crate) const STORABLE: &str = "=";
pub(crate) const NESTED: &str = "[[]]";

/// Lets the engine evaluate an operation whose operands have been checked.
fn evaluate(state: &State, expression: &'static str, operands: Value) -> Result<Value, Error> {
    state.env().compile_expression(expression)?.eval(operands)
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn add(budget: &RenderBudget, state: &State, a: Value, b: Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        budget.charge_string(left.len() + right.len())?;
        return Ok(Value::from([left, right].concat()));
    }
    if let (true, true, Some(left), Some(right)) =
        (a.is_integer(), b.is_integer(), a.as_i64(), b.as_i64())
        && let Some(sum) = left.checked_add(right)
    {
        return Ok(Value::from(sum));
    }
    if is_list(&a) && is_list(&b) {
        budget.charge_list(a.len().unwrap_or(0).saturating_add(b.len().unwrap_or(0)))?;
        budget.charge_nest()?;
    }
    evaluate(state, "a + b", context! { a, b })
}

fn multiply(budget: &RenderBudget, state: &State, a: Value, b: Value) -> Result<Value, Error> {
    for (value, count) in [(&a, &b), (&b, &a)] {
        // The engine refuses a value that is not a count.
        let count = count.as_usize().unwrap_or(0);
        if let Some(string) = value.as_str() {
            budget.charge_string(string.len().saturating_mul(count))?;
        } else if is_list(value) {
            budget.charge_list(value.len().unwrap_or(0).saturating_mul(count))?;
            budget.charge_nest()?;
        }
    }
    evaluate(state, "a * b", context! { a, b })
}

fn concatenate(budget: &RenderBudget, a: &Value, b: &Value) -> Result<Value, Error> {
    let mut text = String::new();
    budget.print(&mut text, a)?;
    budget.print(&mut text, b)?;
    Ok(Value::from(text))
}

/// Pays for comparing two values.
fn charge_pair(budget: &RenderBudget, a: &Value, b: &Value) -> Result<(), Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        return budget.charge(1 + left.len().min(right.len()));
    }
    budget.charge_deep(a)?;
    budget.charge_deep(b)
}

fn slice(budget: &RenderBudget, state: &State, arguments: Rest<Value>) -> Result<Value, Error> {
    let [value, start, stop, step] =
        <[Value; 4]>::try_from(arguments.0).map_err(|_| Error::from(ErrorKind::MissingArgument))?;
    budget.charge_shallow(&value)?;
    budget.charge_nest()?;
    let is_list = is_list(&value);
    let part = evaluate(state, "value[start:stop:step]", context! { value, start, stop, step })?;
    if !is_list {
        return Ok(part);
    }
    // The engine gives a view of the list, and a view of a view costs a walk through both.
    let items: Vec<Value> = part.try_iter()?.checked().collect::<Result<_, _>>()?;
    budget.charge_list(items.len())?;
    Ok(Value::from(items))
}

/// Returns whether a value can be a key at a bounded price.
fn is_plain(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::String
    )
}

/// Returns whether a value is a loop, macro or namespace rather than data.
fn is_of_engine(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        let name = object.type_name();
        value.kind() == ValueKind::Plain
            || name.starts_with("minijinja::vm::")
            || name.ends_with("Namespace")
    })
}

fn item(budget: &RenderBudget, value: &Value, key: &Value) -> Result<Value, Error> {
    if !is_plain(key) || (is_of_engine(value) && key.as_str() == Some("changed")) {
        return if key.is_undefined() && !value.is_undefined() {
            Ok(Value::UNDEFINED)
        } else {
            Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a value of type {} has no item of type {}", value.kind(), key.kind()),
            ))
        };
    }
    budget.charge_shallow(key)?;
    if value.as_str().is_some() {
        budget.charge_shallow(value)?;
    }
    value.get_item(key)
}

/// Makes a map literal.
fn map(budget: &RenderBudget, arguments: Rest<Value>) -> Result<Value, Error> {
    let mut entries: Vec<(Value, Value)> = Vec::with_capacity(arguments.len() / 2);
    let mut arguments = arguments.0.into_iter();
    while let (Some(key), Some(value)) = (arguments.next(), arguments.next()) {
        if !is_plain(&key) {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a value of type {} cannot be a key", key.kind()),
            ));
        }
        budget.charge_shallow(&key)?;
        entries.push((key, value));
    }
    budget.charge_nest()?;
    Ok(Value::from_pairs(entries))
}

/// Refuses to store a namespace or a function in a namespace: such a cycle
/// would never be freed.
fn storable(budget: &RenderBudget, value: Value) -> Result<Value, Error> {
    budget.walk(&value, 0, &mut |part| {
        budget.charge(if part.as_object().is_some() { 16 } else { 2 })?;
        if is_of_engine(part) {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "a namespace cannot hold a namespace or a macro",
            ));
        }
        Ok(())
    })?;
    Ok(value)
}

type Comparison = fn(&Value, &Value) -> bool;

/// Makes the operators known to `environment`.
pub(crate) fn install(environment: &mut Environment<'_>, budget: &Arc<RenderBudget>) {
    let account = || Arc::clone(budget);
    let own = account();
    environment.add_filter(ADD, move |s: &State, a: Value, b: Value| add(&own, s, a, b));
    let own = account();
    environment.add_filter(MULTIPLY, move |s: &State, a: Value, b: Value| multiply(&own, s, a, b));
    let own = account();
    environment.add_filter(CONCATENATE, move |a: Value, b: Value| concatenate(&own, &a, &b));
    let comparisons: [(&'static str, Comparison); 6] = [
        (EQUAL, |a, b| a == b),
        (UNEQUAL, |a, b| a != b),
        (LESS, |a, b| a < b),
        (AT_MOST, |a, b| a <= b),
        (GREATER, |a, b| a > b),
        (AT_LEAST, |a, b| a >= b),
    ];
    for (name, compare) in comparisons {
        let own = account();
        environment.add_filter(name, move |a: Value, b: Value| -> Result<bool, Error> {
            charge_pair(&own, &a, &b)?;
            Ok(compare(&a, &b))
        });
    }
    let own = account();
    environment.add_filter(CONTAINED, move |s: &State, a: Value, b: Value| {
        own.charge_deep(&a)?;
        own.charge_deep(&b)?;
        evaluate(s, "a in b", context! { a, b })
    });
    let own = account();
    environment.add_filter(SLICE, move |s: &State, all: Rest<Value>| slice(&own, s, all));
    let own = account();
    environment.add_filter(ITEM, move |value: Value, key: Value| item(&own, &value, &key));
    let own = account();
    environment.add_filter(MAP, move |all: Rest<Value>| map(&own, all));
    let own = account();
    environment.add_filter(STORABLE, move |value: Value| storable(&own, value));
    let own = account();
    environment.add_filter(NESTED, move |value: Value| own.charge_nest().map(|()| value));
}
