//! What launches for pictures take over, and what they must not.

use trine_backend::ProgramOptions;
use trine_model::{KvType, Plan, Rows, WeightId, Width};

use super::super::super::graph::{Node, ValueId};
use super::super::super::passes::Attended;
use super::super::walk;
use super::*;
use crate::capabilities::presets::h200;

fn push(graph: &mut Graph, work: Work) {
    graph.nodes.push(Node { step: 0, label: "x".to_owned(), rows: Rows::Tokens, work });
}

/// What is selected on an H200 for no Plan in particular.
fn selection() -> Selection {
    let plan = Plan {
        buffers: Vec::new(),
        weights: Vec::new(),
        caches: Vec::new(),
        steps: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        goal_outputs: Vec::new(),
    };
    let width = Width { tokens: 3, outputs: 3 };
    let options = ProgramOptions { width, kv: KvType::F16, context: 64, sequences: 1, blocks: 2 };
    Selection::new(&h200(), &plan, &options)
}

fn embed(output: ValueId) -> Work {
    Work::Embed { table: WeightId(0), scale: 2.0, soft: None, output }
}

fn insert(source: ValueId, target: ValueId, result: ValueId) -> Work {
    Work::Elements { kind: ElementsKind::Insert { source, target }, result }
}

#[test]
fn tokens_are_looked_up_with_the_rows_of_soft_ones() {
    // Whether something else reads the rows between the two, or the launches are apart.
    for (is_read, is_apart) in [(false, false), (true, false), (false, true)] {
        let mut graph = Graph::new(Width { tokens: 3, outputs: 3 }, Attended::Rows);
        let [rows, soft, other] = [0; 3].map(|_| graph.fresh_rows(3, 64, Home::Own));
        let result = graph.fresh_rows(3, 64, Home::Of(rows));
        push(&mut graph, embed(rows));
        if is_apart {
            push(&mut graph, embed(other));
        }
        push(&mut graph, insert(soft, rows, result));
        if is_read {
            let kind = ElementsKind::Select { source: rows };
            push(&mut graph, Work::Elements { kind, result: other });
        }
        walk(&mut graph, embed_inserts, &selection());
        let joined =
            Work::Embed { table: WeightId(0), scale: 2.0, soft: Some(soft), output: result };
        let is_joined = graph.nodes.len() == 1 && graph.nodes[0].work == joined;
        assert_eq!(is_joined, !is_read && !is_apart, "{:?}", graph.nodes);
        assert_eq!(graph.value(result).home == Home::Own, is_joined);
    }
}
