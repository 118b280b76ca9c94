//! A device that runs the scalar reference.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use trine_model::away::{Away, aways};
use trine_model::{BufferId, Goal, Heads, Model, Op, Plan, Rows, Source, Term, WeightId};
use trine_weights::Tensor;

use super::cache::{ReferenceCache, RowPlace};
use super::ops::{self, Attention, Coefficients, PlaceRotation};
use super::products::Products;
use crate::aside::LoadAside;
use crate::batch::{Batch, ProgramOptions};
use crate::device::Device;
use crate::error::BackendError;
use crate::flights::{Flights, InFlight};
use crate::gather::gather;
use crate::guest::Job;
use crate::hosted::Hosted;
use crate::overflow::{Noted, What};
use crate::pages::{KvPage, PageLayout, Pages};
use crate::program::{Facts, Memory, Program, Results};

mod expert_ops;

/// Runs Plans with the scalar reference, one operation after the other on one thread.
#[derive(Debug, Default)]
pub struct ReferenceDevice {
    products: Products,
}

impl ReferenceDevice {
    /// Creates the device.
    pub const fn new() -> Self {
        Self { products: Products::Exact }
    }

    /// Creates one whose products compute as other hardware does.
    pub fn computing(products: Products) -> Self {
        Self { products }
    }
}

impl Device for ReferenceDevice {
    fn name(&self) -> String {
        "reference (scalar)".to_owned()
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        Ok(Box::new(ReferenceProgram::new(model, plan, *options, self.products)?))
    }

    fn load_beside(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
        aside: LoadAside<'_>,
    ) -> Result<Box<dyn Program>, BackendError> {
        let mut program = ReferenceProgram::new(model, plan, *options, self.products)?;
        let (aside, own) = (aside()?, program.memory());
        program.facts = aside.join(program.facts, own, self.memory());
        program.guest = Some(Hosted::new(aside, &program.facts.plan));
        Ok(Box::new(program))
    }
}

/// A Plan bound to the scalar reference.
struct ReferenceProgram {
    model: Model,
    /// The number of token ids.
    ids: usize,
    facts: Facts,
    products: Products,
    /// One for each weight of the Plan, in its format.
    tensors: Vec<Tensor>,
    /// One for each buffer of the Plan.
    buffers: Vec<Vec<f32>>,
    caches: Vec<ReferenceCache>,
    /// What computes the experts that are aside; without it they are computed here.
    guest: Option<Hosted>,
    profile: Option<Vec<f64>>,
    /// Where values first were not finite.
    noted: Noted,
    stop: Arc<AtomicBool>,
    /// The goal of each step in flight.
    flights: Flights<Goal>,
    /// The goal of the step that was waited for last.
    goal: Goal,
}

impl ReferenceProgram {
    fn new(
        model: &Model,
        plan: Plan,
        options: ProgramOptions,
        products: Products,
    ) -> Result<Self, BackendError> {
        let ids = (0..plan.weights.len()).map(WeightId);
        let converted = ids.map(|id| model.converted_part(&plan, id));
        let tensors = converted.collect::<Result<_, _>>()?;
        let caches: Vec<_> =
            plan.caches.iter().map(|cache| ReferenceCache::new(cache, &options)).collect();
        let buffers = vec![Vec::new(); plan.buffers.len()];
        let layout = format!("reference, {}", options.kv.name());
        let layout = PageLayout::of(layout, &plan.caches, |cache| caches[cache].page_bytes());
        let device = ReferenceDevice::new().name();
        let facts = Facts { pages: Some(layout), ..Facts::new(device, plan, options) };
        Ok(Self {
            model: model.clone(),
            ids: model.ids(&facts.plan),
            facts,
            products,
            tensors,
            buffers,
            caches,
            guest: None,
            profile: None,
            noted: Noted::default(),
            stop: Arc::default(),
            flights: Flights::new(1),
            goal: Goal::Main,
        })
    }
}

