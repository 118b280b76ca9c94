//! A row's logits are the same bits by itself and among others, on a device that is asked for that.

use std::ops::Range;
use std::path::Path;

use trine_backend::{BLOCK, Batch, Device, ProgramOptions, SOFT, SequenceView, TowerProgram};
use trine_model::{Goal, KvType, Model, Rows, Width};
use trine_testing::pictures::{
    GEMMA4, GoldenPictures, TWINS, golden_rows, golden_rows_of_gemma4, open_golden,
};
use trine_testing::random::{Random, model};
use trine_testing::{Golden, bits};
use trine_vulkan::INVARIANT_ROWS;
use trine_vulkan::testing::{device, takes};
use trine_weights::DType;

/// A sequence.
struct Said {
    tokens: Vec<u32>,
    /// The rows of its soft tokens.
    soft: Vec<f32>,
}

/// Sequences that run by themselves and together.
struct Crowd {
    said: Vec<Said>,
    /// Rows of the widest step, and so of the kernels of every step.
    rows: usize,
}

/// Positions of a few sequences, each of several blocks.
const FEW: [usize; 3] = [37, 50, 9];
/// Those of as many as a server has by default.
const MANY: [usize; 32] = [
    3, 1, 6, 2, 4, 1, 2, 5, 3, 3, 1, 2, 2, 4, 1, 3, 2, 6, 1, 1, 2, 3, 5, 2, 1, 4, 2, 3, 1, 2, 7, 1,
];

/// Which rows a step has: (sequence, rows), in the order in which they stand in it.
type Step = Vec<(usize, usize)>;

impl Crowd {
    /// Returns sequences of texts.
    fn of(model: &Model, lengths: &[usize], rows: usize) -> Self {
        let vocabulary = model.config().vocabulary;
        let said = |(sequence, &length): (usize, &usize)| {
            let token = |at: usize| ((at * at + 7 * sequence + 1) % vocabulary) as u32;
            Said { tokens: (0..length).map(token).collect(), soft: Vec::new() }
        };
        Self { said: lengths.iter().enumerate().map(said).collect(), rows }
    }

    /// Returns the unit of soft tokens that a position of a sequence is in.
    fn unit(&self, sequence: usize, at: usize) -> Option<Range<usize>> {
        let tokens = &self.said[sequence].tokens;
        let is_text = |token: &u32| *token != SOFT;
        (!is_text(tokens.get(at)?)).then(|| {
            let start = tokens[..at].iter().rposition(is_text).map_or(0, |last| last + 1);
            let end = tokens[at..].iter().position(is_text).map_or(tokens.len(), |next| at + next);
            start..end
        })
    }

    /// Returns how many of the next rows of a sequence run, of at most `rows`: as many more as a
    /// unit needs that would be cut. One that is wider than a mixed step runs by itself.
    fn piece(&self, sequence: usize, done: usize, rows: usize) -> usize {
        let end = (done + rows).min(self.said[sequence].tokens.len());
        match self.unit(sequence, end - 1) {
            Some(unit) if unit.end - done <= self.mixed() || unit.start == done => unit.end - done,
            Some(unit) => unit.start - done,
            None => end - done,
        }
    }

    /// Returns the most rows of a step of several sequences.
    fn mixed(&self) -> usize {
        self.rows.min(INVARIANT_ROWS)
    }

    /// Returns steps of each sequence by itself, in pieces of about `rows` rows.
    fn apart(&self, rows: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        for (sequence, said) in self.said.iter().enumerate() {
            let mut done = 0;
            while done < said.tokens.len() {
                let rows = self.piece(sequence, done, rows);
                steps.push(vec![(sequence, rows)]);
                done += rows;
            }
        }
        steps
    }

    /// Returns steps of all together, in pieces of random sizes up to about `most` and in a random
    /// order.
    fn together(&self, seed: u64, most: usize) -> Vec<Step> {
        let mut random = Random(seed);
        let mut done = vec![0; self.said.len()];
        let mut steps = Vec::new();
        while done.iter().zip(&self.said).any(|(done, said)| *done < said.tokens.len()) {
            let (mut step, mut room) = (Vec::new(), self.mixed());
            let first = random.below(done.len());
            for sequence in (first..done.len()).chain(0..first) {
                let wanted = (1 + random.below(most)).min(room);
                if wanted == 0 || done[sequence] == self.said[sequence].tokens.len() {
                    continue;
                }
                let rows = self.piece(sequence, done[sequence], wanted);
                if rows <= room || step.is_empty() {
                    step.push((sequence, rows));
                    done[sequence] += rows;
                    room = room.saturating_sub(rows);
                }
            }
            steps.push(step);
        }
        steps
    }

