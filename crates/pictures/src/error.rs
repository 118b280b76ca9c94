//! What can be wrong with a picture or with what a model says of pictures.

use crate::Format;

/// What is wrong with a picture, and what to do about it. No message repeats bytes of the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// The file is empty.
    #[error("the image is empty: it has no bytes; send a PNG, JPEG, WebP or GIF file")]
    Empty,
    /// The file has more bytes than [`Limits::bytes`](crate::Limits::bytes).
    #[error(
        "an image of {} bytes is larger than {} bytes; make it smaller",
        thousands(*bytes),
        thousands(*limit)
    )]
    TooManyBytes {
        /// The bytes of the file.
        bytes: u64,
        /// The most bytes allowed.
        limit: u64,
    },
    /// The header announces more pixels than [`Limits::pixels`](crate::Limits::pixels).
    #[error(
        "an image of {} x {} pixels has more than {} pixels; make it smaller",
        thousands(*width),
        thousands(*height),
        thousands(*limit)
    )]
    TooManyPixels {
        /// Pixels from left to right.
        width: u64,
        /// Pixels from top to bottom.
        height: u64,
        /// The most pixels allowed.
        limit: u64,
    },
    /// A side is longer than [`Limits::side`](crate::Limits::side).
    #[error(
        "an image of {} x {} pixels has a side of more than {} pixels; make it smaller",
        thousands(*width),
        thousands(*height),
        thousands(*limit)
    )]
    TooLong {
        /// Pixels from left to right.
        width: u64,
        /// Pixels from top to bottom.
        height: u64,
        /// The most pixels of a side.
        limit: u64,
    },
    /// The lossless part of a WebP file is larger than decoding it in bounded memory allows.
    #[error(
        "a WebP image has {} bytes without loss, more than {}; save it as PNG or JPEG",
        thousands(*bytes),
        thousands(*limit)
    )]
    TooMuchLossless {
        /// The bytes of lossless data.
        bytes: u64,
        /// The most bytes allowed.
        limit: u64,
    },
    /// The file has more scans than are read: each costs a pass over the picture.
    #[error("a JPEG has more than {limit} scans; save it again")]
    TooManyScans {
        /// The most scans allowed for its size.
        limit: usize,
    },
    /// The file begins as no picture does that is known here.
    #[error("the file is no PNG, JPEG, WebP or GIF; send one of these")]
    Unknown,
    /// The file is of a kind that is recognised and not read.
    #[error("{name} is not read; convert the image to PNG, JPEG, WebP or GIF")]
    OtherFormat {
        /// The format's name.
        name: &'static str,
    },
    /// The file uses a rare form of its format.
    #[error("this form of {format} is not read; save the image as PNG or as a plain JPEG")]
    Unsupported {
        /// The format of the file.
        format: Format,
    },
    /// The file contradicts its format or ends too early.
    #[error("the {format} is damaged or cut short; send it again, or save it again")]
    Damaged {
        /// The format of the file.
        format: Format,
    },
    /// A text is no data URL with a picture in base64.
    #[error("an image's URL has to begin like data:image/png;base64,")]
    NoDataUrl,
    /// The text of a data URL is not base64.
    #[error("the image's base64 is wrong at character {at}; encode the bytes of its file again")]
    NoBase64 {
        /// The number of the character in the text, from 1.
        at: usize,
    },
}

/// What a model says of its pictures and cannot be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PreparationError {
    /// A size is zero.
    #[error("{what} is zero; the model's vision configuration is damaged")]
    Zero {
        /// Which size.
        what: &'static str,
    },
    /// The sides of pictures are not a whole number of pooled patches.
    #[error(
        "images of {side} pixels a side are not whole patches of {patch} pixels pooled by \
         {pooling}; the model's vision configuration is damaged"
    )]
    Indivisible {
        /// Pixels of a side.
        side: u32,
        /// Pixels of a patch's side.
        patch: u32,
        /// Patches of a soft token's side.
        pooling: u32,
    },
    /// A prepared picture would have an absurd number of pixels.
    #[error(
        "prepared images of {} pixels are larger than {}; the model's vision configuration is \
         damaged, or its token budget too large",
        thousands(*pixels),
        thousands(*limit)
    )]
    TooLarge {
        /// The most pixels that a prepared picture would have.
        pixels: u64,
        /// The most pixels allowed.
        limit: u64,
    },
    /// A mean or standard deviation is not finite, or a standard deviation is not positive.
    #[error("mean and standard deviation of pixels are wrong; the preprocessor's file is damaged")]
    Statistics,
}

/// Returns a number with a comma after each group of three digits.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_numbers_and_remedies() {
        let error = PictureError::TooManyPixels { width: 40_000, height: 999, limit: 1_000_000 };
        assert_eq!(
            error.to_string(),
            "an image of 40,000 x 999 pixels has more than 1,000,000 pixels; make it smaller"
        );
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(1000), "1,000");
        assert_eq!(
            PictureError::Damaged { format: Format::Jpeg }.to_string(),
            "the JPEG is damaged or cut short; send it again, or save it again"
        );
    }
}
