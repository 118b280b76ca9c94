//! Ends numbers: JSON sets them no length, and a model that likes digits writes them to the end of
//! its room.

use super::marks::CallMarks;

/// The most digits before the point of a number, and after it, unless its schema names a longer
/// number. llama.cpp's grammars of JSON have the same.
const MOST_DIGITS: usize = 16;

/// The most digits of an exponent: with them every number is a finite double.
const MOST_EXPONENT_DIGITS: usize = 2;

/// How a call begins that is JSON, without the space between its elements. A list of calls has a
/// bracket before it.
const HEAD: &[u8] = b"{\"name\":\"";

/// The numbers of its bytes before which space may come.
const SPACED: [usize; 4] = [0, 1, 7, 8];

/// Follows the numbers of a reply in JSON, or in calls between marks, byte by byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    most_digits: usize,
    marks: Option<CallMarks>,
    form: Form,
    in_string: bool,
    /// Whether the next byte of a string is escaped.
    is_escaped: bool,
    /// Digits since the number, its fraction or its exponent began.
    digits: usize,
    in_exponent: bool,
    /// Whether this is a word, such as a bare key, in which digits are letters.
    in_word: bool,
}

/// What the reply is at the present place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Perhaps a call: so many bytes of [`HEAD`] have come.
    Head(usize),
    /// Words, which may have any number of digits.
    Text,
    Json,
    /// A call between marks.
    Marked,
}

impl Numbers {
    /// Starts a reply of JSON, whose schemas name numbers of up to `named` digits.
    pub(super) fn of_json(named: usize) -> Self {
        Self {
            most_digits: named.max(MOST_DIGITS),
            marks: None,
            form: Form::Json,
            in_string: false,
            is_escaped: false,
            digits: 0,
            in_exponent: false,
            in_word: false,
        }
    }

    /// Starts a reply of calls in JSON, and between marks if there are some, or with `has_words` of
    /// words.
    pub(super) fn of_calls(named: usize, marks: Option<CallMarks>, has_words: bool) -> Self {
        let form = if has_words { Form::Head(0) } else { Form::Json };
        Self { marks, form, ..Self::of_json(named) }
    }

    /// Takes a token of the reply with its bytes.
    pub(super) fn take(&mut self, token: u32, bytes: &[u8]) {
        if let Some(marks) = self.marks
            && marks.all().contains(&token)
        {
            let is_quote = token == marks.quote;
            let form = match self.form {
                // In words it is a quotation mark.
                Form::Head(_) | Form::Text if is_quote => Form::Text,
                form if is_quote => form,
                _ if token == marks.open => Form::Marked,
                _ => Form::Json,
            };
            let in_string = is_quote && form == Form::Marked && !self.in_string;
            *self =
                Self { form, in_string, digits: 0, in_exponent: false, in_word: false, ..*self };
            return;
        }
        for &byte in bytes {
            self.step(byte);
        }
    }

    /// Returns whether the number at this place, and those in `bytes`, stay within their lengths if
    /// these come next.
    pub(super) fn fit(mut self, bytes: &[u8]) -> bool {
        self.form == Form::Text || bytes.iter().all(|&byte| self.step(byte))
    }

    /// Takes a byte. Returns false for a digit too many.
    fn step(&mut self, byte: u8) -> bool {
        match self.form {
            Form::Text => return true,
            Form::Head(come) => {
                self.begin(come, byte);
                return true;
            }
            Form::Json | Form::Marked => {}
        }
        if self.in_string {
            // Only the mark ends a string between marks.
            if self.form == Form::Json {
                self.in_string = self.is_escaped || byte != b'"';
                self.is_escaped = byte == b'\\' && !self.is_escaped;
            }
            return true;
        }
        let (digits, in_exponent) = (self.digits, self.in_exponent);
        let is_number = digits > 0 && !self.in_word;
        (self.digits, self.in_exponent) = (0, false);
        match byte {
            b'0'..=b'9' => {
                (self.digits, self.in_exponent) = (digits + 1, in_exponent);
                let most = if in_exponent { MOST_EXPONENT_DIGITS } else { self.most_digits };
                return self.in_word || self.digits <= most;
            }
            b'e' | b'E' if is_number && !in_exponent => self.in_exponent = true,
            b'+' | b'-' => self.in_exponent = in_exponent && digits == 0,
            b'.' if is_number => {}
            b'"' => self.in_string = self.form == Form::Json,
            b',' | b':' | b'[' | b']' | b'{' | b'}' | b' ' | b'\n' | b'\r' | b'\t' => {
                self.in_word = false;
            }
            _ => self.in_word = true,
        }
        true
    }

