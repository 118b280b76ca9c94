//! From the bytes of a picture's file to the numbers that a vision tower reads.
//!
//! [`Picture::decode`] reads PNG, JPEG, WebP and the first frame of GIF, recognised by content.
//! [`Preparation`] says what a model's tower wants, and makes a [`Prepared`] picture: resized as
//! Pillow does it, with its patches as rows, the number of its soft tokens, and a [`Digest`].
//!
//! Everything in a file is hostile. The number of bytes and pixels is limited before anything is
//! decoded ([`Limits`]), and no decoder used here has unsafe code; of what they use, only checksums
//! have.

#![forbid(unsafe_code)]

mod data_url;
mod decoded;
mod digest;
mod error;
mod format;
mod formats;
mod limits;
mod orientation;
mod picture;
mod preparation;
mod prepared;
mod resample;

pub use data_url::{from_base64, from_data_url};
pub use digest::Digest;
pub use error::{PictureError, PreparationError};
pub use format::Format;
pub use limits::Limits;
pub use picture::Picture;
pub use preparation::Preparation;
pub use prepared::Prepared;
