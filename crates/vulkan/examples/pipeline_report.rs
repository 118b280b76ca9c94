//! Compiles the kernels that Gemma 3 and 3n need on this machine's device and prints what its
//! driver reports of each, as JSON. `cargo xtask radv` makes its report from this.
//!
//! Nothing runs: launches are laid out over addresses without memory.

use std::collections::{BTreeMap, HashSet};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use trine_model::{Heads, KvType};
use trine_vulkan::dispatch::{Dispatch, Span};
use trine_vulkan::kernels::attention::{
    AttendDecodeShape, AttendTileShape, AttendUnits, Attention, DecodeLaunch, FrameAddresses,
    Fused, KvCache, MatrixLaunch, MatrixOutput, OwnRows, TileLaunch,
};
use trine_vulkan::kernels::elements::{ElementWork, ElementsLaunch};
use trine_vulkan::kernels::embed::EmbedLaunch;
use trine_vulkan::kernels::heads::{HeadsLaunch, Stored, Turned};
use trine_vulkan::kernels::matmul::{MatmulLaunch, MatmulShape};
use trine_vulkan::kernels::matvec::MatvecLaunch;
use trine_vulkan::kernels::mix::MixLaunch;
use trine_vulkan::kernels::operand::{Operand, OperandKind};
use trine_vulkan::kernels::product::{
    Product, ProductInput, ProductLaunch, ProductOutput, Segment,
};
use trine_vulkan::kernels::route::{Added, FirstStream, RouteLaunch, Router};
use trine_vulkan::kernels::rows::{RowWork, RowsLaunch};
use trine_vulkan::kernels::stream::{self, StreamLaunch};
use trine_vulkan::kernels::sum::{Finish, SumLaunch, SumTerm};
use trine_vulkan::kernels::top::{self, TopLaunch};
use trine_vulkan::pack::{Format, Matrix};
use trine_vulkan::raw::pipeline::KernelKey;
use trine_vulkan::{Choice, Gpu, GpuError};

/// Sizes of a model: table of Gemma 3's sizes in its technical report (arXiv 2503.19786) and
/// `config.json`.
struct Sizes {
    name: &'static str,
    hidden: usize,
    feed_forward: usize,
    heads: Heads,
}

impl Sizes {
    /// Columns of the queries, of the keys and of the values.
    fn parts(&self) -> [usize; 3] {
        let Heads { query, kv, dim } = self.heads;
        [query * dim, kv * dim, kv * dim]
    }
}

const MODELS: [Sizes; 3] = [
    Sizes {
        name: "27B",
        hidden: 5376,
        feed_forward: 21504,
        heads: Heads { query: 32, kv: 16, dim: 128 },
    },
    Sizes {
        name: "4B",
        hidden: 2560,
        feed_forward: 10240,
        heads: Heads { query: 8, kv: 4, dim: 256 },
    },
    Sizes {
        name: "1B",
        hidden: 1152,
        feed_forward: 6912,
        heads: Heads { query: 4, kv: 1, dim: 256 },
    },
];

/// Sizes of Gemma 3n: `config.json` of E2B.
const E2B: Sizes = Sizes {
    name: "E2B",
    hidden: 2048,
    feed_forward: 8192,
    heads: Heads { query: 8, kv: 2, dim: 256 },
};
/// Inner width of its low-rank residual.
const LAUREL: usize = 64;

/// Formats of quantised weights, the commonest first.
const FORMATS: [Format; 4] = [Format::Q4_0, Format::Q4K, Format::Q6K, Format::Q8_0];

/// Rows of activations of products in one read of the weights.
const NARROW: [usize; 4] = [1, 2, 4, 8];
/// Rows of activations of tiled products.
const WIDE: [usize; 4] = [16, 32, 64, 512];

const EPSILON: f32 = 1e-6;

