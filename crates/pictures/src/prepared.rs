//! A prepared picture, and its numbers in the order of a tower's input.

use sha2::{Digest as _, Sha256};

use crate::preparation::Shape;
use crate::{Digest, Preparation};

/// A picture as a tower reads it.
#[derive(Clone, PartialEq)]
pub struct Prepared {
    preparation: Preparation,
    width: u32,
    height: u32,
    /// (height, width, 3)
    rgb: Vec<u8>,
}

impl Prepared {
    /// `rgb` has the shape (height, width, 3); both sides are multiples of patch x pooling.
    pub(crate) fn new(preparation: Preparation, width: u32, height: u32, rgb: Vec<u8>) -> Prepared {
        debug_assert_eq!(rgb.len(), width as usize * height as usize * 3);
        Prepared { preparation, width, height, rgb }
    }

    /// Returns the pixels from left to right.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the pixels from top to bottom.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the columns and rows of patches.
    #[must_use]
    pub fn patches(&self) -> (u32, u32) {
        (self.width / self.preparation.patch, self.height / self.preparation.patch)
    }

    /// Returns the number of soft tokens that stand for the picture in a prompt.
    #[must_use]
    pub fn soft_tokens(&self) -> u32 {
        let (columns, rows) = self.patches();
        let pooling = self.preparation.pooling;
        (columns / pooling) * (rows / pooling)
    }

    /// Returns the resized pixels before they become numbers, (height, width, 3).
    #[must_use]
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// Returns the patches as rows of a tower's input, (patches, 3 x patch x patch): row by row of
    /// the grid, each in the order that [`Preparation::square`] and [`Preparation::budget`] name.
    #[must_use]
    pub fn rows(&self) -> Vec<f32> {
        let values = self.values();
        let patch = self.preparation.patch as usize;
        let line = self.width as usize * 3;
        let is_by_channel = matches!(self.preparation.shape, Shape::Square { .. });
        let (columns, rows) = self.patches();
        let mut numbers = Vec::with_capacity(self.rgb.len());
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
        {
            let start = row as usize * patch * line + column as usize * patch * 3;
            let lines = (0..patch).map(|y| &self.rgb[start + y * line..][..patch * 3]);
            if is_by_channel {
                for (channel, values) in values.iter().enumerate() {
                    let pixels = lines.clone().flat_map(|line| line[channel..].iter().step_by(3));
                    numbers.extend(pixels.map(|&pixel| values[usize::from(pixel)]));
                }
            } else {
                let pixels = lines.flat_map(|line| line.chunks_exact(3));
                numbers.extend(pixels.flat_map(|pixel| {
                    [0, 1, 2].map(|channel| values[channel][usize::from(pixel[channel])])
                }));
            }
        }
        numbers
    }

    /// Returns the numbers as planes, (3, height, width).
    #[must_use]
    pub fn planes(&self) -> Vec<f32> {
        let values = self.values();
        let plane = |channel: usize| {
            let pixels = self.rgb[channel..].iter().step_by(3);
            pixels.map(move |&pixel| (channel, pixel))
        };
        let pixels = [0, 1, 2].into_iter().flat_map(plane);
        pixels.map(|(channel, pixel)| values[channel][usize::from(pixel)]).collect()
    }

    /// Returns the name of this picture in this preparation.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        hash.update(b"trine prepared picture 1");
        let preparation = &self.preparation;
        for number in [preparation.patch, preparation.pooling, self.width, self.height] {
            hash.update(number.to_le_bytes());
        }
        match preparation.shape {
            Shape::Square { mean, std, .. } => {
                hash.update(b"s");
                mean.iter().chain(&std).for_each(|number| hash.update(number.to_le_bytes()));
            }
            // The budget has decided the size, which is hashed.
            Shape::Budget { .. } => hash.update(b"b"),
        }
        hash.update(&self.rgb);
        Digest(hash.finalize().into())
    }

    /// Returns the number that each pixel value becomes in each channel.
    fn values(&self) -> [[f32; 256]; 3] {
        let number = |channel: usize, pixel: usize| {
            let share = pixel as f32 / 255.0;
            match self.preparation.shape {
                Shape::Square { mean, std, .. } => (share - mean[channel]) / std[channel],
                Shape::Budget { .. } => share,
            }
        };
        std::array::from_fn(|channel| std::array::from_fn(|pixel| number(channel, pixel)))
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Prepared({} x {}, {:?})", self.width, self.height, self.preparation)
    }
}
