//! Streams to which sources are added with coefficients of each row: `shaders/mix.comp`.

use bytemuck::{Pod, Zeroable};
use trine_model::TERMS_MAX;

use super::handles::{Addresses, Extent, Handles, Visitor, spans};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Invocations of a workgroup.
const LOCAL: usize = 256;

/// A stream before and after a mix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stream<H: Handles = Addresses> {
    /// (rows, columns) f32.
    pub input: H::Rows,
    /// (rows, columns) f32.
    pub output: H::Rows,
}

/// A launch of `trine_model::Op::Mix`.
#[derive(Debug, Clone, PartialEq)]
pub struct MixLaunch<H: Handles = Addresses> {
    /// At most [`TERMS_MAX`].
    pub streams: Vec<Stream<H>>,
    /// (rows, columns) f32 each: at most [`TERMS_MAX`].
    pub sources: Vec<H::Rows>,
    /// (rows, streams x sources) f32.
    pub coefficients: H::Rows,
    /// Added to each scaled coefficient.
    pub bias: f32,
    /// Factor on the coefficients.
    pub scale: f32,
    /// The rows and columns.
    pub extent: H::Extent,
}

impl<H: Handles> MixLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> MixLaunch<B> {
        let inputs: Vec<_> = self.streams.iter().map(|stream| by.read(stream.input)).collect();
        let sources = self.sources.iter().map(|&source| by.read(source)).collect();
        let coefficients = by.read(self.coefficients);
        let outputs = self.streams.iter().map(|stream| by.write(stream.output));
        let streams = inputs.into_iter().zip(outputs);
        MixLaunch {
            streams: streams.map(|(input, output)| Stream { input, output }).collect(),
            sources,
            coefficients,
            bias: self.bias,
            scale: self.scale,
            extent: by.extent(self.extent, self.streams[0].input),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        "mix"
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    inputs: [u64; TERMS_MAX],
    outputs: [u64; TERMS_MAX],
    sources: [u64; TERMS_MAX],
    coefficients: u64,
    rows: u64,
    chain: u64,
}

/// Returns the addresses of some spans, and 0 after the last.
///
/// # Panics
/// If there are more than [`TERMS_MAX`].
pub(super) fn addresses(spans: impl ExactSizeIterator<Item = Span>) -> [u64; TERMS_MAX] {
    let mut all = [0; TERMS_MAX];
    assert!(spans.len() <= TERMS_MAX, "{} rows at once", spans.len());
    all.iter_mut().zip(spans).for_each(|(to, span)| *to = span.address);
    all
}

impl MixLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If there are more streams or sources than [`TERMS_MAX`].
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Extent { columns, rows, row_count } = self.extent;
        let args = Args {
            inputs: addresses(self.streams.iter().map(|stream| stream.input)),
            outputs: addresses(self.streams.iter().map(|stream| stream.output)),
            sources: addresses(self.sources.iter().copied()),
            coefficients: self.coefficients.address,
            rows: row_count,
            chain: 0,
        };
        let constants = vec![
            LOCAL as u32,
            self.streams.len() as u32,
            self.sources.len() as u32,
            columns as u32,
            self.bias.to_bits(),
            self.scale.to_bits(),
        ];
        let key = KernelKey { shader: Shader("mix"), constants, subgroup: None };
        let (reads, writes) = spans(|by| _ = self.visit(by));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [columns.div_ceil(LOCAL) as u32, rows as u32, 1],
            reads,
            writes,
            link: Link::Able {
                offset: std::mem::offset_of!(Args, chain),
                early: None,
                fill: Fill::Little,
            },
            hands: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::reference::ops::{self, Coefficients};

    use super::*;
    use crate::kernels::rows::tests::random;
    use crate::raw::memory::Buffer;
    use crate::testing::{download, gpu, poisoned, run, upload};

    #[test]
    fn mixes_agree_with_the_reference() {
        let gpu = gpu();
        for (case, (streams, sources, columns, rows)) in
            [(1, 1, 1, 1), (4, 4, 300, 3), (3, 1, 257, 2), (2, 4, 33, 5)].into_iter().enumerate()
        {
            let seed = 20 * case as u64;
            let values = |at: usize| random(columns * rows, seed + at as u64, 3.0);
            let inputs: Vec<_> = (0..streams).map(values).collect();
            let others: Vec<_> = (4..4 + sources).map(values).collect();
            let coefficients = random(rows * streams * sources, seed + 9, 2.0);
            let on_device = |all: &[Vec<f32>]| -> Vec<_> {
                all.iter().map(|values| upload(&gpu, values)).collect()
            };
            let (first, second) = (on_device(&inputs), on_device(&others));
            let given = upload(&gpu, &coefficients);
            // There is room for a row that the step does not have.
            let bytes = 4 * (columns * (rows + 1)) as u64;
            let outputs: Vec<_> = (0..streams).map(|_| poisoned(&gpu, bytes)).collect();
            let count = upload(&gpu, &[rows as u32]);
            let streams = first.iter().zip(&outputs);
            let launch = MixLaunch {
                streams: streams
                    .map(|(input, output)| Stream { input: input.span(), output: output.span() })
                    .collect(),
                sources: second.iter().map(Buffer::span).collect(),
                coefficients: given.span(),
                bias: 0.5,
                scale: 0.25,
                extent: Extent { columns, rows: rows + 1, row_count: count.address() },
            };
            run(&gpu, &[launch.dispatch(&gpu, "mix", 0).unwrap()]);
            let sources: Vec<&[f32]> = others.iter().map(Vec::as_slice).collect();
            for (stream, (input, output)) in inputs.iter().zip(&outputs).enumerate() {
                let coefficients = Coefficients {
                    values: &coefficients,
                    width: outputs.len() * sources.len(),
                    first: stream * sources.len(),
                    bias: 0.5,
                    scale: 0.25,
                };
                let mut expected = vec![0.0; columns * rows];
                ops::mix(input, &sources, &coefficients, columns, &mut expected);
                let found: Vec<f32> = download(&gpu, output);
                for (at, wanted) in expected.iter().enumerate() {
                    assert!((found[at] - wanted).abs() <= 1e-5, "{case} {stream} {at}");
                }
                let rest = &found[columns * rows..columns * (rows + 1)];
                assert!(rest.iter().all(|x| x.is_nan()), "a row beyond the step");
            }
        }
    }
}
