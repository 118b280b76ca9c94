//! When hidden states are taken for a drafter.

use std::path::Path;

use trine_backend::BackendError;
use trine_backend::reference::ReferenceDevice;
use trine_model::{Assistant, Model};
use trine_weights::WeightsError;

use crate::Target;
use crate::{Ask, Drafter, Drafts, Engine, EngineOptions, Request};

/// A drafter whose weights are void.
struct Void;

impl Drafter for Void {
    fn draft(
        &mut self,
        _target: &mut Target<'_>,
        _asks: &[Ask<'_>],
        _readable: usize,
        _guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        Err(WeightsError::Changed { file: "draft".to_owned(), what: "was cut".to_owned() }.into())
    }
}

/// Nobody reads the hidden states of steps once the drafter is lost, or without one.
#[test]
fn states_are_taken_while_a_drafter_may_read_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/gemma4-dense");
    let draft = Assistant::open(&folder.join("assistant")).expect("the draft opens");
    let model = Model::open(&folder).expect("the model opens");
    let model = model.with_assistant(draft).expect("they belong together");
    let options = EngineOptions { context: Some(64), outputs: 4, ..EngineOptions::default() };
    for has_drafter in [true, false] {
        let mut engine = Engine::new(&model, &ReferenceDevice::new(), options).expect("it loads");
        let drafter: Option<Box<dyn Drafter>> =
            if has_drafter { Some(Box::new(Void)) } else { None };
        engine.set_drafts(Drafts { lookup: true, drafter });
        engine.set_guesses(Some(1));
        engine.submit(Request::new(vec![2, 10, 11], 6)).expect("a sound request");
        engine.step().expect("the device does not fail");
        assert_eq!(engine.states.is_empty(), !has_drafter);
        while has_drafter && !engine.status().draft_lost {
            engine.step().expect("the device does not fail");
        }
        engine.states.clear();
        assert!(!engine.is_idle() && !engine.takes_states());
        while !engine.is_idle() {
            engine.step().expect("the device does not fail");
            assert!(engine.states.is_empty());
        }
    }
}
