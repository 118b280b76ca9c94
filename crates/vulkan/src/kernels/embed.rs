//! Rows of a table: `shaders/embed.comp`.

use bytemuck::{Pod, Zeroable};

use super::handles::{Addresses, Extent, Handles, Visitor, spans};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most invocations of a workgroup.
const LOCAL_MAX: u32 = 128;

/// Writes the values of the step's tokens: `target[row] = table[token of row] * factor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbedLaunch<H: Handles = Addresses> {
    /// The table, with a row for each token. Tokens beyond it, soft ones among them unless their
    /// rows are there, take its first row, as [`table_row`](trine_backend::table_row) says.
    pub table: H::Matrix,
    /// The step's frame. Its first word is the number of rows. From its fifth word on
    /// each row has four words, the first of which is the token, or 2^31 + `i` for the `i`-th soft
    /// one.
    pub frame: H::Numbers,
    /// (rows, columns) f32. Rows beyond the step's are not written.
    pub target: H::Rows,
    /// The rows and columns.
    pub extent: H::Extent,
    /// Factor of the values.
    pub factor: f32,
    /// (soft tokens, columns) f32: the rows of tokens from 2^31 on, as they are.
    pub soft: Option<H::Rows>,
    /// Places on a side of the grid if tokens are places, `row * side + column`: a row is then the
    /// sum of the table's rows `column` and `side + row`, without the factor. 0 for tokens.
    pub side: usize,
}

impl<H: Handles> EmbedLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> EmbedLaunch<B> {
        EmbedLaunch {
            table: by.matrix(self.table),
            frame: by.numbers(self.frame),
            soft: self.soft.map(|soft| by.read(soft)),
            target: by.write(self.target),
            extent: by.extent(self.extent, self.target),
            factor: self.factor,
            side: self.side,
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        match self.soft {
            _ if self.side > 0 => "places",
            None => "embed",
            Some(_) => "embed + insert",
        }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    codes: u64,
    high: u64,
    scales: u64,
    supers: u64,
    frame: u64,
    target: u64,
    soft: u64,
    columns: u32,
    vocabulary: u32,
    factor: f32,
    side: u32,
}

impl EmbedLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let quads = self.table.columns.div_ceil(4) as u32;
        let local = quads.next_power_of_two().clamp(32, LOCAL_MAX);
        let shader = Shader::of_matrix("embed", self.table.format.name());
        let key = KernelKey { shader, constants: vec![local], subgroup: None };
        let planes = self.table.planes;
        let Extent { rows, .. } = self.extent;
        let (reads, writes) = spans(|by| _ = self.visit(by));
        let args = Args {
            codes: planes.codes,
            high: planes.high,
            scales: planes.scales,
            supers: planes.supers,
            frame: self.frame,
            target: self.target.address,
            soft: self.soft.map_or(0, |soft| soft.address),
            columns: self.table.columns as u32,
            vocabulary: self.table.rows as u32,
            factor: self.factor,
            side: self.side as u32,
        };
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [quads.div_ceil(local), rows as u32, 1],
            reads,
            writes,
            link: Link::Outside,
            hands: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::Format;
    use crate::pack::tests::{decoded, device_matrix, random_rows};
    use crate::testing::{download, gpu, poisoned, run, upload};

    #[test]
    fn soft_tokens_get_rows_that_are_there() {
        let gpu = gpu();
        let tokens = [3_u32, (1 << 31) + 1, 1 << 31, 5];
        let mut frame = vec![tokens.len() as u32, 0, 0, 0];
        tokens.iter().for_each(|&token| frame.extend([token, 7, 0, 0]));
        let frame = upload(&gpu, &frame);
        for columns in [131, 256] {
            let source = random_rows(Format::F16, 6, columns, 3);
            let (table, _memory) = device_matrix(&gpu, Format::F16, columns, &source);
            let values = decoded(Format::F16, &source, 6 * columns);
            let soft: Vec<f32> = (0..2 * columns).map(|i| i as f32 - 70.0).collect();
            let (rows, target) = (upload(&gpu, &soft), poisoned(&gpu, (16 * columns) as u64));
            let launch = EmbedLaunch {
                table,
                frame: frame.address(),
                target: target.span(),
                extent: Extent { columns, rows: tokens.len(), row_count: 0 },
                factor: 2.0,
                soft: Some(rows.span()),
                side: 0,
            };
            run(&gpu, &[launch.dispatch(&gpu, "embed", 0).unwrap()]);
            let found = download::<f32>(&gpu, &target);
            for (row, at) in [(0, 3), (3, 5)] {
                for c in 0..columns {
                    assert_eq!(found[row * columns + c], 2.0 * values[at * columns + c]);
                }
            }
            assert_eq!(found[columns..2 * columns], soft[columns..]);
            assert_eq!(found[2 * columns..3 * columns], soft[..columns]);
        }
    }

