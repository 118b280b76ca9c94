//! Turns recursion at one end of a rule into repetition.
//!
//! A rule such as `root ::= [a-z] root | [a-z]` says the same as `[a-z]* [a-z]`. The library's
//! parser keeps an item for each unfinished `root`, so that each character costs more than the one
//! before; a repetition is a part of a terminal and costs the same for each.
//!
//! Rules that mention each other at their end only are a system of linear equations over languages:
//! `X = a X | b Y | c`. They are solved one after the other by Arden's lemma: `X = A X | B` has the
//! solution `A* B` (D. N. Arden, "Delayed-Logic and Finite-State Machines", 1961). The same holds
//! for mentions at the beginning, mirrored, and for one rule with `X X` among its alternatives,
//! which says `(A* B)+`. Rules of another form stay as they are.

use super::{Node, Rules};

/// The most rules of a group that is solved.
const MAX_GROUP: usize = 64;

/// The largest solution of a rule in nodes. A solution repeats the
/// expressions that it is made of.
const MAX_NODES: usize = 1 << 12;

/// The deepest nesting of a solution in nodes: Lark's own limit is 30 groups.
const MAX_NESTING: usize = 24;

/// The end of a rule at which it mentions rules of its group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Alternatives of a rule, with those that mention no rule of the group apart.
#[derive(Clone, Default)]
struct Linear {
    /// By rule of the group: what comes between the end and a mention.
    mentions: Vec<Vec<Node>>,
    rest: Vec<Node>,
    /// Whether the rule may be two of itself.
    is_doubled: bool,
    /// Whether it may be three or more, which says nothing more than two do.
    is_tripled: bool,
}

/// Replaces the bodies of rules that are recursive at one end only.
pub(super) fn solve(rules: &mut Rules) {
    for group in groups(rules) {
        let solved =
            [Side::Right, Side::Left].iter().find_map(|&side| solution(rules, &group, side));
        for (&rule, body) in group.iter().zip(solved.unwrap_or_default()) {
            rules.bodies[rule] = Some(body);
        }
    }
}

/// Returns the groups of rules that mention each other, a group after those that it mentions
/// (Tarjan's algorithm, without recursion).
fn groups(rules: &Rules) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let count = rules.bodies.len();
    let mentions: Vec<Vec<usize>> = rules
        .bodies
        .iter()
        .map(|body| {
            let mut found = Vec::new();
            body.iter().for_each(|body| body.mentions(&mut |rule| found.push(rule)));
            found
        })
        .collect();
    let (mut order, mut lowest) = (vec![UNSEEN; count], vec![0; count]);
    let (mut open, mut is_open) = (Vec::new(), vec![false; count]);
    let (mut groups, mut seen) = (Vec::new(), 0);
    for first in 0..count {
        let mut path = if order[first] == UNSEEN { vec![(first, 0)] } else { Vec::new() };
        while let Some((rule, next)) = path.pop() {
            if next == 0 {
                (order[rule], lowest[rule]) = (seen, seen);
                seen += 1;
                open.push(rule);
                is_open[rule] = true;
            }
            match mentions[rule].get(next) {
                Some(&other) => {
                    path.push((rule, next + 1));
                    if order[other] == UNSEEN {
                        path.push((other, 0));
                    } else if is_open[other] {
                        lowest[rule] = lowest[rule].min(order[other]);
                    }
                }
                None => {
                    if let Some(&(above, _)) = path.last() {
                        lowest[above] = lowest[above].min(lowest[rule]);
                    }
                    if lowest[rule] == order[rule] {
                        let start = open.iter().rposition(|&other| other == rule).unwrap_or(0);
                        let group = open.split_off(start);
                        group.iter().for_each(|&member| is_open[member] = false);
                        if group.len() > 1 || mentions[rule].contains(&rule) {
                            groups.push(group);
                        }
                    }
                }
            }
        }
    }
    groups
}

