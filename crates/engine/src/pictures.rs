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

pub(crate) use album::{Album, Shown};
pub(crate) use bell::Bell;
pub use desk::TowerCounts;
pub use input::{RunsTower, SightError, TowerInput};
pub use sight::Sight;
pub use tower::Tower;
