//! Prefixes that leave memory and come back: after a restart, from files that are not what they
//! were, and beside requests that do not wait for them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::fake::{Fake, options};
use crate::fake_store::{Faults, Shelf};
use crate::greedy::greedy;
use trine_backend::BLOCK;
use trine_backend::reference::ReferenceDevice;
use trine_engine::disk::{DiskStore, Folder, Origin};
use trine_engine::{
    Engine, EngineOptions, Event, Finish, Pooling, Request, Scope, SequenceId, Service, Statistics,
    Status, Update,
};
use trine_model::{KvType, Model};

const WINDOW: usize = 20;

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|at| (seed * 31 + at * (at + seed) / 3) % 48).collect()
}

/// An engine on the device that checks, and the time that it goes by, in milliseconds.
fn engine(shelf: &Shelf, faults: Faults, running: usize, slots: usize) -> (Engine, Arc<AtomicU64>) {
    let fake = Fake::new(options(256, slots, 64), &[WINDOW]);
    let mut engine = Engine::with_running(Box::new(fake), running);
    let origin = Origin::new([1; 32], engine.program().facts()).expect("it gives pages");
    engine.set_page_store(Box::new(shelf.store(5, faults)), origin);
    let time = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&time);
    engine.set_clock(move || Duration::from_millis(clock.load(Ordering::Relaxed)));
    (engine, time)
}