/// Returns the bodies of a group's rules without a mention of its rules; `None` if they have
/// another form, or are too large.
fn solution(rules: &Rules, group: &[usize], side: Side) -> Option<Vec<Node>> {
    if group.len() > MAX_GROUP {
        return None;
    }
    let place = |rule: usize| group.iter().position(|&member| member == rule);
    let mut equations = Vec::with_capacity(group.len());
    for &rule in group {
        let mut linear = Linear { mentions: vec![Vec::new(); group.len()], ..Linear::default() };
        let body = rules.bodies[rule].as_ref()?;
        alternatives(body, &[], side, &place, (group.len() == 1).then_some(rule), &mut linear)?;
        if linear.is_tripled && !linear.is_doubled {
            return None;
        }
        equations.push(linear);
    }
    // Each rule is written by those after it, then put into them.
    for at in 0..equations.len() {
        let own = std::mem::take(&mut equations[at].mentions[at]);
        if let Some(own) = repeated(own) {
            let Linear { mentions, rest, .. } = &mut equations[at];
            mentions.iter_mut().flatten().chain(rest).for_each(|node| {
                *node =
                    joined(own.clone(), std::mem::replace(node, Node::Sequence(Vec::new())), side);
            });
        }
        for after in at + 1..equations.len() {
            put_in(&mut equations, at, after, side)?;
        }
    }
    for at in (0..equations.len()).rev() {
        for before in 0..at {
            put_in(&mut equations, at, before, side)?;
        }
    }
    let body = |linear: Linear| {
        let body = any_of(linear.rest)?;
        let body = if linear.is_doubled { Node::Repeat(Box::new(body), 1, None) } else { body };
        (depth(&body) <= MAX_NESTING).then_some(body)
    };
    equations.into_iter().map(body).collect()
}

/// Replaces the mentions of one rule in the equation of another. Returns `None` if that makes it
/// too large.
fn put_in(equations: &mut [Linear], rule: usize, other: usize, side: Side) -> Option<()> {
    let befores = std::mem::take(&mut equations[other].mentions[rule]);
    let known = equations[rule].clone();
    let (terms, own) = (known.nodes().count(), known.nodes().map(size).sum::<usize>());
    let added: usize = befores.iter().map(|before| size(before) * terms + own).sum();
    if added + equations[other].nodes().map(size).sum::<usize>() > MAX_NODES {
        return None;
    }
    for before in befores {
        let with = |node: &Node| joined(before.clone(), node.clone(), side);
        let into = &mut equations[other];
        for (mentions, known) in into.mentions.iter_mut().zip(&known.mentions) {
            mentions.extend(known.iter().map(with));
        }
        into.rest.extend(known.rest.iter().map(with));
    }
    Some(())
}

impl Linear {
    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.mentions.iter().flatten().chain(&self.rest)
    }
}

fn size(node: &Node) -> usize {
    1 + match node {
        Node::Literal(_) | Node::Class(_) | Node::Rule(_) => 0,
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().map(size).sum(),
        Node::Repeat(node, _, _) => size(node),
    }
}

fn depth(node: &Node) -> usize {
    1 + match node {
        Node::Literal(_) | Node::Class(_) | Node::Rule(_) => 0,
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().map(depth).max().unwrap_or(0),
        Node::Repeat(node, _, _) => depth(node),
    }
}