    /// Returns the bits of the logits of every position of every sequence.
    fn run(&self, model: &Model, steps: &[Step]) -> Vec<Vec<u32>> {
        let config = model.config();
        let sequences = self.said.len();
        let longest = self.said.iter().map(|said| said.tokens.len()).max();
        let blocks_each = longest.map_or(1, |longest| longest.div_ceil(BLOCK));
        let options = ProgramOptions {
            width: Width { tokens: self.rows, outputs: self.rows },
            kv: KvType::F16,
            context: blocks_each * BLOCK,
            sequences,
            blocks: sequences * blocks_each,
        };
        let mut program =
            device().batch_invariant().load_plan(model, model.plan(), &options).unwrap();
        assert!(program.facts().is_invariant);
        assert_eq!(program.facts().mixed_rows, self.mixed());
        let plan = &program.facts().plan;
        let takes_pictures = plan.given().any(|id| plan.buffer(id).rows == Rows::Soft);
        // The sequences' blocks alternate.
        let block = |sequence: usize, index: usize| (index * sequences + sequence) as u32;
        let tables: Vec<Vec<u32>> = (0..sequences)
            .map(|sequence| (0..blocks_each).map(|index| block(sequence, index)).collect())
            .collect();
        let mut logits = vec![Vec::new(); sequences];
        let mut lengths = vec![0; sequences];
        let mut left: Vec<&[f32]> = self.said.iter().map(|said| &said.soft[..]).collect();
        for step in steps {
            let mut rows: Vec<(u32, u32, u32)> = Vec::new();
            let (mut views, mut ahead, mut soft) = (Vec::new(), Vec::new(), Vec::new());
            for (index, &(sequence, count)) in step.iter().enumerate() {
                views.push(SequenceView { slot: sequence as u32, blocks: &tables[sequence] });
                let positions = lengths[sequence]..lengths[sequence] + count;
                let tokens = &self.said[sequence].tokens;
                rows.extend(positions.clone().map(|at| (tokens[at], at as u32, index as u32)));
                let after = |at| self.unit(sequence, at).map_or(0, |unit| unit.end - 1 - at);
                ahead.extend(positions.clone().map(|at| after(at) as u32));
                let softs = positions.filter(|&at| tokens[at] == SOFT).count();
                let (own, rest) = left[sequence].split_at(softs * config.hidden);
                soft.extend_from_slice(own);
                left[sequence] = rest;
                lengths[sequence] += count;
            }
            let inputs = [&soft[..]];
            let batch = Batch {
                tokens: &rows.iter().map(|row| row.0).collect::<Vec<_>>(),
                positions: &rows.iter().map(|row| row.1).collect::<Vec<_>>(),
                sequence_of: &rows.iter().map(|row| row.2).collect::<Vec<_>>(),
                sequences: &views,
                outputs: &(0..rows.len() as u32).collect::<Vec<_>>(),
                ahead: &ahead,
                bulk_from: rows.len(),
                inputs: &inputs[..usize::from(takes_pictures)],
                goal: Goal::Main,
            };
            let found = program.run(&batch).unwrap();
            for ((.., index), row) in rows.iter().zip(found.chunks_exact(config.vocabulary)) {
                logits[step[*index as usize].0].extend(bits(row));
            }
        }
        let all = self.said.iter().map(|said| said.tokens.len());
        assert!(lengths.into_iter().eq(all) && left.iter().all(|left| left.is_empty()));
        logits
    }