fn main() -> ExitCode {
    match run() {
        Ok(output) => {
            println!("{output}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Value, GpuError> {
    let gpu = trine_vulkan::open_gpu(&Choice::Any, None)?;
    let mut report = Report { gpu, known: HashSet::new(), kernels: Vec::new(), next: 1 << 40 };
    for format in FORMATS {
        for sizes in &MODELS {
            report.narrow(format, sizes)?;
        }
    }
    for format in FORMATS {
        report.wide(format, &MODELS[0])?;
    }
    for sizes in &MODELS {
        report.rows(sizes)?;
    }
    for sizes in MODELS.iter().chain([&E2B]) {
        for kind in [KvType::F16, KvType::Int8] {
            report.attention(kind, sizes)?;
        }
    }
    report.streams()?;
    report.others(&MODELS[0])?;
    Ok(json!({ "device": report.gpu.capabilities().name, "kernels": report.kernels }))
}

struct Report {
    gpu: Arc<Gpu>,
    /// The kernels that were reported.
    known: HashSet<KernelKey>,
    kernels: Vec<Value>,
    /// The next address at which nothing has been laid out.
    next: u64,
}

impl Report {
    /// Returns addresses without memory.
    fn span(&mut self, bytes: usize) -> Span {
        let span = Span { address: self.next, bytes: bytes as u64 };
        self.next += (bytes as u64).next_multiple_of(256);
        span
    }

    fn floats(&mut self, rows: usize, columns: usize) -> Span {
        self.span(4 * rows * columns)
    }

    fn operand(&mut self, kind: OperandKind, rows: usize, columns: usize) -> Operand {
        let codes = self.span(rows * kind.code_bytes(columns));
        let scales = self.span(rows * kind.scale_bytes(columns));
        Operand { kind, codes, scales }
    }

    fn matrix(&mut self, format: Format, rows: usize, columns: usize) -> Matrix {
        let (matrix, bytes) =
            Matrix::at(self.next, format, rows, columns).expect("the sizes are small");
        self.next += bytes.next_multiple_of(256);
        matrix
    }

    /// Lays out a launch that reads packed weights or a cache.
    fn add_wide(
        &mut self,
        name: &str,
        expects: &[&str],
        dispatch: impl FnOnce(&Gpu) -> Result<Dispatch, GpuError>,
    ) -> Result<(), GpuError> {
        self.add_any(name, expects, true, |gpu| dispatch(gpu).map(drop))
    }

    /// Lays out a launch of another kind.
    fn add(
        &mut self,
        name: &str,
        dispatch: impl FnOnce(&Gpu) -> Result<Dispatch, GpuError>,
    ) -> Result<(), GpuError> {
        self.add_any(name, &[], false, |gpu| dispatch(gpu).map(drop))
    }

    /// Lays out a launch and reports the kernels that it needs, except those already reported.
    fn add_any(
        &mut self,
        name: &str,
        expects: &[&str],
        wide: bool,
        dispatch: impl FnOnce(&Gpu) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        dispatch(&self.gpu)?;
        let mut keys = self.gpu.kernels();
        keys.sort_by_key(|key| (key.shader, key.constants.clone()));
        for key in keys {
            if !self.known.insert(key.clone()) {
                continue;
            }
            let report = self.gpu.report(&key)?;
            let statistics: BTreeMap<_, _> = report.statistics.into_iter().collect();
            self.kernels.push(json!({
                "name": name,
                "shader": key.shader.0,
                "constants": key.constants,
                "subgroup": report.subgroup,
                "expects": expects,
                "wide": wide,
                "statistics": statistics,
                "assembly": report.assembly,
            }));
        }
        Ok(())
    }

    /// The products of a layer with few rows.
    fn narrow(&mut self, format: Format, sizes: &Sizes) -> Result<(), GpuError> {
        let Sizes { name, hidden, feed_forward, .. } = sizes;
        let parts = sizes.parts();
        let expects: &[&str] = if format.is_float() { &[] } else { &["v_dot4"] };
        for width in NARROW {
            let rows = if width == 1 { "row" } else { "rows" };
            let title = |what: &str| format!("{name} {what}, {width} {rows}");
            let residual = self.floats(1, *hidden);
            let norm = ProductInput::NormAddNorm {
                x: residual,
                scale: 1.0,
                added: self.floats(1, *hidden),
                added_weight: self.floats(1, *hidden).address,
                weight: self.floats(1, *hidden).address,
                epsilon: EPSILON,
                x_out: self.floats(1, *hidden),
            };
            let operand = self.operand(OperandKind::Fixed16, width, *hidden);
            let input = if width == 1 { norm } else { ProductInput::Operand(operand) };

            let segments = parts.map(|rows| Segment { rows, target: self.floats(width, rows) });
            let product = Product {
                matrix: self.matrix(format, parts.iter().sum(), *hidden),
                width,
                input,
                output: ProductOutput::Segments(&segments),
            };
            self.narrow_product(&title("queries, keys, values"), expects, product)?;

            let handed_on = self.operand(OperandKind::Fixed16, width, *feed_forward);
            let product = Product {
                matrix: self.matrix(format, 2 * feed_forward, *hidden),
                width,
                input,
                output: ProductOutput::Gated { plain: None, operand: Some(handed_on) },
            };
            self.narrow_product(&title("gate and up"), expects, product)?;

            let target = self.floats(width, *hidden);
            let segments = [Segment { rows: *hidden, target }];
            let product = Product {
                matrix: self.matrix(format, *hidden, *feed_forward),
                width,
                input: ProductInput::Operand(handed_on),
                output: ProductOutput::Segments(&segments),
            };
            self.narrow_product(&title("down"), expects, product)?;
        }
        Ok(())
    }

    fn narrow_product(
        &mut self,
        name: &str,
        expects: &[&str],
        product: Product<'_>,
    ) -> Result<(), GpuError> {
        let norms = !matches!(product.input, ProductInput::Operand(_));
        let Matrix { format, columns, rows, .. } = product.matrix;
        if product.width > 1 || !stream::takes(self.gpu.capabilities(), format, columns, norms) {
            let launch = MatvecLaunch(product);
            let shape = launch.offer(self.gpu.capabilities())[0];
            return self.add_wide(name, expects, |gpu| launch.dispatch(gpu, shape, name, 0));
        }
        let plain = self.floats(1, columns);
        let output = self.floats(1, rows / 2);
        let launch = StreamLaunch(Product {
            input: if norms {
                product.input
            } else {
                let scales = Span { address: 0, bytes: 0 };
                let kind = OperandKind::Plain;
                ProductInput::Operand(Operand { kind, codes: plain, scales })
            },
            output: match product.output {
                ProductOutput::Gated { .. } => {
                    ProductOutput::Gated { plain: Some(output), operand: None }
                }
                segments => segments,
            },
            ..product
        });
        let shape = launch.offer(self.gpu.capabilities())[0];
        self.add_wide(name, expects, |gpu| launch.dispatch(gpu, shape, name, 0))
    }

    /// The products of a layer with many rows, on matrix units and with dot products.
    fn wide(&mut self, format: Format, sizes: &Sizes) -> Result<(), GpuError> {
        let Sizes { name, hidden, feed_forward, .. } = sizes;
        for width in WIDE {
            let kinds = [(OperandKind::Halves, "v_wmma"), (OperandKind::Fixed16, "v_dot4")];
            for (kind, expected) in kinds {
                let operand = self.operand(kind, width, *hidden);
                let output = if kind == OperandKind::Halves {
                    let operand = self.operand(kind, width, *feed_forward);
                    ProductOutput::GatedHalves { operand, unit: 1.0 }
                } else {
                    ProductOutput::Gated {
                        plain: Some(self.floats(width, *feed_forward)),
                        operand: None,
                    }
                };
                let gated = Product {
                    matrix: self.matrix(format, 2 * feed_forward, *hidden),
                    width,
                    input: ProductInput::Operand(operand),
                    output,
                };
                self.wide_product(&format!("{name} gate and up, {width} rows"), expected, gated)?;

                let operand = self.operand(kind, width, *feed_forward);
                let segments = [Segment { rows: *hidden, target: self.floats(width, *hidden) }];
                let down = Product {
                    matrix: self.matrix(format, *hidden, *feed_forward),
                    width,
                    input: ProductInput::Operand(operand),
                    output: ProductOutput::Segments(&segments),
                };
                self.wide_product(&format!("{name} down, {width} rows"), expected, down)?;
            }
        }
        Ok(())
    }

    fn wide_product(
        &mut self,
        name: &str,
        expected: &str,
        product: Product<'_>,
    ) -> Result<(), GpuError> {
        let mut launch = MatmulLaunch { product, scratch: None };
        let shape = MatmulShape::default_for(self.gpu.capabilities(), &launch);
        let bytes = launch.scratch_bytes(&shape) as usize;
        launch.scratch = Some(self.span(bytes));
        self.add_wide(name, &[expected], |gpu| launch.dispatch(gpu, shape, name, 0))
    }

    /// Norms and conversions.
    fn rows(&mut self, sizes: &Sizes) -> Result<(), GpuError> {
        let Sizes { name, hidden, feed_forward, .. } = sizes;
        let rows = 16;
        let weight = self.floats(1, *hidden).address;
        let target = self.floats(rows, *hidden);
        let works = [
            ("norm", RowWork::Norm { weight }),
            ("norm, addition", RowWork::NormAdd { weight, target, scale: 1.0 }),
            (
                "norm, addition, norm",
                RowWork::NormAddNorm { weight, target, scale: 1.0, next_weight: weight },
            ),
        ];
        for kind in [OperandKind::Fixed16, OperandKind::Halves] {
            for (what, work) in works {
                let adds = matches!(work, RowWork::NormAdd { .. });
                let operand = (!adds).then(|| self.operand(kind, rows, *hidden));
                let launch = self.rows_launch(work, *hidden, rows, operand);
                let title = format!("{name} {what}");
                self.add(&title, |gpu| launch.dispatch(gpu, &title, 0))?;
            }
            let operand = Some(self.operand(kind, rows, *feed_forward));
            let launch =
                self.rows_launch(RowWork::Convert { parts: 1 }, *feed_forward, rows, operand);
            let title = format!("{name} conversion");
            self.add(&title, |gpu| launch.dispatch(gpu, &title, 0))?;
        }
        Ok(())
    }

    fn rows_launch(
        &mut self,
        work: RowWork,
        columns: usize,
        rows: usize,
        operand: Option<Operand>,
    ) -> RowsLaunch {
        RowsLaunch {
            work,
            source: self.floats(rows, columns),
            columns,
            rows,
            row_count: self.span(4).address,
            epsilon: EPSILON,
            plain: None,
            operand,
        }
    }

    /// Attention of a few rows; of one, with the work on heads before it.
    fn decode(
        &mut self,
        sizes: &Sizes,
        (attention, cache, frame): (Attention, KvCache, FrameAddresses),
        [norm, rope]: [u64; 2],
        rows: usize,
    ) -> Result<(), GpuError> {
        let name = sizes.name;
        let [query_columns, kv_columns, _] = sizes.parts();
        let stored = if cache.kind == KvType::Int8 { "int8" } else { "f16" };
        let shape = AttendDecodeShape::suited(self.gpu.capabilities(), &attention, rows);
        let fused = Fused {
            query_norm: Some(norm),
            rope: Some(rope),
            epsilon: EPSILON,
            own: Some(OwnRows {
                key: self.floats(1, kv_columns),
                value: self.floats(1, kv_columns),
                key_norm: Some(norm),
                value_norm: name == E2B.name,
            }),
        };
        let launch = DecodeLaunch {
            attention,
            cache,
            frame,
            rows,
            query: self.floats(rows, query_columns),
            plain: None,
            operand: Some(self.operand(OperandKind::Fixed16, rows, query_columns)),
            scratch: self.span(DecodeLaunch::scratch_bytes(&attention, rows, &shape) as usize),
            counters: self.span(DecodeLaunch::counter_bytes(&attention, rows) as usize),
            fused: (rows == 1).then_some(fused),
            shape,
        };
        let unit = if rows == 1 { "row" } else { "rows" };
        let title = format!("{name} attention, {rows} {unit}, {stored} cache");
        if rows == 1 && name == E2B.name {
            // Layers that share a cache prepare queries only.
            let fused = Some(Fused { own: None, ..fused });
            let title = format!("{title}, shared");
            let launch = DecodeLaunch { fused, ..launch };
            self.add_wide(&title, &[], |gpu| launch.dispatch(gpu, &title, 0))?;
        }
        self.add_wide(&title, &[], |gpu| launch.dispatch(gpu, &title, 0))
    }

    /// Attention with a cache of a kind, and the work on heads before it.
    fn attention(&mut self, kind: KvType, sizes: &Sizes) -> Result<(), GpuError> {
        let Sizes { name, heads, .. } = sizes;
        let [query_columns, kv_columns, _] = sizes.parts();
        let stored = if kind == KvType::Int8 { "int8" } else { "f16" };
        let attention = Attention { heads: *heads, scale: 1.0, window: None };
        let frame = FrameAddresses {
            frame: self.span(1 << 16).address,
            tables: self.span(1 << 16).address,
            tiles: self.span(1 << 16).address,
            picks: 0,
        };
        let bytes = KvCache::bytes(kind, heads.kv, heads.dim, 1024);
        let span = self.span(bytes as usize);
        let cache = KvCache { span, kind, heads: heads.kv, dim: heads.dim, ring_blocks: 0 };
        let norm = self.floats(1, heads.dim).address;
        let rope = self.floats(1, heads.dim).address;

        for rows in NARROW {
            self.decode(sizes, (attention, cache, frame), [norm, rope], rows)?;
        }

        let rows = 512;
        let (query, target) = (self.floats(rows, query_columns), self.floats(rows, query_columns));
        let title = format!("{name} attention, many rows, {stored} cache");
        if let Some(shape) = AttendUnits::suited(self.gpu.capabilities(), &attention, kind, rows) {
            let output = if attention.gives_halves(kind) {
                MatrixOutput::Operand(self.operand(OperandKind::Halves, rows, query_columns))
            } else {
                MatrixOutput::Plain(target)
            };
            let launch = MatrixLaunch { attention, cache, frame, tiles: 16, query, output, shape };
            self.add_wide(&title, &["v_wmma"], |gpu| launch.dispatch(gpu, &title, 0))?;
        }
        let shape = AttendTileShape::suited(self.gpu.capabilities(), &attention);
        let launch = TileLaunch { attention, cache, frame, tiles: 16, query, target, shape };
        self.add_wide(&title, &[], |gpu| launch.dispatch(gpu, &title, 0))?;

        let turned = Turned { query, heads: heads.query, query_norm: Some(norm) };
        let (key, value) = (self.floats(rows, kv_columns), self.floats(rows, kv_columns));
        let launch = HeadsLaunch {
            frame,
            rows,
            dim: heads.dim,
            query: Some(turned),
            stored: Some(Stored { key, value, cache, key_norm: Some(norm), value_norm: false }),
            rope: Some(rope),
            epsilon: EPSILON,
        };
        let title = format!("{name} heads, {stored} cache");
        self.add(&title, |gpu| launch.dispatch(gpu, &title, 0))
    }

    /// Lays out the launches of one row that only models of several streams have.
    fn streams(&mut self) -> Result<(), GpuError> {
        let Sizes { name, hidden, feed_forward, .. } = E2B;
        let (row_count, weight) = (self.span(4).address, self.floats(1, hidden).address);
        let streams: Vec<Span> = (0..4).map(|_| self.floats(1, hidden)).collect();
        let plain = Some(self.floats(1, hidden));
        let finish = Finish { weight, plain, operand: None };
        let added = Some(Added { values: self.floats(1, hidden), weight });
        for (what, row, sources, first) in [
            ("prediction", None, 4, FirstStream::Normed(finish)),
            ("correction", Some(self.floats(1, hidden)), 1, FirstStream::Scaled(finish)),
        ] {
            let launch = RouteLaunch {
                streams: streams.clone(),
                row,
                added,
                router: Router {
                    norm: weight,
                    router: self.matrix(Format::F16, 4, hidden),
                    coefficients: self.matrix(Format::F16, 4 * sources, 4),
                    cap: 1.0,
                },
                bias: 0.0,
                scale: 1.0,
                first: Some(first),
                epsilon: EPSILON,
                columns: hidden,
                rows: 1,
                row_count,
            };
            let title = format!("{name} {what}");
            self.add(&title, |gpu| launch.dispatch(gpu, &title, 0))?;
        }
        let term =
            |(values, norm): (&Span, Option<u64>)| SumTerm { values: *values, factor: 1.0, norm };
        let norms = [None, Some(weight), None, Some(weight)];
        let launch = SumLaunch {
            terms: streams.iter().zip(norms).map(term).collect(),
            sum: self.floats(1, hidden),
            finish: Some(finish),
            epsilon: EPSILON,
            columns: hidden,
            rows: 1,
            row_count,
        };
        self.add("E2B sum", |gpu| launch.dispatch(gpu, "E2B sum", 0))?;
        let up = self.floats(1, feed_forward);
        let work = RowWork::GatedCutoff { deviations: 1.0, up };
        let launch = self.rows_launch(work, feed_forward, 1, None);
        let launch = RowsLaunch { plain: Some(self.floats(1, feed_forward)), ..launch };
        self.add("E2B cutoff", |gpu| launch.dispatch(gpu, "E2B cutoff", 0))?;
        let launch = MixLaunch {
            inputs: streams.clone(),
            outputs: streams.clone(),
            sources: streams,
            coefficients: self.floats(1, 16),
            bias: 0.0,
            scale: 1.0,
            columns: hidden,
            rows: 1,
            row_count,
        };
        self.add("E2B mix", |gpu| launch.dispatch(gpu, "E2B mix", 0))?;
        for (what, rows, columns) in [("inner", LAUREL, hidden), ("outer", hidden, LAUREL)] {
            let scales = Span { address: 0, bytes: 0 };
            let (kind, codes) = (OperandKind::Plain, self.floats(1, columns));
            let segments = [Segment { rows, target: self.floats(1, rows) }];
            let product = Product {
                matrix: self.matrix(Format::F16, rows, columns),
                width: 1,
                input: ProductInput::Operand(Operand { kind, codes, scales }),
                output: ProductOutput::Segments(&segments),
            };
            self.narrow_product(&format!("{name} low-rank product, {what}"), &[], product)?;
        }
        Ok(())
    }

    /// Lays out the launches that do not depend on the model's sizes.
    fn others(&mut self, sizes: &Sizes) -> Result<(), GpuError> {
        let (rows, columns) = (16, sizes.hidden);
        for format in FORMATS {
            let launch = EmbedLaunch {
                table: self.matrix(format, 256, columns),
                frame: self.span(16 + 16 * rows).address,
                target: self.floats(rows, columns),
                rows,
                factor: 1.0,
            };
            self.add_wide("embedding", &[], |gpu| launch.dispatch(gpu, "embedding", 0))?;
        }
        let source = self.floats(rows, columns);
        let picks = self.span(4 * rows).address;
        let works = [
            ("gate", ElementWork::Geglu { gate: source, up: source, stride: columns }),
            ("addition", ElementWork::Add { source }),
            ("softcap", ElementWork::Softcap { cap: 30.0 }),
            ("selection of rows", ElementWork::Select { source, picks }),
        ];
        for (name, work) in works {
            let result = self.floats(rows, columns);
            let row_count = self.span(4).address;
            let launch = ElementsLaunch { work, result, columns, rows, row_count };
            self.add(name, |gpu| launch.dispatch(gpu, name, 0))?;
        }
        let vocabulary = 262_144;
        let launch = TopLaunch {
            logits: self.floats(1, vocabulary),
            vocabulary,
            rows: 1,
            row_count: self.span(4).address,
            maxima: self.span(top::maxima_bytes(1)),
            thresholds: self.span(8),
            found: self.span(8 * top::ROOM),
        };
        self.add_any("largest logits", &[], false, |gpu| launch.dispatches(gpu, 0).map(drop))
    }
}
