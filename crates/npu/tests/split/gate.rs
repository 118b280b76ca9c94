//! A model on which a wait for a command can be held.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use trine_npu::sys::model::ModelSys;
use trine_npu::sys::{Errno, File, Pointed, Process, Sys, abi};

#[derive(Default)]
struct State {
    is_closed: bool,
    waiting: usize,
}

#[derive(Clone)]
pub(crate) struct Gate {
    model: ModelSys,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Gate {
    pub(crate) fn new(model: ModelSys) -> Self {
        Self { model, state: Arc::default() }
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
            drop(self.state.1.wait_while(state, |state| state.is_closed).unwrap());
        }
    }
}

impl Sys for Gate {
    fn process(&self) -> &Process {
        self.model.process()
    }
    fn process_id(&self) -> i64 {
        self.model.process_id()
    }
    fn read_text(&self, path: &str) -> Result<String, Errno> {
        self.model.read_text(path)
    }
    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        self.model.list(path)
    }
    fn open(&self, path: &str) -> Result<File, Errno> {
        self.model.open(path)
    }
    fn close(&self, file: File) {
        self.model.close(file);
    }
    fn ioctl(
        &self,
        file: File,
        number: u32,
        argument: &mut [u8],
        pointed: &mut [Pointed<'_>],
    ) -> Result<(), Errno> {
        if number == abi::TIMELINE_WAIT {
            self.pass();
        }
        self.model.ioctl(file, number, argument, pointed)
    }
    fn map(&self, file: File, offset: u64, bytes: u64, alignment: u64) -> Result<u64, Errno> {
        self.model.map(file, offset, bytes, alignment)
    }
    fn unmap(&self, address: u64) {
        self.model.unmap(address);
    }
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.model.read(address, bytes)
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.model.write(address, bytes)
    }
    fn flush(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        self.model.flush(address, bytes)
    }
    fn now(&self) -> Duration {
        self.model.now()
    }
}