/// Adds the alternatives of a node. `around` comes between it and the end where no rule is
/// mentioned; `single` is the rule of a group of one.
fn alternatives(
    node: &Node,
    around: &[Node],
    side: Side,
    place: &impl Fn(usize) -> Option<usize>,
    single: Option<usize>,
    linear: &mut Linear,
) -> Option<()> {
    let mentions = |node: &Node| {
        let mut found = false;
        node.mentions(&mut |rule| found |= place(rule).is_some());
        found
    };
    let with = |node: Option<&Node>| {
        let (mut nodes, own) = (around.to_vec(), node.cloned());
        match side {
            Side::Right => nodes.extend(own),
            Side::Left => nodes.splice(..0, own).for_each(drop),
        }
        if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) }
    };
    if !mentions(node) {
        linear.rest.push(with(Some(node)));
        return Some(());
    }
    match node {
        Node::Rule(rule) => linear.mentions[place(*rule)?].push(with(None)),
        Node::Choice(nodes) => {
            for node in nodes {
                alternatives(node, around, side, place, single, linear)?;
            }
        }
        Node::Repeat(node, 0, Some(1)) => {
            alternatives(node, around, side, place, single, linear)?;
            linear.rest.push(with(None));
        }
        Node::Repeat(node, 1, Some(1)) => alternatives(node, around, side, place, single, linear)?,
        Node::Sequence(nodes) => {
            let own = single.map(Node::Rule);
            if around.is_empty() && nodes.iter().all(|node| Some(node) == own.as_ref()) {
                linear.is_doubled |= nodes.len() == 2;
                linear.is_tripled |= nodes.len() > 2;
                return Some(());
            }
            let (last, others) = match side {
                Side::Right => nodes.split_last()?,
                Side::Left => nodes.split_first()?,
            };
            if others.iter().any(mentions) {
                return None;
            }
            let around = match side {
                Side::Right => [around, others].concat(),
                Side::Left => [others, around].concat(),
            };
            alternatives(last, &around, side, place, single, linear)?;
        }
        Node::Repeat(..) | Node::Literal(_) | Node::Class(_) => return None,
    }
    Some(())
}

/// Joins what is at the end of a rule's side with what it leads to.
fn joined(before: Node, node: Node, side: Side) -> Node {
    let (first, second) = if side == Side::Right { (before, node) } else { (node, before) };
    let mut nodes = Vec::new();
    for node in [first, second] {
        match node {
            Node::Sequence(parts) => nodes.extend(parts),
            other => nodes.push(other),
        }
    }
    if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) }
}

/// Returns any number of some alternatives; `None` if that is nothing but the empty text.
fn repeated(mut nodes: Vec<Node>) -> Option<Node> {
    nodes.retain(|node| !matches!(node, Node::Sequence(nodes) if nodes.is_empty()));
    Some(Node::Repeat(Box::new(any_of(nodes)?), 0, None))
}

