//! What launches hold in place of memory, and one function of each that names it.
//!
//! A launch is described once, by the struct of its kernel. While a Plan is lowered the struct
//! holds names of values and weights; when the launch is recorded it holds [`Addresses`]. Its
//! function `visit` hands each operand to a [`Visitor`] once, with what the launch does with it,
//! and returns the launch over what it got back. Which values a launch touches, how it is printed,
//! where they are placed, what a dispatch reads and writes, and the dispatch itself follow from it.

use std::fmt::Debug;

use super::attention::{CacheSpan, FrameAddresses};
use super::operand::Operand;
use crate::dispatch::Span;
use crate::pack::Matrix;

/// What a launch holds in place of memory.
pub trait Handles: Debug + Clone + Copy + PartialEq {
    /// f32 rows.
    type Rows: Debug + Clone + Copy + PartialEq;
    /// An operand of a product.
    type Operand: Debug + Clone + Copy + PartialEq;
    /// f32 rows or an operand of a product.
    type Form: Debug + Clone + Copy + PartialEq;
    /// A vector of the model, f32.
    type Vector: Debug + Clone + Copy + PartialEq;
    /// A matrix of the model.
    type Matrix: Debug + Clone + Copy + PartialEq;
    /// Matrices of the model that lie together.
    type Joint: Debug + Clone + PartialEq;
    /// Keys and values of a layer.
    type Cache: Debug + Clone + Copy + PartialEq;
    /// A table of turns ([`turns`](super::heads::turns)).
    type Turns: Debug + Clone + Copy + PartialEq;
    /// What the host writes for the rows of a step.
    type Frame: Debug + Clone + Copy + PartialEq;
    /// Memory that launches share beside their values.
    type Shared: Debug + Clone + Copy + PartialEq;
    /// Numbers that the host writes for a step, u32.
    type Numbers: Debug + Clone + Copy + PartialEq;
    /// The unit of a product's results in halves.
    type Unit: Debug + Clone + Copy + PartialEq;
    /// How many rows and columns there are.
    type Extent: Debug + Clone + Copy + PartialEq;
}

/// Handles that are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses;

impl Handles for Addresses {
    type Rows = Span;
    type Operand = Operand;
    type Form = Operand;
    type Vector = u64;
    type Matrix = Matrix;
    type Joint = Matrix;
    type Cache = CacheSpan;
    type Turns = u64;
    type Frame = FrameAddresses;
    type Shared = Span;
    type Numbers = u64;
    type Unit = f32;
    type Extent = Extent;
}

/// Nothing: what a visitor returns that only looks.
impl Handles for () {
    type Rows = ();
    type Operand = ();
    type Form = ();
    type Vector = ();
    type Matrix = ();
    type Joint = ();
    type Cache = ();
    type Turns = ();
    type Frame = ();
    type Shared = ();
    type Numbers = ();
    type Unit = ();
    type Extent = ();
}

/// The rows and columns of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Columns of a row.
    pub columns: usize,
    /// Most rows.
    pub rows: usize,
    /// Address of the number of rows in the step.
    pub row_count: u64,
}

/// What a launch does with an operand. One that it changes in place has two names while a Plan is
/// lowered: it reads the old value and writes the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It uses the values.
    Read,
    /// It sets them.
    Write,
}

/// Sees the operands of a launch over `A`, and gives those of the same launch over `B`.
pub trait Visitor<A: Handles, B: Handles> {
    /// Sees f32 rows.
    fn rows(&mut self, role: Role, rows: A::Rows) -> B::Rows;

    /// Sees an operand of a product.
    fn operand(&mut self, role: Role, operand: A::Operand) -> B::Operand;

    /// Sees f32 rows or an operand that is read.
    fn form(&mut self, form: A::Form) -> B::Form;

    /// Sees a vector of the model.
    fn vector(&mut self, vector: A::Vector) -> B::Vector;

    /// Sees a matrix of the model.
    fn matrix(&mut self, matrix: A::Matrix) -> B::Matrix;

    /// Sees matrices that lie together, and gives what begins with the row `first` of them.
    fn joint(&mut self, joint: &A::Joint, first: usize) -> B::Joint;

    /// Sees keys and values.
    fn cache(&mut self, role: Role, cache: A::Cache) -> B::Cache;

    /// Sees a table of turns.
    fn turns(&mut self, turns: A::Turns) -> B::Turns;

    /// Sees what the host writes for the rows of a step.
    fn frame(&mut self, frame: A::Frame) -> B::Frame;

    /// Sees memory that launches share.
    fn shared(&mut self, role: Role, shared: A::Shared) -> B::Shared;

    /// Sees numbers that the host writes for a step.
    fn numbers(&mut self, numbers: A::Numbers) -> B::Numbers;

    /// Returns the unit in which the results of a product with these matrices are counted.
    fn unit(&mut self, unit: A::Unit, joint: &A::Joint) -> B::Unit;

