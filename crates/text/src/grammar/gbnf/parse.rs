//! Parses GBNF text to rules.

use std::collections::HashMap;

use super::{GrammarError, KIND, MAX_DEPTH, MAX_REPEAT, Node, Rules};

pub(super) fn parse(source: &str) -> Result<Rules, GrammarError> {
    let mut rules = Rules { bodies: Vec::new(), names: Vec::new(), index: HashMap::new() };
    let mut reader = Reader { characters: source.chars().collect(), at: 0, line: 1, depth: 0 };
    reader.space(true);
    while reader.peek().is_some() {
        let line = reader.line;
        let name = reader.name()?;
        reader.space(false);
        if !(reader.eat(':') && reader.eat(':') && reader.eat('=')) {
            return Err(reader.problem("expected `::=` after the name of a rule"));
        }
        reader.space(true);
        let index = rules.rule(&name, line)?;
        let body = reader.choice(&mut rules)?;
        if rules.bodies[index].is_some() {
            let problem = format!("`{name}` is defined twice; join the definitions with `|`");
            return Err(GrammarError::invalid(KIND, format!("line {line}"), problem));
        }
        rules.bodies[index] = Some(body);
        if !matches!(reader.peek(), None | Some('\n')) {
            return Err(reader.problem("expected the end of the line or `|`"));
        }
        reader.space(true);
    }
    Ok(rules)
}

