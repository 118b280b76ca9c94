//! Prompts with pictures: prefixes end before or after one, texts go on while a tower works, and a
//! failure ends only its own request.

use crate::looks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fake::{Fake, options};
use crate::fake_store::{Faults, Shelf};
use crate::greedy::greedy;
use crate::looks::{
    BAD, BUDGET, Gated, engine, joined, picture, quick, request, seen, size, until,
};
use crate::texts::{Text, prompt, read, run};
use trine_backend::{BLOCK, ProgramOptions};
use trine_engine::disk::Origin;
use trine_engine::{
    Drafts, Engine, EngineError, Event, Finish, PictureError, Pooling, PromptPicture,
    ReadingDrafter, Request, SOFT, SamplingParams, Service, Tower, Update,
};
use trine_model::Width;

/// Runs a prompt in codes; its text must be that of the definition.
#[track_caller]
fn text(engine: &mut Engine, tower: &Tower, codes: &[u32], count: usize) -> Text {
    let mut texts = run(engine, vec![request(tower, codes, count)]);
    let text = texts.remove(0);
    assert_eq!(text.tokens, greedy(&seen(codes), count));
    text
}

#[test]
fn prefixes_end_before_a_picture_or_after_it() {
    let tower = quick(BUDGET);
    let mut engine = engine(80, 1, 4);
    let (before, after) = (prompt(1, 40), prompt(2, 30));
    let first = joined(&[&before, &picture(5), &after]);
    assert_eq!(text(&mut engine, &tower, &first, 5).statistics.reused_tokens, 0);
    let mut reused = |codes: &[u32]| text(&mut engine, &tower, codes, 5).statistics.reused_tokens;
    // The last token is always run.
    assert_eq!(reused(&first), 75);
    assert_eq!(reused(&joined(&[&before, &picture(5), &after[..10], &[1; 20]])), 56);
    // Another picture in the same places is another prompt; the places before it are kept in
    // blocks, of which more than one prompt has the first.
    assert_eq!(reused(&joined(&[&before, &picture(11), &after])), 32);
    assert_eq!(reused(&joined(&[&before, &picture(5), &picture(1), &after])), 32);
    // A prompt that ends with a picture runs all of it for its last row.
    let last = joined(&[&first, &picture(4)]);
    reused(&last);
    assert_eq!(reused(&last), 76);
    assert_eq!(tower.counts().failures, 0);
}

#[test]
fn ten_turns_over_one_picture_run_the_tower_once() {
    let tower = quick(0);
    let mut engine = engine(80, 2, 4);
    let mut codes = joined(&[&prompt(1, 9), &picture(42)]);
    for turn in 0..10 {
        codes.extend(prompt(turn, 6));
        let found = text(&mut engine, &tower, &codes, 4);
        assert_eq!(found.statistics.pictures, usize::from(turn == 0));
        assert_eq!(found.statistics.tower_seconds > 0.0, turn == 0);
        codes.extend(found.tokens);
    }
    let counts = tower.counts();
    assert_eq!((counts.pictures, counts.hits, counts.kept_bytes), (1, 0, 0));
}

#[test]
fn rows_are_kept_within_the_budget() {
    let bytes = |number: u32| 4 * 3 * size(number);
    let tower = quick(bytes(5) + bytes(11));
    let mut engine = engine(80, 1, 1);
    let mut ask = |number: u32| {
        engine.forget();
        text(&mut engine, &tower, &joined(&[&[1, 2], &picture(number), &[3]]), 1);
        let counts = tower.counts();
        (counts.pictures, counts.hits, counts.kept_bytes)
    };
    assert_eq!(ask(5), (1, 0, bytes(5)));
    assert_eq!(ask(11), (2, 0, bytes(5) + bytes(11)));
    assert_eq!(ask(5), (2, 1, bytes(5) + bytes(11)));
    // The one that was used last stays.
    assert_eq!(ask(17), (3, 1, bytes(5) + bytes(17)));
    assert_eq!(ask(5), (3, 2, bytes(5) + bytes(17)));
    assert_eq!(ask(11), (4, 2, bytes(5) + bytes(11)));
    // Larger than the budget.
    assert_eq!(ask(42), (5, 2, bytes(5) + bytes(11)));
}

