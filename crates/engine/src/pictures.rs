//! Pictures of prompts: what names them, and the thread that makes their rows
//! (`docs/decisions/050-pictures-in-prompts.md`).
//!
//! ```text
//! TowerInput -> Tower::sight -> Sight, in Request::pictures
//! Engine: Sight::want -> Desk -> thread of the Tower: RunsTower::rows -> Sight::rows
//! ```

mod album;
mod bell;
mod desk;
mod input;
mod sight;
mod tower;

pub(crate) use album::{PictureSpan, PictureSpans};
pub(crate) use bell::WakeSignal;
pub use desk::TowerCounts;
pub use input::{PictureError, RunsTower, TowerInput};
pub use sight::PictureHandle;
pub use tower::Tower;