struct Reader {
    characters: Vec<char>,
    at: usize,
    /// The line, from 1.
    line: usize,
    /// The number of groups around the current place.
    depth: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += 1;
        self.line += usize::from(character == '\n');
        Some(character)
    }

    fn eat(&mut self, character: char) -> bool {
        let found = self.peek() == Some(character);
        if found {
            self.next();
        }
        found
    }

    fn problem(&self, problem: &str) -> GrammarError {
        GrammarError::invalid(KIND, format!("line {}", self.line), problem)
    }

    /// Skips spaces and comments, and line breaks if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(character) = self.peek() {
            match character {
                ' ' | '\t' | '\r' => {}
                '\n' if lines => {}
                '#' => {
                    while self.peek().is_some_and(|character| character != '\n') {
                        self.at += 1;
                    }
                    continue;
                }
                _ => return,
            }
            self.next();
        }
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let start = self.at;
        while self
            .peek()
            .is_some_and(|found| found.is_ascii_alphanumeric() || found == '-' || found == '_')
        {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.problem("expected the name of a rule (letters, digits, `-` and `_`)"));
        }
        Ok(self.characters[start..self.at].iter().collect())
    }

    /// Returns whether a `|` follows on this line or on the next, where accepting it is clearer
    /// than an error.
    fn bar(&mut self) -> bool {
        let (at, line) = (self.at, self.line);
        self.space(true);
        if self.eat('|') {
            return true;
        }
        if self.depth == 0 {
            (self.at, self.line) = (at, line);
        }
        false
    }

    fn choice(&mut self, rules: &mut Rules) -> Result<Node, GrammarError> {
        let mut options = vec![self.sequence(rules)?];
        while self.bar() {
            self.space(true);
            options.push(self.sequence(rules)?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Node::Choice(options) })
    }

    fn sequence(&mut self, rules: &mut Rules) -> Result<Node, GrammarError> {
        let mut nodes = Vec::new();
        while let Some(character) = self.peek() {
            let node = match character {
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.at += 1;
                    Node::Class("(?s:.)".to_owned())
                }
                '(' => self.group(rules)?,
                '<' | '!' => {
                    return Err(
                        self.problem("tokens (`<...>`) are not supported; write the text instead")
                    );
                }
                '|' | ')' | '\n' => break,
                _ => {
                    let line = self.line;
                    Node::Rule(rules.rule(&self.name()?, line)?)
                }
            };
            nodes.push(self.repeated(node)?);
            self.space(self.depth > 0);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) })
    }

    fn group(&mut self, rules: &mut Rules) -> Result<Node, GrammarError> {
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.problem(
                "groups are nested more than 20 deep; give the inner ones a rule of their own",
            ));
        }
        self.space(true);
        let node = self.choice(rules)?;
        self.space(true);
        if !self.eat(')') {
            return Err(self.problem("expected `)`"));
        }
        self.depth -= 1;
        Ok(node)
    }

    /// Reads the repetitions after an item. Several in a row nest.
    fn repeated(&mut self, mut node: Node) -> Result<Node, GrammarError> {
        let mut nested = self.depth;
        loop {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.counts()?,
                _ => return Ok(node),
            };
            self.at += 1;
            nested += 1;
            if nested > MAX_DEPTH {
                return Err(self.problem("too many repetitions of a repetition; one says the same"));
            }
            node = Node::Repeat(Box::new(node), least, most);
        }
    }

    /// Reads `{m}`, `{m,}`, `{m,n}` up to the closing brace.
    fn counts(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.at += 1;
        let least = self.count()?;
        let mut most = Some(least);
        if self.eat(',') {
            self.space(false);
            most = if self.peek() == Some('}') { None } else { Some(self.count()?) };
        }
        if self.peek() != Some('}') {
            return Err(self.problem("expected `}`"));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.problem("the second count of a repetition is smaller than the first"));
        }
        Ok((least, most))
    }

    fn count(&mut self) -> Result<u32, GrammarError> {
        self.space(false);
        let start = self.at;
        while self.peek().is_some_and(|found| found.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.characters[start..self.at].iter().collect();
        self.space(false);
        if digits.is_empty() {
            return Err(self.problem("expected a number in `{}`"));
        }
        match digits.parse() {
            Ok(count) if count <= MAX_REPEAT => Ok(count),
            _ => Err(self.problem("a repetition of more than 10000 is not supported; use `*`")),
        }
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(Node::Literal(text)),
                Some('\\') => text.push(self.escape()?),
                None | Some('\n') => return Err(self.problem("a text in quotes has no end")),
                Some(character) => text.push(character),
            }
        }
    }

    /// Reads a character after a backslash.
    fn escape(&mut self) -> Result<char, GrammarError> {
        let digits =
            match self.next() {
                Some('n') => return Ok('\n'),
                Some('r') => return Ok('\r'),
                Some('t') => return Ok('\t'),
                Some(same @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(same),
                Some('x') => 2,
                Some('u') => 4,
                Some('U') => 8,
                _ => return Err(self.problem(
                    r#"unknown escape; use \n, \r, \t, \\, \", \[, \], \xHH, \uHHHH or \UHHHHHHHH"#,
                )),
            };
        let mut value = 0;
        for _ in 0..digits {
            let Some(digit) = self.next().and_then(|digit| digit.to_digit(16)) else {
                return Err(self.problem("expected hexadecimal digits after \\x, \\u or \\U"));
            };
            value = value << 4 | digit;
        }
        char::from_u32(value).ok_or_else(|| self.problem("the escape is not a character"))
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        let mut spelled = String::from(if self.eat('^') { "[^" } else { "[" });
        let mut empty = true;
        while let Some(first) = self.class_character()? {
            empty = false;
            put(&mut spelled, first);
            if self.peek() == Some('-') && self.characters.get(self.at + 1) != Some(&']') {
                self.at += 1;
                let Some(last) = self.class_character()? else { break };
                if last < first {
                    return Err(self.problem("a range of characters runs backwards"));
                }
                spelled.push('-');
                put(&mut spelled, last);
            }
        }
        if empty {
            return Err(self.problem("a class of characters is empty; use `.` for any character"));
        }
        spelled.push(']');
        Ok(Node::Class(spelled))
    }

    /// Reads the next character of a class; returns `None` at its end.
    fn class_character(&mut self) -> Result<Option<char>, GrammarError> {
        match self.next() {
            Some(']') => Ok(None),
            Some('\\') => self.escape().map(Some),
            None => Err(self.problem("a class of characters has no end; close it with `]`")),
            Some(character) => Ok(Some(character)),
        }
    }
}

/// Spells a character in a form that regular expressions take anywhere.
fn put(spelled: &mut String, character: char) {
    if character.is_ascii_alphanumeric() {
        spelled.push(character);
    } else {
        spelled.push_str(&format!("\\x{{{:x}}}", u32::from(character)));
    }
}