    #[test]
    fn places_get_the_sums_of_a_column_and_a_row() {
        let gpu = gpu();
        let side = 7;
        let places = [0_u32, 6, 48, 23, 7];
        let mut frame = vec![places.len() as u32, 0, 0, 0];
        places.iter().for_each(|&place| frame.extend([place, 7, 0, 0]));
        let frame = upload(&gpu, &frame);
        for (format, columns) in
            [(Format::F32, 131), (Format::F16, 20), (Format::Bf16, 256), (Format::Q8_0, 96)]
        {
            let source = random_rows(format, 2 * side, columns, 3);
            let (table, _memory) = device_matrix(&gpu, format, columns, &source);
            let values = decoded(format, &source, 2 * side * columns);
            let target = poisoned(&gpu, (4 * (places.len() + 2) * columns) as u64);
            let launch = EmbedLaunch {
                table,
                frame: frame.address(),
                target: target.span(),
                extent: Extent { columns, rows: places.len() + 2, row_count: 0 },
                factor: 1.0,
                soft: None,
                side,
            };
            run(&gpu, &[launch.dispatch(&gpu, "places", 0).unwrap()]);
            let found = download::<f32>(&gpu, &target);
            let mut expected = vec![0.0; places.len() * columns];
            let entry = |row: usize, out: &mut [f32]| {
                out.copy_from_slice(&values[row * columns..(row + 1) * columns]);
            };
            trine_backend::reference::ops::places(entry, &places, side, columns, &mut expected);
            assert_eq!(found[..expected.len()], expected, "{format:?}");
            let rest = &found[expected.len()..(places.len() + 2) * columns];
            assert!(rest.iter().all(|x| x.is_nan()), "{format:?}: rows after the step");
        }
    }

    #[test]
    fn tokens_get_their_rows_and_rows_beyond_the_step_are_left_alone() {
        let gpu = gpu();
        let tokens = [4_u32, 0, 16, 9, 99, (1 << 31) + 3];
        let mut frame = vec![tokens.len() as u32, 0, 0, 0];
        tokens.iter().for_each(|&token| frame.extend([token, 7, 0, 0]));
        let frame = upload(&gpu, &frame);
        for format in Format::ALL {
            let columns: &[usize] = match format.dtype().block_elements() {
                256 => &[256, 768],
                32 => &[32, 160, 1152],
                64 => &[64, 192, 1152],
                _ => &[20, 131, 256],
            };
            for &columns in columns {
                let source = random_rows(format, 17, columns, 3);
                let (table, _memory) = device_matrix(&gpu, format, columns, &source);
                let rows = tokens.len() + 2;
                let target = poisoned(&gpu, (4 * rows * columns) as u64);
                let launch = EmbedLaunch {
                    table,
                    frame: frame.address(),
                    target: target.span(),
                    extent: Extent { columns, rows, row_count: 0 },
                    factor: 33.94,
                    soft: None,
                    side: 0,
                };
                run(&gpu, &[launch.dispatch(&gpu, "embed", 0).unwrap()]);
                let found = download::<f32>(&gpu, &target);
                let values = decoded(format, &source, 17 * columns);
                for (row, &token) in tokens.iter().enumerate() {
                    let token = trine_backend::table_row(17, token);
                    for c in 0..columns {
                        let value = values[token * columns + c];
                        let (wanted, found) = (value * 33.94, found[row * columns + c]);
                        // Only the difference with a minimum may be rounded differently: the
                        // device may fuse it.
                        let slack =
                            if format.has_minimum() { 2e-6 * wanted.abs() + 1e-6 } else { 0.0 };
                        assert!(
                            (found - wanted).abs() <= slack,
                            "{format:?} {columns} {row} {c}: {found} {wanted}"
                        );
                    }
                }
                let beyond = &found[tokens.len() * columns..rows * columns];
                assert!(beyond.iter().all(|x| x.is_nan()), "{format:?}");
            }
        }
    }
}
