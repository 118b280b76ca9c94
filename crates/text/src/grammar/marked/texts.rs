//! Expressions for what texts look like: patterns and formats.

/// A date of any year; the 29th of February is left out, since no expression knows leap years.
macro_rules! date {
    () => {
        concat!(
            r"[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])",
            r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
        )
    };
}

/// A time of day with its zone.
macro_rules! time {
    () => {
        concat!(
            r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?",
            r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
        )
    };
}

/// The part of a duration that is shorter than a day (RFC 3339, appendix A).
macro_rules! hours {
    () => {
        concat!(
            r"T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?",
            r"|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S)"
        )
    };
}

/// A name of a host: letters, digits and hyphens between dots (RFC 1123, 2.1). So few parts of at
/// most 24 characters stay below the longest name.
macro_rules! host {
    () => {
        concat!(
            r"[A-Za-z0-9]([A-Za-z0-9-]{0,22}[A-Za-z0-9])?",
            r"(\.[A-Za-z]([A-Za-z0-9-]{0,22}[A-Za-z0-9])?){0,8}"
        )
    };
}

/// A character of a path (RFC 3986, 3.3).
macro_rules! path {
    () => {
        r"([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
    };
}

/// Four digits of an address of IPv6.
macro_rules! group {
    () => {
        "[0-9A-Fa-f]{1,4}"
    };
}

/// The formats that are held, with their expressions: every text that one allows has the format.
pub(super) const FORMATS: [(&str, &str); 10] = [
    ("date", date!()),
    ("time", time!()),
    ("date-time", concat!(date!(), "T", time!())),
    (
        "duration",
        concat!(
            r"P(([0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}D)(",
            hours!(),
            r")?|",
            hours!(),
            r"|[0-9]{1,9}W)"
        ),
    ),
    ("uuid", r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
    (
        "ipv4",
        concat!(
            r"((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}",
            r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
        ),
    ),
    (
        "ipv6",
        concat!(
            "(",
            group!(),
            ":){7}",
            group!(),
            "|(",
            group!(),
            ":){1,7}:",
            "|(",
            group!(),
            ":){1,6}:",
            group!(),
            "|(",
            group!(),
            ":){1,5}(:",
            group!(),
            "){2}",
            "|(",
            group!(),
            ":){1,4}(:",
            group!(),
            "){3}",
            "|(",
            group!(),
            ":){1,3}(:",
            group!(),
            "){4}",
            "|(",
            group!(),
            ":){1,2}(:",
            group!(),
            "){5}",
            "|",
            group!(),
            ":(:",
            group!(),
            "){6}",
            "|:(:",
            group!(),
            "){1,7}|::",
        ),
    ),
    ("hostname", host!()),
    (
        "email",
        concat!(
            r"[A-Za-z0-9!#$%&'*+=?^_`{|}~-]{1,30}(\.[A-Za-z0-9!#$%&'*+=?^_`{|}~-]{1,30}){0,1}@",
            host!()
        ),
    ),
    (
        "uri",
        concat!(
            r"[A-Za-z][A-Za-z0-9+.-]*:",
            r"(\/\/([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*(:[0-9]{1,4})?",
            r"(\/",
            path!(),
            r"*)*|\/(",
            path!(),
            r"+(\/",
            path!(),
            r"*)*)?|",
            path!(),
            r"+(\/",
            path!(),
            r"*)*)",
            r"(\?(",
            path!(),
            r"|[\/?])*)?(#(",
            path!(),
            r"|[\/?])*)?",
        ),
    ),
];

/// The deepest nesting of groups around an anchor: each is read once more than those around it.
const MAX_NESTING: usize = 32;

/// Returns an expression that matches whole texts, of one that is looked for in them; `None` if it
/// has an anchor that is not at an end or too deep in groups, or asks for the borders of words.
pub(super) fn anchored(pattern: &str) -> Option<String> {
    anchored_below(pattern, MAX_NESTING)
}

/// Does the same for an expression in which groups may be nested so deep.
fn anchored_below(pattern: &str, nesting: usize) -> Option<String> {
    let mut whole = Vec::new();
    for option in options(pattern)? {
        let (begins, rest) = match option.strip_prefix('^').or(option.strip_prefix(r"\A")) {
            Some(rest) => (true, rest),
            None => (false, option),
        };
        let (ends, body) = without_end(rest);
        // An anchor may also stand in a group that is all of the alternative.
        let inner = group(body).filter(|_| !begins && !ends && has_anchor(body));
        if let Some(inner) = inner {
            whole.push(anchored_below(inner, nesting.checked_sub(1)?)?);
            continue;
        }
        if has_anchor(body) {
            return None;
        }
        let any = |is_anchored: bool| if is_anchored { "" } else { "(?s:.*)" };
        whole.push(format!("{}(?:{body}){}", any(begins), any(ends)));
    }
    Some(match &whole[..] {
        [only] => only.clone(),
        several => format!("(?:{})", several.join("|")),
    })
}

/// Returns an expression without the anchor at its end, and whether it has one.
fn without_end(text: &str) -> (bool, &str) {
    let is_escaped = |text: &str| (text.len() - text.trim_end_matches('\\').len()) % 2 == 1;
    if let Some(body) = text.strip_suffix('$')
        && !is_escaped(body)
    {
        return (true, body);
    }
    match text.strip_suffix(r"\z").or(text.strip_suffix(r"\Z")) {
        Some(body) if !is_escaped(body) => (true, body),
        _ => (false, text),
    }
}

/// The signs of an expression outside of classes, with their places; an escaped sign comes with its
/// backslash.
fn signs(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut at, mut in_class) = (0, false);
    std::iter::from_fn(move || {
        loop {
            let rest = &text[at..];
            let first = rest.chars().next()?;
            let second = rest[first.len_utf8()..].chars().next();
            let length = match (first, second) {
                ('\\', Some(second)) => 1 + second.len_utf8(),
                _ => first.len_utf8(),
            };
            let (place, sign) = (at, &rest[..length]);
            at += length;
            match sign {
                "[" => {
                    in_class = true;
                    // A bracket at the beginning of a class is one of its characters.
                    at += usize::from(text[at..].starts_with('^'));
                    at += usize::from(text[at..].starts_with(']'));
                }
                "]" => in_class = false,
                _ if in_class => {}
                _ => return Some((place, sign)),
            }
        }
    })
}