impl Program for ReferenceProgram {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        let aside = self.guest.as_ref().map_or(Memory::default(), Hosted::memory);
        let Facts { plan, options, .. } = &self.facts;
        let buffer_bytes = |buffer: &trine_model::Buffer| {
            (options.width.of(buffer.rows) * buffer.columns * size_of::<f32>()) as u64
        };
        Memory {
            weights: 0,
            mapped: plan.weights.iter().map(trine_model::Weight::bytes).sum(),
            caches: plan.caches.iter().map(|cache| options.cache_bytes(cache)).sum(),
            scratch: plan.buffers.iter().map(buffer_bytes).sum(),
        } + aside
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        let Facts { plan, options, .. } = &self.facts;
        batch.check(options, plan, self.ids)?;
        self.flights.check_room()?;
        for (memory, buffer) in self.buffers.iter_mut().zip(&plan.buffers) {
            memory.clear();
            memory.resize(batch.rows(buffer.rows) * buffer.columns, f32::NAN);
        }
        for (id, rows) in plan.given_for(batch.goal).zip(batch.inputs) {
            self.buffers[id.0].copy_from_slice(rows);
        }
        for input in &plan.inputs {
            if let Source::Table { table, scale } = input.source {
                gather(
                    &self.tensors[table.0],
                    scale,
                    batch.tokens,
                    &mut self.buffers[input.buffer.0],
                );
            }
        }
        let (steps, serving) = (plan.steps.clone(), plan.serving(batch.goal));
        let aways = self.guest.as_ref().map_or(Vec::new(), |_| aways(plan));
        for (index, step) in steps.iter().enumerate().filter(|(index, _)| serving[*index]) {
            if self.stop.load(Ordering::Relaxed) {
                return Err(BackendError::Stopped);
            }
            let start = Instant::now();
            match aways.iter().find(|away| away.step == index) {
                Some(away) => self.have_computed(away, batch)?,
                None => self.execute(&step.op, batch),
            }
            if let Some(times) = &mut self.profile {
                times[index] += start.elapsed().as_secs_f64();
            }
            let is_finite = |id: &BufferId| self.buffers[id.0].iter().all(|x| x.is_finite());
            if !step.op.writes().iter().all(is_finite) {
                self.noted.note(index, What::Result);
            }
        }
        self.model.check_intact()?;
        Ok(self.flights.begin(batch.goal))
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        self.goal = self.flights.end(step)?;
        Ok(self)
    }

    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        self.facts.options.check_slots(from, to)?;
        self.caches.iter_mut().for_each(|cache| cache.copy_slot(from, to, positions));
        Ok(())
    }

    fn pages(&mut self) -> Option<&mut dyn Pages> {
        Some(self)
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.guest.iter().for_each(|guest| guest.stop_on(Arc::clone(&stop)));
        self.stop = stop;
    }

    fn take_overflow(&mut self) -> Option<String> {
        self.noted.take(&self.facts.plan)
    }

    fn profile(&mut self, on: bool) -> Vec<f64> {
        let zeros = on.then(|| vec![0.0; self.facts.plan.steps.len()]);
        std::mem::replace(&mut self.profile, zeros).unwrap_or_default()
    }
}

impl Results for ReferenceProgram {
    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        self.facts.check_output(self.goal, index)?;
        Ok(&self.buffers[self.facts.plan.outputs[index].0])
    }
}

