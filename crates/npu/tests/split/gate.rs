//! A model on which a call can be held.

use std::sync::{Arc, Condvar, Mutex};

use trine_npu::sys::abi;
use trine_npu_model::ModelSys;

use crate::changed::Changed;

#[derive(Default)]
struct State {
    is_closed: bool,
    waiting: usize,
    /// How many may pass although it is closed.
    passes: usize,
}

/// Holds calls while it is closed.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Gate {
    /// Puts the gate before the waits of a model.
    pub(crate) fn before(&self, model: ModelSys) -> Changed {
        let gate = self.clone();
        let mut changed = Changed::of(model);
        changed.ioctl = Arc::new(move |model, file, number, argument, pointed| {
            if number == abi::TIMELINE_WAIT {
                gate.pass();
            }
            trine_npu::sys::Sys::ioctl(model, file, number, argument, pointed)
        });
        changed
    }

    /// Puts the gate before the mappings of a model.
    pub(crate) fn before_maps(&self, model: ModelSys) -> Changed {
        let gate = self.clone();
        let mut changed = Changed::of(model);
        changed.map = Arc::new(move |model, file, offset, bytes, alignment| {
            gate.pass();
            trine_npu::sys::Sys::map(model, file, offset, bytes, alignment)
        });
        changed
    }

    /// Lets some through.
    pub(crate) fn let_pass(&self, count: usize) {
        self.state.0.lock().unwrap().passes += count;
        self.state.1.notify_all();
    }

    pub(crate) fn close(&self) {
        self.state.0.lock().unwrap().is_closed = true;
    }

    pub(crate) fn open(&self) {
        self.state.0.lock().unwrap().is_closed = false;
        self.state.1.notify_all();
    }

    pub(crate) fn wait_until_somebody_waits(&self) {
        let state = self.state.0.lock().unwrap();
        drop(self.state.1.wait_while(state, |state| state.waiting == 0).unwrap());
    }

    fn pass(&self) {
        let mut state = self.state.0.lock().unwrap();
        if state.is_closed {
            state.waiting += 1;
            self.state.1.notify_all();
            let is_held = |state: &mut State| state.is_closed && state.passes == 0;
            let mut state = self.state.1.wait_while(state, is_held).unwrap();
            state.waiting -= 1;
            state.passes = state.passes.saturating_sub(1);
        }
    }
}