#[test]
fn texts_go_on_while_a_tower_works() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 2, 4);
    engine.set_waker(|| {});
    let (plain, long) = (prompt(1, 20), prompt(2, 50));
    let codes = joined(&[&long, &picture(42), &[3]]);
    let (first, second) = (request(&gated.tower, &codes, 5), Request::new(plain.clone(), 200));
    let first = engine.submit(first).expect("it is sound");
    let second = engine.submit(second).expect("it is sound");
    let mut tokens = [Vec::new(), Vec::new()];
    let mut prefilled = 0;
    let mut step = |engine: &mut Engine, tokens: &mut [Vec<u32>; 2]| {
        for Event { sequence, update } in engine.step().expect("the device works") {
            match update {
                Update::Token { token, .. } => {
                    tokens[usize::from(sequence == second)].push(token);
                }
                Update::Prefill { done, .. } if sequence == first => prefilled = done,
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
        prefilled
    };
    for _ in 0..30 {
        step(&mut engine, &mut tokens);
    }
    assert_eq!(step(&mut engine, &mut tokens), 50, "what is before the image is run");
    assert!(tokens[0].is_empty() && tokens[1].len() > 20);
    gated.paint();
    for _ in 0..10 {
        step(&mut engine, &mut tokens);
    }
    assert_eq!(tokens[0], greedy(&seen(&codes), 5));
    assert_eq!(tokens[1], greedy(&plain, tokens[1].len()));
}

/// Steps with rows of several sequences have at most 8 here; the fake checks it.
#[test]
fn a_picture_wider_than_mixed_steps_runs_by_itself() {
    let tower = quick(BUDGET);
    let fake = Fake::new(options(256, 4, 80), &[20]).with_pictures().with_mixed_rows(8);
    let mut engine = Engine::with_running(Box::new(fake), 3);
    let codes = [
        joined(&[&prompt(1, 20), &picture(42), &prompt(2, 5)]),
        joined(&[&picture(41), &[3], &picture(43)]),
        joined(&[&prompt(4, 30), &picture(5), &[1]]),
    ];
    let requests = codes.iter().map(|codes| request(&tower, codes, 20)).collect();
    for (codes, text) in codes.iter().zip(run(&mut engine, requests)) {
        assert_eq!(text.tokens, greedy(&seen(codes), 20));
    }
}

/// A prompt that has run up to its picture leaves its place to others.
#[test]
fn a_prompt_that_waits_is_set_aside() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 1, 3);
    engine.set_waker(|| {});
    let codes = joined(&[&prompt(2, 70), &picture(42), &[3]]);
    let first = engine.submit(request(&gated.tower, &codes, 5)).expect("it is sound");
    engine.step().expect("the device works");
    engine.step().expect("the device works");
    let plain = prompt(1, 20);
    let second = engine.submit(Request::new(plain.clone(), 30)).expect("it is sound");
    let mut tokens = [Vec::new(), Vec::new()];
    let (mut costs, mut started) = (Vec::new(), 0);
    for step in 0..60 {
        if step == 40 {
            gated.paint();
        }
        for Event { sequence, update } in engine.step().expect("the device works") {
            match update {
                Update::Token { token, .. } => {
                    tokens[usize::from(sequence == second)].push(token);
                }
                Update::Started { .. } => started += 1,
                Update::Finished { statistics, .. } => {
                    costs.push((sequence, statistics.prefill_steps, statistics.preemptions));
                }
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
        assert!(step != 39 || tokens[1] == greedy(&plain, 30), "it has ended before");
    }
    assert_eq!(tokens[0], greedy(&seen(&codes), 5));
    // It went on where it was: one step before its picture, one with it.
    assert_eq!((costs, started), (vec![(second, 1, 0), (first, 2, 0)], 1));
}

/// The place of a request whose prompt begins with a picture goes to others meanwhile.
#[test]
fn a_request_waits_for_a_picture_in_the_queue() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 1, 4);
    let codes = joined(&[&[1, 2], &picture(42), &[3]]);
    let waiting = engine.submit(request(&gated.tower, &codes, 5)).expect("it is sound");
    engine.set_waker(|| {});
    let other = prompt(1, 20);
    let id = engine.submit(Request::new(other.clone(), 5)).expect("it is sound");
    let mut ended = Vec::new();
    for _ in 0..20 {
        let events = engine.step().expect("the device works");
        ended.extend(events.iter().filter(|own| own.finish().is_some()).map(|own| own.sequence));
    }
    assert_eq!(ended, [id]);
    assert!(engine.is_stalled() && !engine.is_idle());
    gated.paint();
    assert!(!engine.is_stalled(), "it was woken");
    for _ in 0..20 {
        let events = engine.step().expect("the device works");
        ended.extend(events.iter().filter(|own| own.finish().is_some()).map(|own| own.sequence));
    }
    assert_eq!(ended, [id, waiting]);
}