impl Pages for ReferenceProgram {
    fn read(&mut self, pages: &[KvPage<'_>], bytes: &mut Vec<u8>) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        let Facts { plan, options, .. } = &self.facts;
        options.check_pages(pages)?;
        for (cache, start) in options.page_places(&plan.caches, pages) {
            self.caches[cache].read_page(start, bytes);
        }
        Ok(())
    }

    fn write(&mut self, pages: &[KvPage<'_>], bytes: &[u8]) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        let Facts { plan, options, pages: layout, .. } = &self.facts;
        options.check_page_bytes(pages, layout.as_ref(), bytes)?;
        let mut rest = bytes;
        for (cache, start) in options.page_places(&plan.caches, pages) {
            let cache = &mut self.caches[cache];
            let (own, others) = rest.split_at(cache.page_bytes());
            cache.write_page(start, own);
            rest = others;
        }
        Ok(())
    }
}

impl ReferenceProgram {
    /// Has the guest compute a part of a step.
    fn have_computed(&mut self, away: &Away, batch: &Batch<'_>) -> Result<(), BackendError> {
        let Self { facts: Facts { plan, .. }, guest, buffers, .. } = self;
        let guest = guest.as_ref().expect("a Plan with something away is loaded beside a guest");
        let op = away.op(plan);
        let (kind, rows) = (plan.rows(op), batch.rows(plan.rows(op)));
        if rows == 0 {
            return Ok(());
        }
        let inputs: Vec<&[f32]> = op.reads().iter().map(|id| &buffers[id.0][..]).collect();
        let exact = if kind == Rows::Tokens { batch.bulk_from.min(rows) } else { rows };
        let job = Job { number: away.job, inputs: &inputs, rows, exact };
        guest.begin(&job)?;
        let mut results = vec![Vec::new(); op.writes().len()];
        guest.finish(&job, &|| true, &mut |index, rows| results[index] = rows.to_vec())?;
        for (id, values) in op.writes().into_iter().zip(results) {
            assert_eq!(values.len(), rows * plan.buffer(id).columns, "rows of a guest's result");
            buffers[id.0] = values;
        }
        Ok(())
    }

    /// Takes a buffer out, so that others can be read while it is written.
    fn take(&mut self, id: BufferId) -> Vec<f32> {
        std::mem::take(&mut self.buffers[id.0])
    }

    fn put(&mut self, id: BufferId, memory: Vec<f32>) {
        self.buffers[id.0] = memory;
    }

    fn columns(&self, id: BufferId) -> usize {
        self.facts.plan.buffer(id).columns
    }

    /// Returns the row of the batch that each row of a buffer stands for.
    fn rows<'a>(
        &self,
        id: BufferId,
        batch: &'a Batch<'_>,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let rows = self.facts.plan.buffer(id).rows;
        (0..batch.rows(rows)).map(move |row| match rows {
            Rows::Tokens => row,
            Rows::Outputs => batch.outputs[row] as usize,
            Rows::Soft => batch.soft_rows().nth(row).expect("there are as many as rows"),
        })
    }

    fn vector(&self, id: WeightId) -> Vec<f32> {
        self.model.vector(self.facts.plan.weight(id))
    }

    /// Runs one operation. A fused operation runs as the plain ones that it replaces.
    fn execute(&mut self, op: &Op, batch: &Batch<'_>) {
        match op {
            Op::Embed { table, scale, output } => {
                let table = &self.tensors[table.0];
                gather(table, *scale, batch.tokens, &mut self.buffers[output.0]);
            }
            Op::Norm { input, weight, epsilon, output } => {
                self.norm(*input, *weight, *epsilon, *output)
            }
            Op::LayerNorm { .. }
            | Op::Gelu { .. }
            | Op::Bias { .. }
            | Op::PositionEmbedding { .. }
            | Op::RotateByPosition { .. }
            | Op::Clamp { .. }
            | Op::Pool { .. }
            | Op::Insert { .. } => self.execute_pictures(op, batch),
            Op::HeadNorm { buffer, weight, heads, epsilon } => {
                let head_dim = self.columns(*buffer) / heads;
                let weight = weight.map_or_else(|| vec![1.0; head_dim], |id| self.vector(id));
                self.head_norm(*buffer, &weight, *epsilon);
            }
            Op::Rotate { buffer, heads, rope } => {
                let (head_dim, rows) = (self.columns(*buffer) / heads, self.rows(*buffer, batch));
                let positions: Vec<u32> = rows.map(|row| batch.positions[row]).collect();
                ops::rotate(&mut self.buffers[buffer.0], &positions, *heads, head_dim, *rope);
            }
            Op::MatMul { input, products } => {
                for product in products {
                    self.matmul(*input, product.weight, product.output);
                }
            }
            Op::StoreKv { key, value, cache } => self.store_kv(*key, *value, cache.0, batch),
            Op::Attend { query, cache, heads, scale, window, ahead, output } => {
                let (heads, scale, window) = (*heads, *scale, *window);
                let attention = Attention { heads, scale, window, ahead: ahead.most(window) };
                self.attend(*query, cache.0, attention, *output, batch);
            }
            Op::Geglu { gate, up, first, output } => self.geglu(*gate, *up, *first, *output),
            Op::Select { input, output } => self.select(*input, *output, batch),
            Op::Away { steps } => steps.iter().for_each(|step| self.execute(&step.op, batch)),
            Op::Join { parts, output } => self.join(parts, *output),
            Op::Add { .. }
            | Op::Sum { .. }
            | Op::Mix { .. }
            | Op::Rescale { .. }
            | Op::Scale { .. }
            | Op::Cutoff { .. }
            | Op::Softcap { .. } => self.execute_elements(op),
            Op::Route { .. } | Op::GatedExperts { .. } | Op::SumExperts { .. } => {
                self.execute_experts(op);
            }
            Op::Search { input, routes, clusters, tokens, output } => {
                self.search(*input, *routes, *clusters, *tokens, *output);
            }
            fused => self.execute_fused(fused, batch),
        }
    }

    /// Runs an operation that needs nothing but the values of its buffers.
    fn execute_elements(&mut self, op: &Op) {
        match op {
            Op::Add { source, target } => {
                let mut sum = self.take(*target);
                ops::add(&self.buffers[source.0], &mut sum);
                self.put(*target, sum);
            }
            Op::Sum { terms, output } => {
                let mut target = self.take(*output);
                let term = |term: &Term| (term.factor, self.buffers[term.buffer.0].as_slice());
                ops::sum(&terms.iter().map(term).collect::<Vec<_>>(), &mut target);
                self.put(*output, target);
            }
            Op::Mix { streams, sources, coefficients, bias, scale } => {
                for (index, stream) in streams.iter().enumerate() {
                    let mut target = self.take(stream.output);
                    let sources: Vec<&[f32]> =
                        sources.iter().map(|id| self.buffers[id.0].as_slice()).collect();
                    let coefficients = Coefficients {
                        values: &self.buffers[coefficients.0],
                        width: self.columns(*coefficients),
                        first: index * sources.len(),
                        bias: *bias,
                        scale: *scale,
                    };
                    let (input, columns) = (stream.input, self.columns(stream.input));
                    let input = &self.buffers[input.0];
                    ops::mix(input, &sources, &coefficients, columns, &mut target);
                    self.put(stream.output, target);
                }
            }
            Op::Rescale { buffer, like, floor } => {
                let (mut target, columns) = (self.take(*buffer), self.columns(*buffer));
                ops::rescale(&mut target, &self.buffers[like.0], *floor, columns);
                self.put(*buffer, target);
            }
            Op::Scale { input, weight, output } => {
                let (mut target, weight) = (self.take(*output), self.vector(*weight));
                ops::scale(&self.buffers[input.0], &weight, &mut target);
                self.put(*output, target);
            }
            Op::Cutoff { buffer, deviations } => {
                let columns = self.columns(*buffer);
                ops::cutoff(&mut self.buffers[buffer.0], *deviations, columns);
            }
            Op::Softcap { buffer, cap } => ops::softcap(&mut self.buffers[buffer.0], *cap),
            other => unreachable!("{} needs more than its buffers", other.name()),
        }
    }

    /// Runs an operation that pictures need.
    fn execute_pictures(&mut self, op: &Op, batch: &Batch<'_>) {
        match op {
            Op::LayerNorm { input, weight, bias, epsilon, output } => {
                let (weight, bias) = (self.vector(*weight), self.vector(*bias));
                let mut target = self.take(*output);
                ops::layer_norm(&self.buffers[input.0], &weight, &bias, *epsilon, &mut target);
                self.put(*output, target);
            }
            Op::Gelu { buffer } => ops::gelu_all(&mut self.buffers[buffer.0]),
            Op::Bias { buffer, weight } => {
                let weight = self.vector(*weight);
                ops::bias(&mut self.buffers[buffer.0], &weight);
            }
            Op::PositionEmbedding { table, side, output } => {
                let mut target = self.take(*output);
                let tensor = &self.tensors[table.0];
                let row = |entry, row: &mut [f32]| decode(tensor, entry, row);
                ops::places(row, batch.tokens, *side, tensor.columns(), &mut target);
                self.put(*output, target);
            }
            Op::RotateByPosition { buffer, heads, theta, side } => {
                let dim = self.columns(*buffer) / heads;
                let rotation = PlaceRotation { theta: *theta, side: *side };
                ops::rotate_places(
                    &mut self.buffers[buffer.0],
                    batch.tokens,
                    *heads,
                    dim,
                    rotation,
                );
            }
            Op::Clamp { input, low, high, output } => {
                let mut target = self.take(*output);
                ops::clamp(&self.buffers[input.0], [*low, *high], &mut target);
                self.put(*output, target);
            }
            Op::Pool { input, count, output } => {
                let (mut target, columns) = (self.take(*output), self.columns(*input));
                let input = &self.buffers[input.0];
                ops::pool(input, batch.outputs, *count, columns, &mut target);
                self.put(*output, target);
            }
            Op::Insert { source, target } => {
                let (mut all, columns) = (self.take(*target), self.columns(*source));
                let rows = self.buffers[source.0].chunks_exact(columns);
                for (row, values) in batch.soft_rows().zip(rows) {
                    all[row * columns..(row + 1) * columns].copy_from_slice(values);
                }
                self.put(*target, all);
            }
            other => unreachable!("{} is not for pictures", other.name()),
        }
    }

    fn execute_fused(&mut self, op: &Op, batch: &Batch<'_>) {
        match op {
            Op::GatedMatMul { input, gate, up, output } => {
                self.matmul(*input, *gate, *output);
                let gated = self.take(*output);
                self.put(*output, vec![f32::NAN; gated.len()]);
                self.matmul(*input, *up, *output);
                let mut target = vec![f32::NAN; gated.len()];
                ops::geglu(&gated, &self.buffers[output.0], &mut target);
                self.put(*output, target);
            }
            Op::NormAdd { input, weight, epsilon, target, scale } => {
                self.norm_add(*input, *weight, *epsilon, *target);
                self.multiply(*target, *scale);
            }
            Op::NormAddNorm { input, weight, epsilon, target, scale, next_weight, output } => {
                self.norm_add(*input, *weight, *epsilon, *target);
                self.multiply(*target, *scale);
                self.norm(*target, *next_weight, *epsilon, *output);
            }
            Op::PrepareQkv {
                query,
                key,
                value,
                query_norm,
                key_norm,
                heads,
                epsilon,
                rope,
                cache,
                ..
            } => {
                for (buffer, weight) in [(query, query_norm), (key, key_norm)] {
                    self.head_norm(*buffer, &self.vector(*weight), *epsilon);
                }
                let Heads { query: q, kv, dim } = *heads;
                ops::rotate(&mut self.buffers[query.0], batch.positions, q, dim, *rope);
                ops::rotate(&mut self.buffers[key.0], batch.positions, kv, dim, *rope);
                self.store_kv(*key, *value, cache.0, batch);
            }
            plain => unreachable!("{} is not a fused operation", plain.name()),
        }
    }

    fn norm(&mut self, input: BufferId, weight: WeightId, epsilon: f32, output: BufferId) {
        let weight = self.vector(weight);
        let mut target = self.take(output);
        ops::norm(&self.buffers[input.0], &weight, epsilon, &mut target);
        self.put(output, target);
    }

    fn head_norm(&mut self, buffer: BufferId, weight: &[f32], epsilon: f32) {
        let values = self.take(buffer);
        let mut target = vec![f32::NAN; values.len()];
        ops::norm(&values, weight, epsilon, &mut target);
        self.put(buffer, target);
    }

    fn geglu(&mut self, gate: BufferId, up: BufferId, first: usize, output: BufferId) {
        let mut target = self.take(output);
        let (columns, width) = (self.columns(gate), self.columns(up));
        let gates = self.buffers[gate.0].chunks_exact(columns);
        let ups = self.buffers[up.0].chunks_exact(width);
        for ((gate, up), out) in gates.zip(ups).zip(target.chunks_exact_mut(columns)) {
            ops::geglu(gate, &up[first..first + columns], out);
        }
        self.put(output, target);
    }

    fn norm_add(&mut self, input: BufferId, weight: WeightId, epsilon: f32, target: BufferId) {
        let weight = self.vector(weight);
        let mut normed = vec![f32::NAN; self.buffers[input.0].len()];
        ops::norm(&self.buffers[input.0], &weight, epsilon, &mut normed);
        ops::add(&normed, &mut self.buffers[target.0]);
    }

    fn multiply(&mut self, buffer: BufferId, factor: f32) {
        self.buffers[buffer.0].iter_mut().for_each(|value| *value *= factor);
    }

    fn matmul(&mut self, input: BufferId, weight: WeightId, output: BufferId) {
        let mut target = self.take(output);
        let (weight, tensor) = (self.facts.plan.weight(weight), &self.tensors[weight.0]);
        let mut row = vec![f32::NAN; weight.columns];
        let products = match self.facts.plan.buffer(output).rows {
            Rows::Tokens => self.products,
            Rows::Outputs | Rows::Soft => Products::Exact,
        };
        let mut rounded = Vec::new();
        let mut source = &self.buffers[input.0];
        if products != Products::Exact {
            rounded.clone_from(source);
            rounded.chunks_mut(weight.columns).for_each(|row| products.round_input(row));
            source = &rounded;
        }
        let columns = if target.is_empty() { 0 } else { weight.rows };
        for column in 0..columns {
            decode(tensor, column, &mut row);
            if products == Products::Exact {
                ops::matmul_column(source, &row, column, weight.rows, &mut target);
                continue;
            }
            products.round_weights(&mut row);
            let results = target.chunks_exact_mut(weight.rows);
            for (x, y) in source.chunks_exact(weight.columns).zip(results) {
                y[column] = products.dot(x, &row);
            }
        }
        self.put(output, target);
    }

    fn store_kv(&mut self, key: BufferId, value: BufferId, cache: usize, batch: &Batch<'_>) {
        let width = self.columns(key);
        let keys = self.buffers[key.0].chunks_exact(width);
        let values = self.buffers[value.0].chunks_exact(width);
        for (row, (key, value)) in keys.zip(values).enumerate() {
            self.caches[cache].store(place(batch, row), key, value);
        }
    }

    fn attend(
        &mut self,
        query: BufferId,
        cache: usize,
        attention: Attention,
        output: BufferId,
        batch: &Batch<'_>,
    ) {
        let mut target = self.take(output);
        let width = self.columns(query);
        let queries = self.buffers[query.0].chunks_exact(width).zip(self.rows(query, batch));
        for ((query, row), out) in queries.zip(target.chunks_exact_mut(width)) {
            ops::attend(query, &self.caches[cache], place(batch, row), attention, out);
        }
        self.put(output, target);
    }

    fn join(&mut self, parts: &[BufferId], output: BufferId) {
        let mut target = self.take(output);
        let parts: Vec<(&[f32], usize)> =
            parts.iter().map(|id| (self.buffers[id.0].as_slice(), self.columns(*id))).collect();
        ops::join(&parts, &mut target);
        self.put(output, target);
    }

    fn select(&mut self, input: BufferId, output: BufferId, batch: &Batch<'_>) {
        let mut target = self.take(output);
        let width = self.columns(input);
        for (out, &row) in target.chunks_exact_mut(width).zip(batch.outputs) {
            out.copy_from_slice(&self.buffers[input.0][row as usize * width..][..width]);
        }
        self.put(output, target);
    }
}

fn place<'a>(batch: &'a Batch<'a>, row: usize) -> RowPlace<'a> {
    RowPlace {
        sequence: batch.sequences[batch.sequence_of[row] as usize],
        position: batch.positions[row] as usize,
        ahead: batch.ahead(row),
    }
}

fn decode(tensor: &Tensor, index: usize, row: &mut [f32]) {
    tensor.decode_row(index, row).expect("row lengths were checked when the model was opened");
}