/// Steps until a request has ended: its tokens and what it has cost.
fn finish(engine: &mut Engine, id: SequenceId) -> (Vec<u32>, Statistics) {
    let mut tokens = Vec::new();
    for _ in 0..10_000 {
        for Event { sequence, update } in engine.step().expect("the device works") {
            match update {
                Update::Token { token, .. } if sequence == id => tokens.push(token),
                Update::Finished { statistics, .. } if sequence == id => {
                    return (tokens, statistics);
                }
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
    }
    panic!("it does not come to an end");
}

fn submit(engine: &mut Engine, prompt: &[u32], count: usize) -> SequenceId {
    engine.submit(Request::new(prompt.to_vec(), count)).expect("the request is sound")
}

fn run(engine: &mut Engine, prompt: &[u32], count: usize) -> Statistics {
    let id = submit(engine, prompt, count);
    let (tokens, statistics) = finish(engine, id);
    assert_eq!(tokens, greedy(prompt, count));
    statistics
}

#[test]
fn what_others_took_the_place_of_comes_back() {
    let shelf = Shelf::default();
    let (mut engine, _) = engine(&shelf, Faults::default(), 1, 1);
    let (first, second) = (prompt(1, 150), prompt(2, 150));
    assert_eq!(run(&mut engine, &first, 10).reused_tokens, 0);
    assert!(shelf.files().is_empty(), "what is in memory is not written");
    assert_eq!(run(&mut engine, &second, 10).reused_tokens, 0);
    // 159 positions: 4 blocks of global layers, of local ones those that the rings of 96 positions
    // hold.
    assert_eq!(shelf.files().len(), 4 + 2);
    let longer = [&first[..], &greedy(&first, 10), &prompt(3, 20)].concat();
    assert_eq!(run(&mut engine, &longer, 10).reused_tokens, 4 * BLOCK);
    let status = engine.status();
    assert_eq!((status.restored_tokens, status.reused_tokens), (128, 128));
    let counts = status.store.expect("there is a store");
    assert_eq!((counts.read, counts.failures, counts.dropped), (5, 0, 0));
    // The second went meanwhile. What is in memory is not read.
    assert_eq!(counts.written, 12);
    run(&mut engine, &longer, 10);
    assert_eq!(engine.status().restored_tokens, 128);
}

#[test]
fn scopes_have_files_of_their_own() {
    let shelf = Shelf::default();
    let (known, own) = (prompt(1, 150), Scope::default().within(b"own"));
    let ask = |scope: Scope| {
        let (mut engine, _) = engine(&shelf, Faults::default(), 1, 1);
        let request = Request { scope, ..Request::new(known.clone(), 5) };
        let id = engine.submit(request).expect("the request is sound");
        let (tokens, statistics) = finish(&mut engine, id);
        assert_eq!(tokens, greedy(&known, 5));
        engine.spill_kept().expect("the device gives pages");
        statistics.reused_tokens
    };
    assert_eq!(ask(own), 0);
    assert_eq!(ask(Scope::default()), 0, "what another scope has written is not read");
    assert_eq!(ask(own), 4 * BLOCK);
    assert_eq!(ask(Scope::default()), 4 * BLOCK);
}

#[test]
fn kept_sequences_are_written_at_the_end_and_once() {
    let shelf = Shelf::default();
    let (mut engine, _) = engine(&shelf, Faults::default(), 2, 4);
    let beginning = prompt(1, 100);
    for seed in 0..3 {
        run(&mut engine, &[&beginning[..], &prompt(seed + 5, 60)].concat(), 3);
    }
    engine.spill_kept().expect("the device gives pages");
    // Three blocks are all three's, two are each one's own; the local ones at each end.
    let counts = engine.status().store.expect("there is a store");
    assert_eq!(counts.written as usize, shelf.files().len(), "none is written twice");
    let global = shelf.files().keys().filter(|name| name.file_name().contains("global")).count();
    assert_eq!(global, 3 + 3 * 2);
    engine.spill_kept().expect("the device gives pages");
    assert_eq!(engine.status().store.expect("there is a store").written, counts.written);
}

/// Blocks of ended sequences cannot be taken while a step is in flight, because their pages are
/// read first.
#[test]
fn steps_overlap_beside_a_full_cache_of_prefixes() {
    let fake = Fake::new(options(256, 8, 32), &[WINDOW]).with_depth(2);
    let overlapped = Arc::clone(&fake.overlapped);
    let mut engine = Engine::with_running(Box::new(fake), 2);
    let origin = Origin::new([1; 32], engine.program().facts()).expect("it gives pages");
    let shelf = Shelf::default();
    engine.set_page_store(Box::new(shelf.store(5, Faults::default())), origin);
    for seed in 0..8 {
        run(&mut engine, &prompt(seed, 240), 10);
    }
    assert!(engine.status().blocks_kept > 56, "{:?}", engine.status());
    let before = overlapped.load(Ordering::Relaxed);
    let prompts = [prompt(20, 10), prompt(21, 10)];
    let first = submit(&mut engine, &prompts[0], 200);
    let second = submit(&mut engine, &prompts[1], 200);
    let mut texts: HashMap<SequenceId, Vec<u32>> = HashMap::new();
    while !engine.is_idle() {
        for Event { sequence, update } in engine.step().expect("the device works") {
            if let Update::Token { token, .. } = update {
                texts.entry(sequence).or_default().push(token);
            }
        }
        engine.check_integrity().expect("the books agree");
    }
    assert_eq!(texts[&first], greedy(&prompts[0], 200));
    assert_eq!(texts[&second], greedy(&prompts[1], 200));
    let overlapped = overlapped.load(Ordering::Relaxed) - before;
    assert!(overlapped > 380, "{overlapped} of 400 steps overlapped");
    let restored = run(&mut engine, &prompt(0, 240), 10).reused_tokens;
    assert!(restored >= 192, "{restored} positions of what went to the store came back");
}

#[test]
fn a_slow_store_delays_nobody_for_long() {
    let shelf = Shelf::default();
    let (mut first, _) = engine(&shelf, Faults::default(), 2, 3);
    let known = prompt(1, 150);
    run(&mut first, &known, 1);
    first.spill_kept().expect("the device gives pages");
    let (mut engine, time) = engine(&shelf, Faults::default(), 2, 3);
    shelf.stick(true);
    let waits = submit(&mut engine, &known, 5);
    assert!(engine.step().expect("the device works").is_empty());
    assert!(engine.waits_for_store() && !engine.is_idle());
    // Others go ahead, and whoever wants the same has to wait for his turn.
    let second = submit(&mut engine, &known, 5);
    assert_eq!(run(&mut engine, &prompt(9, 40), 5).reused_tokens, 0);
    assert_eq!(engine.status().waiting, 2);
    time.fetch_add(60_000, Ordering::Relaxed);
    let mut reused = HashMap::new();
    while !engine.is_idle() {
        for Event { sequence, update } in engine.step().expect("the device works") {
            if let Update::Finished { statistics, .. } = update {
                reused.insert(sequence, statistics.reused_tokens);
            }
        }
    }
    assert_eq!(reused[&waits], 0, "it was computed");
    assert!(reused[&second] > 0, "it was in memory then");
    assert_eq!(engine.status().store.expect("there is a store").failures, 1);
    // The late answer is nobody's, and the store can be asked again.
    shelf.stick(false);
    engine.step().expect("the device works");
    engine.forget();
    assert_eq!(run(&mut engine, &known, 5).reused_tokens, 4 * BLOCK);
}

#[test]
fn a_request_that_goes_away_leaves_the_store_to_others() {
    let shelf = Shelf::default();
    let (mut first, _) = engine(&shelf, Faults::default(), 1, 2);
    let known = prompt(1, 150);
    run(&mut first, &known, 1);
    first.spill_kept().expect("the device gives pages");
    let (mut engine, _) = engine(&shelf, Faults::default(), 1, 2);
    for is_read in [false, true] {
        shelf.stick(!is_read);
        let gone = submit(&mut engine, &known, 5);
        let busy = is_read.then(|| submit(&mut engine, &prompt(8, 3), 50));
        engine.step().expect("the device works");
        engine.step().expect("the device works");
        engine.cancel(gone).expect("it waits");
        engine.check_integrity().expect("the books agree");
        busy.and_then(|id| engine.cancel(id));
        while !engine.is_idle() {
            engine.step().expect("the device works");
        }
        shelf.stick(false);
        engine.step().expect("the device works");
        engine.forget();
        assert_eq!(run(&mut engine, &known, 5).reused_tokens, 4 * BLOCK);
        engine.forget();
    }
}

/// Prompts of more than 64 tokens are computed otherwise than shorter ones where the device
/// distinguishes them.
#[test]
fn short_and_long_prompts_keep_to_their_own_kind() {
    let shelf = Shelf::default();
    let (mut first, _) = engine(&shelf, Faults::default(), 1, 1);
    let short = prompt(1, 60);
    run(&mut first, &short, 80);
    first.spill_kept().expect("the device gives pages");
    let answered = [&short[..], &greedy(&short, 80)].concat();
    let (mut engine, _) = engine(&shelf, Faults::default(), 1, 1);
    // The continuation of a short prompt's answer uses both, and so does whoever generates the same
    // again.
    assert_eq!(run(&mut engine, &answered, 3).reused_tokens, 4 * BLOCK);
    engine.forget();
    // A long prompt that shares no more than the short prompt itself does not.
    let other = [&answered[..64], &prompt(4, 40)].concat();
    assert_eq!(run(&mut engine, &other, 3).reused_tokens, 0);
    assert_eq!(engine.status().restored_tokens, 128);
}

/// The same in memory, without a store.
#[test]
fn sequences_in_memory_serve_prompts_of_their_own_kind() {
    let mut engine = Engine::with_running(Box::new(Fake::new(options(256, 4, 64), &[WINDOW])), 1);
    let (short, long) = (prompt(1, 60), prompt(2, 70));
    run(&mut engine, &short, 30);
    run(&mut engine, &long, 30);
    let answered = |prompt: &[u32]| [prompt, &greedy(prompt, 30)].concat();
    // A long prompt that shares no more than the short prompt, and a short one of a long one's
    // tokens.
    let beside_short = [&short[..], &prompt(4, 40)].concat();
    assert_eq!(run(&mut engine, &beside_short, 3).reused_tokens, 0);
    assert_eq!(run(&mut engine, &long[..64], 3).reused_tokens, 0);
    // One token of the answer is enough. All but the last token of a prompt may be reused.
    let continued = [&answered(&short)[..61], &prompt(5, 40)].concat();
    assert_eq!(run(&mut engine, &continued, 3).reused_tokens, 61);
    assert_eq!(run(&mut engine, &answered(&long), 3).reused_tokens, 99);
}

/// The short prompt gives way. When it starts again, a long prompt's cache has its answer as well.
#[test]
fn an_answer_that_is_run_again_stays_exact() {
    let mut options = options(256, 2, 64);
    options.blocks = 6;
    let fake = Fake::new(options, &[WINDOW]);
    let coarse = Arc::clone(&fake.coarse);
    let mut engine = Engine::with_running(Box::new(fake), 2);
    let short = prompt(1, 60);
    let long = [&short[..], &greedy(&short, 10)].concat();
    let first = submit(&mut engine, &long, 40);
    let second = submit(&mut engine, &short, 40);
    finish(&mut engine, first);
    assert_eq!(engine.status().preemptions, 1, "memory was to run out");
    let before = coarse.load(Ordering::Relaxed);
    assert!(before > 0, "the first prompt's rows are bulk rows, its answer's are not");
    let (tokens, _) = finish(&mut engine, second);
    assert_eq!(tokens, greedy(&short, 40)[40 - tokens.len()..]);
    assert_eq!(coarse.load(Ordering::Relaxed), before, "positions were taken from the long prompt");
}

fn model(name: &str) -> Model {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
    Model::open(&goldens.join(name)).expect("the model opens")
}

/// An engine on the scalar reference; with a folder, one that keeps prefixes there.
fn real_engine(model: &Model, kv: KvType, folder: Option<&Path>) -> Engine {
    let options = EngineOptions {
        context: Some(192),
        kv,
        sequences: 1,
        further: 0,
        kept: 1,
        prefill: 64,
        further_rows: 0,
        outputs: 1,
        kv_memory: None,
        embeds: false,
    };
    let mut engine = Engine::new(model, &ReferenceDevice::new(), options).expect("the model loads");
    if let Some(folder) = folder {
        let origin =
            Origin::new(model.fingerprint(), engine.program().facts()).expect("it gives pages");
        let folder = Folder::open(folder, 64 << 20).expect("the folder can be used");
        let store = DiskStore::start(folder, 1 << 20).expect("there are threads");
        engine.set_page_store(Box::new(store), origin);
    }
    engine
}

/// Rows of these texts see those after them, so that no other text can use their keys and values.
/// Those of 64 and 96 tokens fill whole blocks.
#[test]
fn texts_that_are_embedded_whole_leave_no_pages() {
    let model = model("embedding-gemma");
    let shelf = Shelf::default();
    let mut engine = real_engine(&model, KvType::F32, None);
    let origin = Origin::new(model.fingerprint(), engine.program().facts()).expect("it has pages");
    engine.set_page_store(Box::new(shelf.store(5, Faults::default())), origin);
    for length in [64, 96, 96, 64, 100] {
        let request = Request::embedding(prompt(1, length), Pooling::Mean);
        let id = engine.submit(request).expect("the request is sound");
        assert_eq!(finish(&mut engine, id).1.reused_tokens, 0);
    }
    engine.spill_kept().expect("there is nothing to read");
    assert!(shelf.files().is_empty());
    assert!(engine.status().store.is_none());
}

/// What an engine answers, and the status behind it.
fn answer(mut engine: Engine, prompts: &[Vec<u32>]) -> (Vec<Vec<u32>>, Status) {
    let mut answers = Vec::new();
    for prompt in prompts {
        let id = submit(&mut engine, prompt, 8);
        let mut ended = false;
        let mut tokens = Vec::new();
        while !ended {
            for Event { sequence, update } in engine.step().expect("the device works") {
                match update {
                    Update::Token { token, .. } => tokens.push(token),
                    Update::Finished { finish, .. } => {
                        assert_eq!((sequence, finish), (id, Finish::Length));
                        ended = true;
                    }
                    _ => {}
                }
            }
            // The store's thread needs the processor too.
            std::thread::yield_now();
        }
        engine.check_integrity().expect("the books agree");
        answers.push(tokens);
    }
    engine.spill_kept().expect("the device gives pages");
    let status = engine.status();
    (answers, status)
}

fn real_prompts(model: &Model) -> Vec<Vec<u32>> {
    let vocabulary = model.config().vocabulary as u32;
    let tokens = |seed: u32, count: u32| -> Vec<u32> {
        (0..count).map(|at| (at * at + at * seed + 7 * seed) % vocabulary).collect()
    };
    let first = tokens(3, 110);
    vec![first.clone(), [&first[..100], &tokens(5, 30)].concat()]
}

#[test]
fn a_second_process_goes_on_where_the_first_one_was() {
    let model = model("gemma3-a");
    let prompts = real_prompts(&model);
    for kv in [KvType::F32, KvType::Int8] {
        let folder = tempfile::tempdir().expect("a folder");
        let (expected, cold) = answer(real_engine(&model, kv, None), &prompts);
        assert_eq!(cold.store, None);
        let (found, first) = answer(real_engine(&model, kv, Some(folder.path())), &prompts);
        assert_eq!((&found, first.restored_tokens), (&expected, 0));
        let counts = first.store.expect("there is a store");
        assert!(counts.written > 3 && counts.failures == 0, "{counts:?}");
        let (found, second) = answer(real_engine(&model, kv, Some(folder.path())), &prompts);
        assert_eq!(found, expected, "{}", kv.name());
        assert!(second.restored_tokens >= 96, "{second:?}");
        assert!(second.reused_tokens >= second.restored_tokens);
        assert_eq!(second.store.map(|counts| counts.failures), Some(0));
    }
}

#[test]
fn what_another_model_or_type_left_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let models = [model("gemma3-a"), model("gemma3-b")];
    let prompts = real_prompts(&models[0]);
    answer(real_engine(&models[0], KvType::F32, Some(folder.path())), &prompts);
    for (model, kv) in [(&models[0], KvType::F16), (&models[1], KvType::F32)] {
        let prompts = real_prompts(model);
        let (expected, _) = answer(real_engine(model, kv, None), &prompts);
        let (found, status) = answer(real_engine(model, kv, Some(folder.path())), &prompts);
        assert_eq!((found, status.restored_tokens), (expected, 0));
        assert_eq!(status.store.map(|counts| counts.failures), Some(0), "it is not even read");
    }
    assert_ne!(models[0].fingerprint(), models[1].fingerprint());
    assert_eq!(models[0].fingerprint(), model("gemma3-a").fingerprint());
}

#[test]
fn damaged_files_cost_time_alone() {
    let model = model("gemma3-a");
    let prompts = real_prompts(&model);
    let folder = tempfile::tempdir().expect("a folder");
    let (expected, _) = answer(real_engine(&model, KvType::F32, Some(folder.path())), &prompts);
    let files: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "kv"))
        .collect();
    let content: Vec<_> = files.iter().map(|path| std::fs::read(path).expect("a file")).collect();
    type Change = fn(&mut Vec<u8>);
    let changes: [Change; 4] = [
        |file| {
            let middle = file.len() / 2;
            file[middle] ^= 1;
        },
        |file| file.truncate(200),
        |file| file.clear(),
        |file| file.extend(*b"more than there should be"),
    ];
    for change in changes {
        for (path, content) in files.iter().zip(&content) {
            let mut changed = content.clone();
            change(&mut changed);
            std::fs::write(path, changed).expect("it can be written");
        }
        let (found, status) =
            answer(real_engine(&model, KvType::F32, Some(folder.path())), &prompts);
        assert_eq!((&found, status.restored_tokens), (&expected, 0));
        assert!(status.store.is_some_and(|counts| counts.failures > 0), "{status:?}");
    }
    // Every file under another one's name.
    for (path, content) in files.iter().zip(content.iter().cycle().skip(1)) {
        std::fs::write(path, content).expect("it can be written");
    }
    let (found, status) = answer(real_engine(&model, KvType::F32, Some(folder.path())), &prompts);
    assert_eq!((found, status.restored_tokens), (expected, 0));
}