/// Returns one of some alternatives; `None` if there is none.
fn any_of(mut nodes: Vec<Node>) -> Option<Node> {
    match nodes.len() {
        0 => None,
        1 => nodes.pop(),
        _ => Some(Node::Choice(nodes)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::parse::parse;
    use super::*;

    /// Where a node's texts may end, by the ends that are known of rules.
    fn ends(
        node: &Node,
        text: &[u8],
        from: usize,
        known: &[Vec<BTreeSet<usize>>],
    ) -> BTreeSet<usize> {
        match node {
            Node::Rule(rule) => known[*rule][from].clone(),
            Node::Literal(literal) => {
                let end = from + literal.len();
                (text.get(from..end) == Some(literal.as_bytes()))
                    .then_some(end)
                    .into_iter()
                    .collect()
            }
            Node::Class(class) => {
                // A class is spelled as `[...]` of the characters themselves here.
                let fits = text.get(from).is_some_and(|&byte| class.contains(char::from(byte)));
                fits.then_some(from + 1).into_iter().collect()
            }
            Node::Sequence(nodes) => nodes.iter().fold(BTreeSet::from([from]), |froms, node| {
                froms.into_iter().flat_map(|from| ends(node, text, from, known)).collect()
            }),
            Node::Choice(nodes) => {
                nodes.iter().flat_map(|node| ends(node, text, from, known)).collect()
            }
            Node::Repeat(node, least, most) => {
                let most = most.map_or(text.len() + 1, |most| most as usize);
                let (mut froms, mut all) = (BTreeSet::from([from]), BTreeSet::new());
                for count in 0..=most.max(*least as usize) {
                    if count >= *least as usize {
                        all.extend(froms.iter().copied());
                    }
                    froms = froms.iter().flat_map(|&from| ends(node, text, from, known)).collect();
                }
                all
            }
        }
    }

    /// Whether the first rule is a text, by the least fixed point.
    fn accepts(rules: &Rules, text: &[u8]) -> bool {
        let mut known = vec![vec![BTreeSet::new(); text.len() + 1]; rules.bodies.len()];
        loop {
            let before = known.clone();
            for (rule, body) in rules.bodies.iter().enumerate() {
                for from in 0..=text.len() {
                    let found = ends(body.as_ref().unwrap(), text, from, &known);
                    known[rule][from].extend(found);
                }
            }
            if known == before {
                return known[0][0].contains(&text.len());
            }
        }
    }

    fn is_recursive(rules: &Rules) -> bool {
        !groups(rules).is_empty()
    }

    /// Checks that the solution has the same texts, up to five of three letters.
    fn same(source: &str) -> bool {
        let rules = parse(source).unwrap();
        let mut solved = parse(source).unwrap();
        solve(&mut solved);
        for length in 0..=5_u32 {
            for number in 0..3_usize.pow(length) {
                let text: Vec<u8> =
                    (0..length).map(|at| b"abc"[number / 3_usize.pow(at) % 3]).collect();
                let shown = String::from_utf8_lossy(&text);
                assert_eq!(accepts(&rules, &text), accepts(&solved, &text), "{source}: {shown}");
            }
        }
        !is_recursive(&solved)
    }

    #[test]
    fn recursion_at_one_end_becomes_repetition() {
        let solved = [
            "root ::= [ab] root | [ab]",
            "root ::= root [ab] | [ab]",
            "root ::= ([ab] root)?",
            "root ::= \"a\" root | \"b\" root | \"\"",
            "root ::= root root | root root root | \"a\" | \"b\" | \"\"",
            "root ::= root root root | root root | \"a\"",
            "root ::= root root | \"c\" root | \"a\"",
            "root ::= root root | root \"c\" | \"a\"",
            "root ::= \"a\" x | \"c\"\nx ::= \"b\" root | \"c\" x | \"a\"",
            "root ::= x root | x\nx ::= y | x \"a\"\ny ::= \"b\" | \"c\" y",
            "root ::= root | \"a\" | \"b\" (root | \"c\")",
        ];
        let others = [
            "root ::= \"a\" root \"b\" | \"c\"",
            "root ::= root root root | \"a\"",
            "root ::= \"a\" root | root \"b\" | \"c\"",
            "root ::= (\"a\" root){2} | \"c\"",
        ];
        assert_eq!(solved.map(same), [true; 11]);
        assert_eq!(others.map(same), [false; 4]);
    }

    #[test]
    fn what_would_be_large_stays() {
        // Each rule mentions each: every solution doubles what is before it.
        let all: Vec<String> = (0..20).map(|other| format!("\"a\" r{other}")).collect();
        let rules: Vec<String> =
            (0..20).map(|rule| format!("r{rule} ::= {} | \"b\"\n", all.join(" | "))).collect();
        let mut solved = parse(&rules.concat()).unwrap();
        solve(&mut solved);
        assert!(is_recursive(&solved));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn solutions_have_the_same_texts(
            bodies in prop::collection::vec(
                prop::collection::vec(
                    (prop::collection::vec(0..6_usize, 0..3), prop::option::of(0..3_usize),
                        any::<bool>()),
                    1..4,
                ),
                3,
            ),
        ) {
            let parts = ["\"a\"", "\"b\"", "[bc]", "\"c\"?", "\"ab\"*", "x"];
            let names = ["root", "x", "y"];
            let mut source = String::new();
            for (name, body) in names.iter().zip(bodies) {
                let alternatives: Vec<String> = body
                    .into_iter()
                    .map(|(before, last, is_optional)| {
                        let mut spelled: Vec<&str> =
                            before.iter().map(|&part| parts[part]).collect();
                        spelled.extend(last.map(|rule| names[rule]));
                        let spelled = spelled.join(" ");
                        if spelled.is_empty() {
                            "\"\"".to_owned()
                        } else if is_optional {
                            format!("({spelled})?")
                        } else {
                            spelled
                        }
                    })
                    .collect();
                source.push_str(&format!("{name} ::= {}\n", alternatives.join(" | ")));
            }
            same(&source);
        }
    }
}
