//! Pictures of prompts: what names them, and the thread that makes their rows
//! (`docs/decisions/050-pictures-in-prompts.md`).
//!
//! ```text
//! TowerInput -> Tower::handle -> PictureHandle, in Request::pictures
//! Engine: PictureHandle::want -> TowerQueue -> thread of the Tower: RunsTower::rows -> PictureHandle::rows
//! ```

mod handle;
mod input;
mod queue;
mod spans;
mod tower;
mod wake;

pub use handle::PictureHandle;
pub use input::{PictureError, RunsTower, TowerInput};
pub use queue::TowerCounts;
pub(crate) use spans::{PictureSpan, PictureSpans};
pub use tower::Tower;
pub(crate) use wake::WakeSignal;