    fn check(&self, model: &Model, others: &[Vec<Step>]) {
        let alone = self.run(model, &self.apart(self.mixed()));
        assert!(alone.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
        for steps in others {
            assert!(self.run(model, steps) == alone, "{steps:?}");
        }
    }
}

/// Returns a random model with heads that the kernels support.
fn supported(seed: u64, dtype: DType, folder: &Path) -> Model {
    let fits = |model: &Model| model.plan().caches.iter().all(|cache| cache.head_dim <= 256);
    let drawn = (seed..).step_by(100).map(|seed| model(&mut Random(seed), dtype, folder));
    drawn.take(20).find(fits).unwrap()
}

#[test]
fn logits_do_not_depend_on_company() {
    let folder = tempfile::tempdir().unwrap();
    let mut models: Vec<Model> =
        ["gguf/gemma3-qat", "gguf/gemma4-moe"].map(|name| Golden::load(name).model).into();
    for (seed, dtype) in [(3, DType::F32), (11, DType::Q8_0), (12, DType::Q4K)] {
        models.push(supported(seed, dtype, folder.path()));
    }
    for model in &models {
        let few = Crowd::of(model, &FEW, 20);
        few.check(model, &[few.apart(1), few.apart(7), few.together(1, 9), few.together(2, 9)]);
    }
}

/// Each of 32 sequences has the same bits by itself, together with 31 others in their next token,
/// and among prompts.
#[test]
fn logits_do_not_depend_on_31_others() {
    let folder = tempfile::tempdir().unwrap();
    let models = [
        Golden::load("gguf/gemma3-qat").model,
        supported(11, DType::Q8_0, folder.path()),
        supported(3, DType::F32, folder.path()),
    ];
    for (_, model) in models.iter().enumerate().filter(|(number, _)| takes(*number, 2)) {
        let many = Crowd::of(model, &MANY, 40);
        let others = [many.together(1, 1), many.together(2, 3)];
        assert_eq!(others[0][0].len(), 32, "all are in the first step");
        many.check(model, &others);
    }
}

/// The rows of a picture, and the logits of its prompt, have the same bits whatever else is there:
/// pictures before it, prompts with others, and texts.
#[test]
fn pictures_do_not_depend_on_company() {
    let model = open_golden(TWINS[0]);
    let invariant = device().batch_invariant();
    let (_, _, rows) = golden_rows(&invariant, &model, KvType::F16);
    let golden = GoldenPictures::load();
    let config = *model.tower().unwrap().config();
    let mut tower = TowerProgram::load(&invariant, &model, KvType::F16, true).unwrap();
    let second = tower.run(&golden.patches(1, &config), (config.side(), config.side())).unwrap();
    assert_eq!(bits(&second.rows), bits(&rows[1]), "by itself and after another");
    let mut crowd = Crowd::of(&model, &FEW[..2], 20);
    crowd.said.push(Said { tokens: golden.tokens("two"), soft: rows.concat() });
    let turned = [&rows[1][..], &rows[0]].concat();
    crowd.said.push(Said { tokens: golden.tokens("back_to_back"), soft: turned });
    let others = [crowd.apart(1), crowd.apart(7), crowd.together(1, 9), crowd.together(2, 9)];
    crowd.check(&model, &others);
}

/// Pictures that touch have more rows than steps of several sequences. They have one for
/// themselves, on the kernels of another width.
#[test]
fn wide_pictures_do_not_depend_on_company() {
    let name = GEMMA4[1];
    let model = open_golden((name, name));
    let (_, _, rows) = golden_rows_of_gemma4(&device().batch_invariant(), &model, name);
    let soft = rows.concat();
    let count = soft.len() / model.config().hidden;
    let tokens = [&[5, 6, 7][..], &vec![SOFT; count], &[8; 20]].concat();
    let mut crowd = Crowd::of(&model, &FEW[..2], 128);
    crowd.said.push(Said { tokens, soft });
    assert!(count > crowd.mixed());
    crowd.check(&model, &[crowd.together(1, 30), crowd.together(2, 9)]);
}

#[test]
fn a_device_says_what_it_was_asked_for() {
    let golden = Golden::load("gguf/gemma3-qat");
    let options = ProgramOptions {
        width: Width { tokens: 2, outputs: 1 },
        kv: KvType::F16,
        ..trine_testing::OPTIONS
    };
    assert!(
        !device()
            .load_plan(&golden.model, golden.model.plan(), &options)
            .unwrap()
            .facts()
            .is_invariant
    );
}