/// Returns the alternatives of an expression; `None` if its groups do not close.
fn options(pattern: &str) -> Option<Vec<&str>> {
    let (mut depth, mut start, mut found) = (0_usize, 0, Vec::new());
    for (place, sign) in signs(pattern) {
        match sign {
            "(" => depth += 1,
            ")" => depth = depth.checked_sub(1)?,
            "|" if depth == 0 => {
                found.push(&pattern[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    found.push(&pattern[start..]);
    (depth == 0).then_some(found)
}

/// Returns what a group holds if it is the whole of an expression.
fn group(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let inner = match inner.strip_prefix('?') {
        None => inner,
        Some(rest) => rest.strip_prefix(':')?,
    };
    options(inner).map(|_| inner)
}

/// Returns whether an expression has an anchor, or asks for the borders of words.
fn has_anchor(text: &str) -> bool {
    signs(text).any(|(_, sign)| matches!(sign, "^" | "$" | r"\b" | r"\B" | r"\A" | r"\z" | r"\Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_whole_texts() {
        for (pattern, expected) in [
            ("a", "(?s:.*)(?:a)(?s:.*)"),
            ("^a", "(?:a)(?s:.*)"),
            ("a$", "(?s:.*)(?:a)"),
            (r"^a\$$", r"(?:a\$)"),
            (r"a\\$", r"(?s:.*)(?:a\\)"),
            (r"\Aa\z", "(?:a)"),
            ("^$", "(?:)"),
            ("^a|b$", "(?:(?:a)(?s:.*)|(?s:.*)(?:b))"),
            ("^(a|b)$", "(?:(a|b))"),
            ("(^a$|^b$)", "(?:(?:a)|(?:b))"),
            ("(?:^a|b)", "(?:(?:a)(?s:.*)|(?s:.*)(?:b)(?s:.*))"),
            ("[$^|(]", "(?s:.*)(?:[$^|(])(?s:.*)"),
            ("[]|]|^x", "(?:(?s:.*)(?:[]|])(?s:.*)|(?:x)(?s:.*))"),
        ] {
            assert_eq!(anchored(pattern).as_deref(), Some(expected), "{pattern}");
        }
        for pattern in ["a^b", "a$b", r"\bx", "(^a)b", "a(b$)", "(a", "a)", "(?<n>^a)", "(^a)(b$)"]
        {
            assert_eq!(anchored(pattern), None, "{pattern}");
        }
        let nested = |depth: usize| format!("{}^a{}", "(".repeat(depth), ")".repeat(depth));
        assert!(anchored(&nested(MAX_NESTING)).is_some());
        assert_eq!(anchored(&nested(MAX_NESTING + 1)), None);
        assert_eq!(anchored(&nested(16_000)), None);
    }
}
