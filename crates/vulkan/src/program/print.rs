//! Graphs as text: one line a launch.
//!
//! ```text
//! 3  blk.0.attn_delta  one_row %7 f32[1,4096] x blk.0.attn_output.weight:q4_0 -> %8 f32[1,5376]
//! ```
//!
//! That is: number and label, what is launched, values that it reads, weights with their formats on
//! the device, values that it writes. Values are numbered in the order in which they appear;
//! `over %3` says that one takes the place of another.

use std::fmt;

use trine_model::listing::{Line, Listing};
use trine_model::{Plan, Source, WeightId};

use super::graph::{
    Form, Graph, Home, Input, Node, Output, ProductKernel, ProductWork, Touch, ValueId, Work,
};
use crate::kernels::attention::Attention;
use crate::kernels::handles::Seen;
use crate::kernels::product::Product;
use crate::pack::format_of;

/// A graph to be printed.
pub(super) struct Printed<'a> {
    graph: &'a Graph,
    plan: &'a Plan,
    /// Values in the order in which they appear.
    order: Vec<ValueId>,
}

impl<'a> Printed<'a> {
    pub(super) fn new(graph: &'a Graph, plan: &'a Plan) -> Self {
        let mut order = Vec::new();
        for node in &graph.nodes {
            node.work.touches(&mut |touch| {
                if !order.contains(&touch.id()) {
                    order.push(touch.id());
                }
            });
        }
        Self { graph, plan, order }
    }

    /// Returns the values that the host brings, and the launches.
    pub(super) fn listing(&self) -> Listing {
        Listing(self.inputs().chain(self.launches()).collect())
    }

    fn launches(&self) -> impl Iterator<Item = Line> {
        self.graph.nodes.iter().enumerate().map(|(number, node)| Line {
            number: Some(number),
            label: node.label.clone(),
            text: self.launch(node),
        })
    }

    fn inputs(&self) -> impl Iterator<Item = Line> {
        self.order.iter().filter_map(|&id| {
            let Home::Host(index) = self.graph.value(id).home else { return None };
            let source = match self.plan.inputs[index].source {
                Source::Part => "rows of the part before".to_owned(),
                Source::Table { table, .. } => {
                    format!("rows of {} by the host", self.weight(table))
                }
                Source::Plan | Source::Picture | Source::State => "rows of the host".to_owned(),
            };
            let text = format!("{source} -> {}", self.form(Form::Rows(id)));
            Some(Line { number: None, label: "input".to_owned(), text })
        })
    }

    /// Returns a line for each launch, without its number and label.
    #[cfg(test)]
    pub(super) fn lines(&self) -> Vec<String> {
        self.graph.nodes.iter().map(|node| self.launch(node)).collect()
    }

    fn launch(&self, node: &Node) -> String {
        let (mut reads, mut uses, mut writes) = (Vec::new(), Vec::new(), Vec::new());
        node.work.touches(&mut |touch| match touch {
            Touch::Read(form) => reads.push(self.form(form)),
            Touch::Write(form) => writes.push(self.form(form) + &self.place(form.id())),
            Touch::Use(id) => {
                uses.push(format!("{} {} bytes", self.number(id), self.graph.value(id).bytes[0]));
            }
        });
        let weights = node.work.weights().into_iter().map(|id| self.weight_of(node, id)).collect();
        let mut line = node.work.name();
        for (mark, parts) in [("", reads), ("x ", weights), ("with ", uses), ("-> ", writes)] {
            if !parts.is_empty() {
                line.push_str(&format!(" {mark}{}", parts.join(", ")));
            }
        }
        if let Some((_, Attention { window: Some(window), .. })) = node.work.attends() {
            line.push_str(&format!(" (window {window})"));
        }
        line
    }

    fn number(&self, id: ValueId) -> String {
        let place = self.order.iter().position(|other| *other == id);
        place.map_or_else(|| "%?".to_owned(), |place| format!("%{place}"))
    }

    fn form(&self, form: Form) -> String {
        let id = form.id();
        let value = self.graph.value(id);
        let kind = match form {
            Form::Rows(_) => "f32",
            Form::Operand(operand) => operand.kind.name(),
        };
        format!("{} {kind}[{},{}]", self.number(id), value.rows, value.columns)
    }

    fn place(&self, id: ValueId) -> String {
        match self.graph.value(id).home {
            Home::Of(before) => format!(" over {}", self.number(before)),
            Home::Handed(_) => " for the guest".to_owned(),
            Home::Lent(_) => " of the guest".to_owned(),
            Home::Own | Home::Host(_) => String::new(),
        }
    }

    /// Returns a weight of a launch, in the format in which it is multiplied.
    fn weight_of(&self, node: &Node, id: WeightId) -> String {
        match &node.work {
            Work::Product(ProductWork { product: Product { matrix, .. }, .. })
                if matrix.weights.contains(&id) =>
            {
                format!("{}:{}", self.plan.weight(id).name, matrix.format.name())
            }
            _ => self.weight(id),
        }
    }

    fn weight(&self, id: WeightId) -> String {
        let weight = self.plan.weight(id);
        if weight.is_matrix() {
            format!("{}:{}", weight.name, format_of(weight.dtype).name())
        } else {
            weight.name.clone()
        }
    }
}

/// Prints all launches, also those of equal layers.
impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.launches().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl ProductWork {
    fn name(&self) -> String {
        let before = match self.product.input {
            Input::Operand(_) => "",
            Input::Norm { .. } => "norm + ",
            Input::NormAddNorm { .. } => "norm_add_norm + ",
        };
        let kernel = match self.kernel {
            ProductKernel::OneRow => "one_row",
            ProductKernel::Matvec => "matvec",
            ProductKernel::Matmul => "matmul",
        };
        let after = match self.product.output {
            Output::Segments(_) => "",
            Output::Biased { .. } => " + bias",
            Output::Activated { .. } => " + bias + gelu",
            Output::Heads { .. } => " + bias as heads",
            Output::Gated(_) | Output::GatedHalves { .. } => " + geglu",
            Output::Gates { .. } => " + geglu of another row",
        };
        format!("{before}{kernel}{after}")
    }
}

impl Work {
    /// Returns what is launched.
    pub(super) fn name(&self) -> String {
        if let Some(name) = self.kernel_name() {
            return name;
        }
        let name = match self {
            Work::Product(work) => return work.name(),
            Work::Lent(work) => work.name(),
            _ => unreachable!("a kernel says what the others are"),
        };
        name.to_owned()
    }

    /// Returns the weights that it reads.
    fn weights(&self) -> Vec<WeightId> {
        let mut weights = Vec::new();
        self.visit(&mut |seen| match seen {
            Seen::Vector(id) | Seen::Matrix(id) => weights.push(id),
            Seen::Joint(joint) => weights.extend(&joint.weights),
            Seen::Rows(..)
            | Seen::Operand(..)
            | Seen::Form(_)
            | Seen::Cache(..)
            | Seen::Shared(..) => {}
        });
        weights
    }
}
