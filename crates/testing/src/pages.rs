//! Sequences that leave a Program as pages and go on in another one.

use trine_backend::{
    BLOCK, BackendError, Batch, Device, KvPage, KvPart, Program, ProgramOptions, SequenceView,
};
use trine_model::{Goal, KvType, Model, Width};

use super::random::Random;

const CONTEXT: usize = 4 * BLOCK;
/// Positions that move.
const MOVED: usize = 3 * BLOCK;
/// More than a block, so that a ring holds the whole blocks of a window.
const WIDTH: usize = 40;

/// Runs tokens from a position on; the logits of the last.
fn run(
    program: &mut dyn Program,
    view: SequenceView<'_>,
    tokens: &[u32],
    first: usize,
) -> Vec<f32> {
    let positions: Vec<u32> = (first as u32..).take(tokens.len()).collect();
    let batch = Batch {
        tokens,
        positions: &positions,
        sequence_of: &vec![0; tokens.len()],
        sequences: &[view],
        outputs: &[tokens.len() as u32 - 1],
        ahead: &[],
        bulk_from: tokens.len(),
        inputs: &[],
        goal: Goal::Main,
    };
    program.run(&batch).unwrap().to_vec()
}

fn page_bytes(program: &dyn Program, part: KvPart) -> usize {
    program.facts().pages.as_ref().unwrap().page_bytes(part)
}

/// The pages that a sequence of [`MOVED`] positions needs to go on: all of global layers, the
/// window of local ones. In no particular order.
fn pages<'a>(program: &dyn Program, view: SequenceView<'a>) -> Vec<KvPage<'a>> {
    let window = program.facts().plan.caches.iter().filter_map(|cache| cache.window).max();
    let page = |part| move |index| KvPage { sequence: view, index, part };
    let first = window.map_or(MOVED, |window| MOVED.saturating_sub(window - 1)) / BLOCK;
    let mut pages: Vec<_> = (first..MOVED / BLOCK).rev().map(page(KvPart::Local)).collect();
    pages.extend((0..MOVED / BLOCK).map(page(KvPart::Global)));
    pages
}

/// A sequence that moves, between slots, blocks and Programs, goes on with the same bits as the one
/// that stays, whatever was in the memory that it moves to.
pub fn sequences_move_between_programs(device: &dyn Device, model: &Model, kv: KvType, seed: u64) {
    let options = ProgramOptions {
        width: Width { tokens: WIDTH, outputs: 1 },
        kv,
        context: CONTEXT,
        sequences: 3,
        blocks: 12,
    };
    let mut programs = [0, 1].map(|_| device.load_plan(model, model.plan(), &options).unwrap());
    let views = [
        SequenceView { slot: 1, blocks: &[7, 2, 9, 4] },
        SequenceView { slot: 2, blocks: &[3, 11, 0, 6] },
    ];
    let mut random = Random(seed);
    let mut tokens = |count| -> Vec<u32> {
        (0..count).map(|_| random.below(model.config().vocabulary) as u32).collect()
    };
    let prompt = tokens(MOVED);
    for (piece, first) in prompt.chunks(WIDTH).zip((0..).step_by(WIDTH)) {
        run(programs[0].as_mut(), views[0], piece, first);
    }
    let own = pages(programs[0].as_ref(), views[0]);
    let size = |program: &dyn Program| own.iter().map(|page| page_bytes(program, page.part)).sum();
    let mut bytes = vec![77];
    programs[0].pages().unwrap().read(&own, &mut bytes).unwrap();
    let expected: usize = size(programs[0].as_ref());
    assert_eq!(bytes.len(), 1 + expected, "bytes are added");
    assert_eq!(programs[0].facts().pages, programs[1].facts().pages);

    // Whatever a kernel reads that was not written is not a number: so are all types of values
    // whose bits are set.
    for slot in 0..options.sequences as u32 {
        let blocks: Vec<u32> = (0..options.blocks as u32).collect();
        let sequence = SequenceView { slot, blocks: &blocks[slot as usize * 4..][..4] };
        for part in [KvPart::Global, KvPart::Local] {
            let poison = vec![0xFF; page_bytes(programs[1].as_ref(), part)];
            for index in 0..CONTEXT / BLOCK {
                programs[1]
                    .pages()
                    .unwrap()
                    .write(&[KvPage { sequence, index, part }], &poison)
                    .unwrap();
            }
        }
    }
    let other = pages(programs[1].as_ref(), views[1]);
    programs[1].pages().unwrap().write(&other, &bytes[1..]).unwrap();
    let mut first = MOVED;
    for count in [1, 6, 1, 3] {
        let tokens = tokens(count);
        let stays = run(programs[0].as_mut(), views[0], &tokens, first);
        let moves = run(programs[1].as_mut(), views[1], &tokens, first);
        assert!(stays.iter().all(|logit| logit.is_finite()));
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&stays), bits(&moves), "{} in {}", device.name(), kv.name());
        first += count;
    }
    refuses_what_is_not_there(programs[1].as_mut(), views[1]);
}

fn refuses_what_is_not_there(program: &mut dyn Program, view: SequenceView<'_>) {
    let global = KvPage { sequence: view, index: 0, part: KvPart::Global };
    let local = KvPage { part: KvPart::Local, ..global };
    let wrong = [
        KvPage { index: 4, ..global },
        KvPage { index: usize::MAX / BLOCK, ..local },
        KvPage { sequence: SequenceView { slot: 3, ..view }, ..local },
        KvPage { sequence: SequenceView { blocks: &[12], ..view }, ..global },
        KvPage { sequence: SequenceView { blocks: &[], ..view }, ..global },
    ];
    for page in wrong {
        let bytes = vec![0; page_bytes(program, page.part)];
        let read = program.pages().unwrap().read(&[page], &mut Vec::new());
        assert!(matches!(read, Err(BackendError::BadBatch { .. })), "{page:?}");
        let written = program.pages().unwrap().write(&[page], &bytes);
        assert!(matches!(written, Err(BackendError::BadBatch { .. })), "{page:?}");
    }
    let bytes = vec![0; page_bytes(program, KvPart::Global) + 1];
    assert!(matches!(
        program.pages().unwrap().write(&[global], &bytes),
        Err(BackendError::BadBatch { .. })
    ));
}
