//! Writes rules as a Lark grammar.
//!
//! A GBNF grammar has no terminals: it works on characters. The library is fast if long stretches
//! of text are one terminal, so every stretch without recursion becomes one. Terminals match
//! greedily, which may lose texts of a grammar that relies on stopping early (`"a"* "ab"` within
//! one stretch is not such a case, across a recursion it is). It never adds any.

use super::super::library::lark_string;
use super::linear;
use super::parse::parse;
use super::{GrammarError, KIND, Node, Rules};
use crate::vocabulary::shortened;

/// Returns the Lark grammar of a GBNF source.
pub(in super::super) fn to_lark(source: &str) -> Result<String, GrammarError> {
    let mut rules = parse(source)?;
    let Some(&root) = rules.index.get("root") else {
        return Err(GrammarError::invalid(
            KIND,
            "as a whole",
            "there is no rule `root`; name the first one so",
        ));
    };
    check_productive(&rules, &defined(&rules)?, root)?;
    linear::solve(&mut rules);
    let bodies = defined(&rules)?;
    let mut writer = Writer { recursive: recursive(&bodies), output: String::new(), terminals: 0 };
    writer.output.push_str(&format!("start: {}\n", writer.rule_name(root)));
    for (index, body) in bodies.iter().enumerate() {
        let (name, spelled) = (writer.rule_name(index), writer.node(body));
        writer.output.push_str(&format!("{name}: {spelled}\n"));
    }
    Ok(writer.output)
}

/// Returns the bodies of all rules.
///
/// # Errors
/// [`GrammarError::Invalid`] naming a rule that is mentioned only.
fn defined(rules: &Rules) -> Result<Vec<&Node>, GrammarError> {
    let undefined = |(name, line): &(String, usize)| {
        let problem = format!("the rule `{}` is not defined; define it", shortened(name));
        GrammarError::invalid(KIND, format!("line {line}"), problem)
    };
    let bodies = rules.bodies.iter().zip(&rules.names);
    bodies.map(|(body, name)| body.as_ref().ok_or_else(|| undefined(name))).collect()
}

/// Refuses a root that no finite text satisfies.
fn check_productive(rules: &Rules, bodies: &[&Node], root: usize) -> Result<(), GrammarError> {
    let mut productive = vec![false; bodies.len()];
    loop {
        let mut changed = false;
        for (index, body) in bodies.iter().enumerate().rev() {
            if !productive[index] && body.is_productive(&productive) {
                productive[index] = true;
                changed = true;
            }
        }
        if productive[root] {
            return Ok(());
        }
        if !changed {
            let line = rules.names[root].1;
            let problem = "no text satisfies `root`, for it always needs itself again; give it an \
                alternative that ends";
            return Err(GrammarError::invalid(KIND, format!("line {line}"), problem));
        }
    }
}

/// Returns which rules lead back to themselves, or to a rule that does: rules whose mentions all
/// end are removed until none is left to remove (Kahn's algorithm).
fn recursive(bodies: &[&Node]) -> Vec<bool> {
    let mut mentioned_by = vec![Vec::new(); bodies.len()];
    let mut open = vec![0_usize; bodies.len()];
    for (index, body) in bodies.iter().enumerate() {
        body.mentions(&mut |rule| {
            mentioned_by[rule].push(index);
            open[index] += 1;
        });
    }
    let mut ready: Vec<usize> = (0..bodies.len()).filter(|&index| open[index] == 0).collect();
    let mut recursive = vec![true; bodies.len()];
    while let Some(index) = ready.pop() {
        recursive[index] = false;
        for &above in &mentioned_by[index] {
            open[above] -= 1;
            if open[above] == 0 {
                ready.push(above);
            }
        }
    }
    recursive
}

struct Writer {
    recursive: Vec<bool>,
    output: String,
    terminals: usize,
}

impl Writer {
    /// Returns a rule's name. Rules of Lark are in small letters, terminals in capitals.
    fn rule_name(&self, rule: usize) -> String {
        if self.recursive[rule] { format!("r{rule}") } else { format!("R{rule}") }
    }

    fn is_recursive(&self, node: &Node) -> bool {
        let mut found = false;
        node.mentions(&mut |rule| found |= self.recursive[rule]);
        found
    }

    /// Writes a node as an expression of a terminal if it has no recursion, else of a rule.
    fn node(&mut self, node: &Node) -> String {
        if !self.is_recursive(node) {
            return self.terminal(node);
        }
        match node {
            Node::Rule(rule) => self.rule_name(*rule),
            Node::Sequence(nodes) => self.sequence(nodes),
            Node::Choice(nodes) => {
                let spelled: Vec<String> = nodes.iter().map(|node| self.as_rule(node)).collect();
                format!("({})", spelled.join(" | "))
            }
            Node::Repeat(node, least, most) => {
                format!("({}){}", self.as_rule(node), counts(*least, *most))
            }
            Node::Literal(_) | Node::Class(_) => self.terminal(node),
        }
    }

    /// Writes a node inside a rule: without recursion it becomes a terminal of its own.
    fn as_rule(&mut self, node: &Node) -> String {
        if self.is_recursive(node) { self.node(node) } else { self.new_terminal(&[node]) }
    }

    fn sequence(&mut self, nodes: &[Node]) -> String {
        let (mut spelled, mut plain) = (Vec::new(), Vec::new());
        for node in nodes {
            if self.is_recursive(node) {
                if !plain.is_empty() {
                    spelled.push(self.new_terminal(&std::mem::take(&mut plain)));
                }
                spelled.push(self.node(node));
            } else {
                plain.push(node);
            }
        }
        if !plain.is_empty() {
            spelled.push(self.new_terminal(&plain));
        }
        spelled.join(" ")
    }

    /// Writes a terminal for a run of nodes without recursion and returns its name.
    fn new_terminal(&mut self, nodes: &[&Node]) -> String {
        let spelled: Vec<String> = nodes.iter().map(|node| self.terminal(node)).collect();
        let spelled = spelled.join(" ");
        if spelled == "\"\"" {
            return spelled;
        }
        self.terminals += 1;
        let name = format!("T{}", self.terminals);
        self.output.push_str(&format!("{name}: {spelled}\n"));
        name
    }

    fn terminal(&self, node: &Node) -> String {
        match node {
            Node::Literal(text) => lark_string(text),
            Node::Class(expression) => format!("/{expression}/"),
            Node::Rule(rule) => self.rule_name(*rule),
            Node::Sequence(nodes) if nodes.is_empty() => "\"\"".to_owned(),
            Node::Sequence(nodes) => {
                let spelled: Vec<String> = nodes.iter().map(|node| self.terminal(node)).collect();
                format!("({})", spelled.join(" "))
            }
            Node::Choice(nodes) => {
                let spelled: Vec<String> = nodes.iter().map(|node| self.terminal(node)).collect();
                format!("({})", spelled.join(" | "))
            }
            Node::Repeat(node, least, most) => {
                format!("({}){}", self.terminal(node), counts(*least, *most))
            }
        }
    }
}

fn counts(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}