#[test]
fn a_step_waits_where_nothing_else_is_to_be_done() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 1, 1);
    let codes = joined(&[&prompt(1, 40), &picture(42), &[3]]);
    engine.submit(request(&gated.tower, &codes, 3)).expect("it is sound");
    let begin = Instant::now();
    let mut steps = 0;
    let mut tokens = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            gated.paint();
        });
        while !engine.is_idle() {
            steps += 1;
            for event in engine.step().expect("the device works") {
                if let Update::Token { token, .. } = event.update {
                    tokens.push(token);
                }
            }
        }
    });
    assert!(begin.elapsed() >= Duration::from_millis(200));
    assert!(steps < 40, "{steps} steps");
    assert_eq!(tokens, greedy(&seen(&codes), 3));
}

#[test]
fn a_picture_takes_a_whole_step_beside_running_texts() {
    let tower = quick(BUDGET);
    // All but two of the rows go to texts.
    let mut engine = engine(6, 5, 5);
    let texts: Vec<Vec<u32>> = (0..4).map(|seed| prompt(seed, 3)).collect();
    let mut requests: Vec<Request> =
        texts.iter().map(|text| Request::new(text.clone(), 40)).collect();
    let codes = joined(&[&prompt(9, 4), &picture(5), &prompt(8, 4)]);
    // Its rows are kept, so that nothing waits for the tower.
    text(&mut engine, &tower, &codes, 1);
    engine.forget();
    let before = engine.status().steps;
    requests.push(request(&tower, &codes, 20));
    let found = run(&mut engine, requests);
    for (text, found) in texts.iter().zip(&found) {
        assert_eq!(found.tokens, greedy(text, 40));
    }
    assert_eq!(found[4].tokens, greedy(&seen(&codes), 20));
    // It came in between, for one step in which the texts got no row.
    let steps = engine.status().steps - before;
    assert!(steps < 50, "{steps} steps");
}

#[test]
fn a_failure_ends_its_own_request() {
    let tower = quick(BUDGET);
    let mut engine = engine(80, 3, 3);
    let plain = prompt(1, 20);
    for number in BAD {
        let bad = joined(&[&prompt(2, 40), &picture(number), &[3]]);
        let at_once = joined(&[&picture(number), &[3]]);
        let requests = vec![
            Request::new(plain.clone(), 30),
            request(&tower, &bad, 5),
            request(&tower, &at_once, 5),
        ];
        let texts = run(&mut engine, requests);
        assert_eq!(texts[0].tokens, greedy(&plain, 30));
        for text in &texts[1..] {
            assert!(text.tokens.is_empty());
            assert_eq!(text.end, Some((Finish::PictureFailed, None)));
        }
    }
    let counts = tower.counts();
    assert_eq!((counts.failures, counts.waiting), (counts.pictures, 0));
    text(&mut engine, &tower, &joined(&[&[1], &picture(5), &[3]]), 5);
}

#[test]
fn rows_of_another_model_fail() {
    struct Other;
    impl trine_engine::RunsTower for Other {
        fn rows(
            &mut self,
            input: &trine_engine::TowerInput,
        ) -> Result<Vec<f32>, trine_backend::BackendError> {
            Ok(vec![1.0; 7 * input.soft_tokens])
        }
    }
    let tower = Tower::start(Other, [1; 32], BUDGET).expect("there is a thread");
    let mut engine = engine(80, 1, 1);
    let found = run(&mut engine, vec![request(&tower, &joined(&[&[1], &picture(5), &[2]]), 5)]);
    assert_eq!(found[0].end, Some((Finish::PictureFailed, None)));
    // The event says why.
    let request = request(&tower, &joined(&[&[1], &picture(5), &[2]]), 5);
    engine.submit(request).expect("it is sound");
    let mut reasons = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().expect("the device works") {
            if let Update::Finished { picture, .. } = event.update {
                reasons.push(picture);
            }
        }
    }
    let soft_tokens = size(5);
    let reason = PictureError::OtherRows { found: 7 * soft_tokens, soft_tokens };
    assert_eq!(reasons, [Some(reason)]);
}