    /// Takes a byte of what may be the beginning of a call.
    fn begin(&mut self, come: usize, byte: u8) {
        // A bracket is counted as none: the grammar allows one at most.
        self.form = match HEAD.get(come) {
            Some(&expected) if byte == expected => Form::Head(come + 1),
            _ if come == 0 && byte == b'[' => Form::Head(0),
            _ if SPACED.contains(&come) && byte.is_ascii_whitespace() => Form::Head(come),
            _ => Form::Text,
        };
        if self.form == Form::Head(HEAD.len()) {
            (self.form, self.in_string) = (Form::Json, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: CallMarks = CallMarks { open: 1, close: 2, quote: 3 };

    #[test]
    fn digits_are_counted_in_numbers_only() {
        let (long, most) = ("1".repeat(17), "1".repeat(16));
        let json = Numbers::of_json(0);
        let either = Numbers::of_calls(0, Some(MARKS), true);
        let mut marked = Numbers::of_calls(0, Some(MARKS), false);
        marked.take(1, b"");
        for (start, before, fits) in [
            (json, String::new(), false),
            (json, "-".to_owned(), false),
            (json, format!("{{\"a\": [{most}, {most}.{most}e+12, "), false),
            (json, format!("{most}."), false),
            (json, "true, ".to_owned(), false),
            (json, "\"a\": \"".to_owned(), true),
            (json, "\"a\\\": ".to_owned(), true),
            (json, "\"a\\\\\": ".to_owned(), false),
            (either, "See {".to_owned(), true),
            (either, "{\"name\": \"f\", \"parameters\": {\"a\": ".to_owned(), false),
            (either, "[{\"name\": \"f\", \"parameters\": {\"a\": ".to_owned(), false),
            (either, "[\n{ \"name\" :\"f\", \"parameters\": {\"a\": ".to_owned(), false),
            (either, "[1, ".to_owned(), true),
            (marked, "call:f{a:".to_owned(), false),
            (marked, "call:f{a".to_owned(), true),
        ] {
            let mut numbers = start;
            numbers.take(9, before.as_bytes());
            assert_eq!(numbers.fit(long.as_bytes()), fits, "{before}");
            assert!(numbers.fit(most.as_bytes()), "{before}");
        }
        // Between marks a quotation mark is a letter, and marks begin and end strings.
        marked.take(9, b"call:f{a:");
        marked.take(3, b"");
        assert!(marked.fit(long.as_bytes()));
        marked.take(9, b"\"");
        marked.take(3, b"");
        marked.take(9, b",b:");
        assert!(!marked.fit(long.as_bytes()));
        // In words it is a quotation mark.
        let mut words = either;
        words.take(9, b"Say ");
        words.take(3, b"");
        assert!(words.fit(long.as_bytes()));
        words.take(3, b"");
        assert!(words.fit(long.as_bytes()));
        words.take(1, b"");
        words.take(9, b"call:f{a:");
        assert!(!words.fit(long.as_bytes()));
        assert!(json.fit(b"1e99") && !json.fit(b"1e100") && !json.fit(b"1.5E-100"));
        let named = Numbers::of_json(20);
        assert!(named.fit("1".repeat(20).as_bytes()) && !named.fit("1".repeat(21).as_bytes()));
    }
}