    /// Returns the extent of a launch whose rows have as many columns as these.
    fn extent(&mut self, extent: A::Extent, like: A::Rows) -> B::Extent;

    /// Sees f32 rows that are read.
    fn read(&mut self, rows: A::Rows) -> B::Rows {
        self.rows(Role::Read, rows)
    }

    /// Sees f32 rows of which columns from `first` on are read, and gives what begins with these.
    fn read_from(&mut self, rows: A::Rows, first: usize) -> B::Rows;

    /// Sees f32 rows that are written.
    fn write(&mut self, rows: A::Rows) -> B::Rows {
        self.rows(Role::Write, rows)
    }
}

/// An operand of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Seen<'a, H: Handles> {
    /// f32 rows.
    Rows(Role, H::Rows),
    /// An operand of a product.
    Operand(Role, H::Operand),
    /// f32 rows or an operand, which are read.
    Form(H::Form),
    /// A vector of the model.
    Vector(H::Vector),
    /// A matrix of the model.
    Matrix(H::Matrix),
    /// Matrices that lie together.
    Joint(&'a H::Joint),
    /// Keys and values.
    Cache(Role, H::Cache),
    /// Memory that launches share.
    Shared(Role, H::Shared),
}

/// A visitor that only looks.
pub struct Look<'a, H: Handles>(pub &'a mut dyn FnMut(Seen<'_, H>));

impl<H: Handles> Visitor<H, ()> for Look<'_, H> {
    fn rows(&mut self, role: Role, rows: H::Rows) {
        self.0(Seen::Rows(role, rows));
    }

    fn operand(&mut self, role: Role, operand: H::Operand) {
        self.0(Seen::Operand(role, operand));
    }

    fn form(&mut self, form: H::Form) {
        self.0(Seen::Form(form));
    }

    fn vector(&mut self, vector: H::Vector) {
        self.0(Seen::Vector(vector));
    }

    fn matrix(&mut self, matrix: H::Matrix) {
        self.0(Seen::Matrix(matrix));
    }

    fn joint(&mut self, joint: &H::Joint, _: usize) {
        self.0(Seen::Joint(joint));
    }

    fn cache(&mut self, role: Role, cache: H::Cache) {
        self.0(Seen::Cache(role, cache));
    }

    fn turns(&mut self, _: H::Turns) {}

    fn frame(&mut self, _: H::Frame) {}

    fn shared(&mut self, role: Role, shared: H::Shared) {
        self.0(Seen::Shared(role, shared));
    }

    fn numbers(&mut self, _: H::Numbers) {}

    fn unit(&mut self, _: H::Unit, _: &H::Joint) {}

    fn read_from(&mut self, rows: H::Rows, _: usize) {
        self.rows(Role::Read, rows);
    }

    fn extent(&mut self, _: H::Extent, _: H::Rows) {}
}

/// Returns the memory that a launch reads, apart from weights, and the memory that it writes.
/// `visit` visits it.
pub(super) fn spans(visit: impl FnOnce(&mut Look<'_, Addresses>)) -> (Vec<Span>, Vec<Span>) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    visit(&mut Look(&mut |seen| {
        let mut add = |role, span| match role {
            Role::Read => reads.push(span),
            Role::Write => writes.push(span),
        };
        match seen {
            Seen::Rows(role, span) | Seen::Shared(role, span) => add(role, span),
            Seen::Cache(role, cache) => add(role, cache.span),
            Seen::Operand(role, operand) => operand.spans().for_each(|span| add(role, span)),
            Seen::Form(operand) => operand.spans().for_each(|span| add(Role::Read, span)),
            Seen::Vector(_) | Seen::Matrix(_) | Seen::Joint(_) => {}
        }
    }));
    (reads, writes)
}

/// The result of a launch, in each form that another launch reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Made<H: Handles = Addresses> {
    /// As f32 rows.
    Rows(H::Rows),
    /// As an operand.
    Operand(H::Operand),
    /// As both.
    Both(H::Rows, H::Operand),
}

impl<H: Handles> Made<H> {
    /// Returns the f32 rows, if they are made.
    pub fn rows(self) -> Option<H::Rows> {
        match self {
            Made::Rows(rows) | Made::Both(rows, _) => Some(rows),
            Made::Operand(_) => None,
        }
    }

    /// Returns the operand, if one is made.
    pub fn operand(self) -> Option<H::Operand> {
        match self {
            Made::Operand(operand) | Made::Both(_, operand) => Some(operand),
            Made::Rows(_) => None,
        }
    }

    pub(crate) fn visit<B: Handles>(self, by: &mut impl Visitor<H, B>) -> Made<B> {
        match self {
            Made::Rows(rows) => Made::Rows(by.write(rows)),
            Made::Operand(operand) => Made::Operand(by.operand(Role::Write, operand)),
            Made::Both(rows, operand) => {
                Made::Both(by.write(rows), by.operand(Role::Write, operand))
            }
        }
    }
}