#[test]
fn what_nobody_waits_for_is_not_run() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 4, 4);
    engine.set_waker(|| {});
    let codes = |number| joined(&[&[1], &picture(number), &[3]]);
    let ids: Vec<_> = [41, 42, 43]
        .map(|number| engine.submit(request(&gated.tower, &codes(number), 5)).expect("sound"))
        .to_vec();
    engine.step().expect("the device works");
    assert!(gated.settle());
    assert_eq!(gated.tower.counts().waiting, 3);
    // One that is being made, and one that is not.
    engine.cancel(ids[0]);
    engine.cancel(ids[1]);
    assert_eq!(gated.tower.counts().waiting, 2);
    gated.paint();
    gated.paint();
    assert_eq!(gated.tower.counts().pictures, 2);
    let mut finishes = Vec::new();
    while !engine.is_idle() {
        let events = engine.step().expect("the device works");
        finishes.extend(events.iter().filter_map(|event| Some((event.sequence, event.finish()?))));
    }
    let expected = [Finish::Cancelled, Finish::Cancelled, Finish::Length];
    assert_eq!(finishes, ids.into_iter().zip(expected).collect::<Vec<_>>());
}

#[test]
fn requests_for_one_picture_share_its_run() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 2, 2);
    engine.set_waker(|| {});
    for seed in 0..2 {
        let codes = joined(&[&prompt(seed, 40), &picture(5), &[3]]);
        engine.submit(request(&gated.tower, &codes, 5)).expect("it is sound");
        engine.step().expect("the device works");
    }
    gated.paint();
    while !engine.is_idle() {
        engine.step().expect("the device works");
    }
    let counts = gated.tower.counts();
    assert_eq!((counts.pictures, counts.hits), (1, 1));
}

#[test]
fn a_tower_that_is_stopped_fails_what_waits() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 2, 2);
    let mut codes = vec![joined(&[&[1], &picture(41), &[3]]), joined(&[&[1], &picture(42), &[3]])];
    for codes in &codes {
        engine.submit(request(&gated.tower, codes, 5)).expect("it is sound");
    }
    engine.step().expect("the device works");
    assert!(gated.settle());
    // The run ends without rows.
    let tower = gated.into_tower();
    tower.stop();
    codes.push(joined(&[&[1], &picture(43), &[3]]));
    engine.submit(request(&tower, &codes[2], 5)).expect("it is sound");
    let mut finishes = Vec::new();
    while !engine.is_idle() {
        finishes.extend(engine.step().expect("the device works").iter().filter_map(Event::finish));
    }
    assert_eq!(finishes, [Finish::PictureFailed; 3]);
}

#[test]
fn a_service_is_woken_and_ends_while_it_waits() {
    let gated = Gated::new(BUDGET);
    let service = Service::start(engine(80, 2, 2)).expect("there is a thread");
    let codes = joined(&[&[1], &picture(42), &[3]]);
    let mut generation = service.submit(request(&gated.tower, &codes, 5)).expect("it is sound");
    until(|| gated.settle());
    // Others are served meanwhile.
    let plain = prompt(1, 20);
    let mut other = service.submit(Request::new(plain.clone(), 5)).expect("it is sound");
    assert_eq!(read(&mut other).0, greedy(&plain, 5));
    gated.paint();
    assert_eq!(read(&mut generation).0, greedy(&seen(&codes), 5));
    // A deadline passes while nothing else happens.
    let late = Request {
        deadline: Some(Instant::now() + Duration::from_millis(50)),
        ..request(&gated.tower, &joined(&[&[1], &picture(43), &[3]]), 5)
    };
    let mut late = service.submit(late).expect("it is sound");
    assert_eq!(read(&mut late).1, Some(Finish::Deadline));
    let waiting = service.submit(request(&gated.tower, &joined(&[&[1], &picture(44)]), 5));
    until(|| service.status().waiting == 1);
    drop(waiting);
    service.stop();
    // The handles of a service end its thread, whatever a tower still does.
    let service = Service::start(engine(80, 2, 2)).expect("there is a thread");
    let handle = request(&gated.tower, &joined(&[&[1], &picture(45), &[3]]), 5);
    drop(service.submit(handle).expect("it is sound"));
    drop(service);
}