#[test]
fn a_service_that_is_stopped_leaves_its_prefixes_to_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let known = prompt(1, 150);
    let serve = |stuck: bool| {
        let mut engine =
            Engine::with_running(Box::new(Fake::new(options(256, 3, 64), &[WINDOW])), 2);
        let origin = Origin::new([1; 32], engine.program().facts()).expect("it gives pages");
        let disk = Folder::open(folder.path(), 1 << 20).expect("the folder can be used");
        let store = DiskStore::start(disk, 1 << 20).expect("there are threads");
        engine.set_page_store(Box::new(store), origin);
        let service = Service::start(engine).expect("there is a thread");
        let mut generation = service.submit(Request::new(known.clone(), 20)).expect("it is sound");
        let (mut tokens, mut reused) = (Vec::new(), 0);
        while let Some(update) = generation.blocking_next() {
            match update {
                Update::Token { token, .. } => tokens.push(token),
                Update::Started { reused: found, .. } => reused = found,
                _ => {}
            }
            if stuck && tokens.len() == 3 {
                break;
            }
        }
        service.stop();
        (tokens, reused)
    };
    // Stopped in the middle of its answer.
    assert_eq!(serve(true), (greedy(&known, 3), 0));
    assert_eq!(serve(false), (greedy(&known, 20), 4 * BLOCK));
}
