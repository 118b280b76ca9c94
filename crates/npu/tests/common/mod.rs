//! A model of which a test changes calls. Shared by the tests of the driver and of split prompts.

use std::sync::Arc;

use trine_npu::sys::{Errno, File, Pointed, Sys};
use trine_npu_model::ModelSys;

/// What takes the place of a model's calls.
type Ioctl =
    dyn Fn(&ModelSys, File, u32, &mut [u8], &mut [Pointed<'_>]) -> Result<(), Errno> + Send + Sync;
type Map = dyn Fn(&ModelSys, File, u64, u64, u64) -> Result<u64, Errno> + Send + Sync;
type Write = dyn Fn(&ModelSys, u64, &[u8]) -> Result<(), Errno> + Send + Sync;
type Flush = dyn Fn(&ModelSys, u64, u64) -> Result<(), Errno> + Send + Sync;

/// A model of which a test can change some calls.
pub(crate) struct Changed {
    pub(crate) model: ModelSys,
    pub(crate) ioctl: Arc<Ioctl>,
    pub(crate) map: Arc<Map>,
    pub(crate) write: Arc<Write>,
    pub(crate) flush: Arc<Flush>,
}

impl Changed {
    /// The model as it is.
    pub(crate) fn of(model: ModelSys) -> Self {
        Self {
            model,
            ioctl: Arc::new(ModelSys::ioctl),
            map: Arc::new(ModelSys::map),
            write: Arc::new(ModelSys::write),
            flush: Arc::new(ModelSys::flush),
        }
    }
}

impl Sys for Changed {
    fn process(&self) -> &trine_npu::sys::Process {
        self.model.process()
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
        (self.ioctl)(&self.model, file, number, argument, pointed)
    }
    fn map(&self, file: File, offset: u64, bytes: u64, alignment: u64) -> Result<u64, Errno> {
        (self.map)(&self.model, file, offset, bytes, alignment)
    }
    fn unmap(&self, address: u64) {
        self.model.unmap(address);
    }
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.model.read(address, bytes)
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        (self.write)(&self.model, address, bytes)
    }
    fn flush(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        (self.flush)(&self.model, address, bytes)
    }
    fn now(&self) -> std::time::Duration {
        self.model.now()
    }
    fn sleep(&self, time: std::time::Duration) {
        self.model.sleep(time);
    }
}