/// Sizes with room for the logits of guesses.
fn guessing() -> ProgramOptions {
    let sizes = options(256, 1, 16);
    ProgramOptions { width: Width { outputs: 16, ..sizes.width }, ..sizes }
}

/// A draft that reads the caches of the model it guesses for needs no rows of pictures.
#[test]
fn guesses_come_after_pictures() {
    let tower = quick(BUDGET);
    let fake = Fake::new(guessing(), &[20]).with_draft(0).with_pictures();
    let mut engine = Engine::from_program(Box::new(fake));
    let drafter = ReadingDrafter::of(engine.program().facts()).expect("it has a draft");
    engine.set_drafts(Drafts { lookup: true, drafter: Some(Box::new(drafter)) });
    engine.set_guesses(Some(3));
    let codes = joined(&[&prompt(1, 9), &picture(5), &prompt(2, 9)]);
    let found = text(&mut engine, &tower, &codes, 40);
    assert!(found.statistics.accepted_tokens > 20, "{:?}", found.statistics);
}

/// What followed the last tokens before was a picture.
#[test]
fn no_soft_token_is_guessed() {
    let tower = quick(BUDGET);
    let fake = Fake::new(guessing(), &[20]).with_pictures();
    let mut engine = Engine::from_program(Box::new(fake));
    engine.set_drafts(Drafts { lookup: true, drafter: None });
    engine.set_guesses(Some(3));
    let codes = joined(&[&[7, 7], &picture(5), &[1, 2, 3]]);
    let sampling = SamplingParams { logit_bias: vec![(7, 100.0)], ..SamplingParams::greedy() };
    let request = Request { sampling, ..request(&tower, &codes, 20) };
    let found = run(&mut engine, vec![request]).remove(0);
    assert_eq!(found.tokens, [7; 20]);
    assert!(found.statistics.accepted_tokens > 10, "it repeats itself");
}

#[test]
fn many_clients_get_their_own_texts() {
    let tower = quick(200);
    let service = Service::start(engine(80, 3, 5)).expect("there is a thread");
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (tower, service) = (tower.clone(), service.clone());
            scope.spawn(move || {
                for round in 0..40 {
                    let numbers = [(client + round) % 7, round % 5, 40 + round % 3];
                    let [a, b, c] = numbers.map(picture);
                    let codes = joined(&[&[client], &a, &b, &prompt(u64::from(client), 9), &c]);
                    let asked = request(&tower, &codes, 6);
                    let mut generation = service.submit(asked).expect("there is room");
                    if (client + round) % 5 == 0 {
                        // It goes away.
                        continue;
                    }
                    assert_eq!(read(&mut generation).0, greedy(&seen(&codes), 6));
                }
            });
        }
    });
    service.stop();
    let counts = tower.counts();
    assert_eq!((counts.failures, counts.waiting), (0, 0));
}

#[test]
fn prefixes_with_pictures_come_back_from_disk() {
    let shelf = Shelf::default();
    let tower = quick(0);
    let engine = |store: u64| {
        let mut engine = engine(100, 1, 1);
        let origin = Origin::new([1; 32], engine.program().facts()).expect("it gives pages");
        engine.set_page_store(Box::new(shelf.store(store, Faults::default())), origin);
        engine
    };
    // The third block is all of one picture, which ends in the fourth.
    let (before, after) = (prompt(1, 50), prompt(2, 60));
    let codes = joined(&[&before, &picture(42), &after]);
    let mut first = engine(1);
    text(&mut first, &tower, &codes, 5);
    first.spill_kept().expect("the device gives pages");
    assert_eq!(tower.counts().pictures, 1);
    let again = text(&mut engine(2), &tower, &codes, 5);
    assert_eq!((again.statistics.reused_tokens, tower.counts().pictures), (5 * BLOCK, 1));
    // Others of the same size, and neighbours that its rows would see.
    for others in [
        joined(&[&before, &picture(43), &after]),
        joined(&[&before, &picture(42), &picture(1), &after]),
        joined(&[&before[..49], &picture(0), &picture(42), &after]),
    ] {
        let found = text(&mut engine(3), &tower, &others, 5);
        assert_eq!(found.statistics.reused_tokens, 0);
    }
    // Blocks that end inside it are of no use.
    let cut = joined(&[&before, &picture(42), &[7; 3]]);
    assert_eq!(text(&mut engine(4), &tower, &cut, 5).statistics.reused_tokens, 0);
}

#[test]
fn requests_are_checked() {
    let tower = quick(BUDGET);
    let mut engine = engine(8, 1, 1);
    let good = request(&tower, &joined(&[&[1], &picture(5), &[2], &picture(1), &picture(2)]), 1);
    engine.limits().check(&good).expect("it is sound");
    let check = |change: &dyn Fn(&mut Request), mark: &str| {
        let mut request = request(&tower, &joined(&[&[1], &picture(5), &[2], &picture(1)]), 1);
        change(&mut request);
        let error = engine.limits().check(&request).expect_err(mark).to_string();
        assert!(error.contains(mark), "{error}");
    };
    check(
        &|own| Arc::make_mut(&mut own.pictures)[0].at = 2,
        "image 0 of the prompt has 6 soft tokens from index 2",
    );
    check(&|own| Arc::make_mut(&mut own.pictures).swap(0, 1), "image 0");
    check(
        &|own| own.pictures = own.pictures[..1].into(),
        "image 1 of the prompt has 0 soft tokens from index 8",
    );
    check(&|own| own.pictures = own.pictures[1..].into(), "image 0");
    check(&|own| own.pictures = Arc::default(), "token id 4294967295");
    check(&|own| Arc::make_mut(&mut own.pictures)[1].at = usize::MAX, "image 1");
    check(&|own| Arc::make_mut(&mut own.pictures)[1].at = 1, "image 1");
    check(&|own| own.prompt[3] = 0, "image 0");
    check(&|own| own.prompt[7] = SOFT, "image 1");
    check(&|own| own.prompt[0] = 48, "token id 48");
    let add = |own: &mut Request, picture| {
        own.pictures = own.pictures.iter().cloned().chain([picture]).collect();
    };
    check(
        &|own| {
            let (at, handle) = (own.prompt.len(), tower.handle(looks::input(5)));
            own.prompt.extend([SOFT; 6]);
            add(own, PromptPicture { at, handle });
            own.prompt.extend([SOFT; 2]);
            let (at, handle) = (own.prompt.len() - 2, tower.handle(looks::input(1)));
            add(own, PromptPicture { at, handle });
        },
        "10 soft tokens, and a step takes 8",
    );
    let embedding =
        Request { pictures: good.pictures.clone(), ..Request::embedding(vec![1], Pooling::Mean) };
    assert!(matches!(engine.submit(embedding), Err(EngineError::NoEmbeddings)));
    let blind = Engine::from_program(Box::new(Fake::new(options(64, 1, 8), &[20])));
    assert_eq!(blind.limits().picture, None);
    assert!(matches!(blind.limits().check(&good), Err(EngineError::NoPictures)));
    let states = Fake::new(options(64, 1, 8), &[20]).with_states().with_pictures();
    let mut states = Engine::from_program(Box::new(states));
    let embedding =
        Request { job: trine_engine::ResultKind::Embed(Pooling::Mean), max_tokens: 0, ..good };
    let error = states.submit(embedding).expect_err("it has images").to_string();
    assert!(error.contains("images is 3"), "{error}");
    let embedding = Request::embedding(vec![1, 2, 3], Pooling::Mean);
    states.submit(embedding).expect("it is sound");
    while !states.is_idle() {
        states.step().expect("a step of another goal gets no rows of images");
    }
}

/// A walk that started again for each request would look at half a million.
#[test]
fn a_long_queue_is_walked_once_for_all_its_pictures() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 2, 4);
    engine.set_queue(1024, usize::MAX);
    engine.set_waker(|| {});
    for _ in 0..1024 {
        let codes = joined(&[&[1, 2], &picture(5), &[3]]);
        engine.submit(request(&gated.tower, &codes, 5)).expect("it is sound");
    }
    engine.step().expect("the device works");
    assert_eq!(engine.visits(), 1024);
}
