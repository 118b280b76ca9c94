//! What a model's tower wants of a picture.

use crate::resample::{Filter, resize};
use crate::{Picture, PreparationError, Prepared};

/// The most pixels of a prepared picture: 8 times those of the largest budget of Gemma 4, 1,120
/// soft tokens of 48 x 48 pixels.
const PIXELS_MAX: u64 = 8 * 1120 * 48 * 48;

/// How a model's pictures are prepared.
#[derive(Debug, Clone, PartialEq)]
pub struct Preparation {
    pub(crate) shape: Shape,
    /// Pixels of a patch's side.
    pub(crate) patch: u32,
    /// Patches of a soft token's side.
    pub(crate) pooling: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shape {
    Square { side: u32, mean: [f32; 3], std: [f32; 3] },
    Budget { tokens: u32 },
}

impl Preparation {
    /// The preparation of Gemma 3: exactly `side` x `side` pixels whatever the picture's shape,
    /// with a triangle filter; values are (v / 255 - mean) / std.
    ///
    /// A patch has `patch` x `patch` pixels, a soft token `pooling` x `pooling` patches. Rows of
    /// patches are in the order of a convolution's weight: channel, row, column.
    /// Gemma 3 has 896, 14, 4, and 0.5 for mean and std.
    ///
    /// # Errors
    ///
    /// If the sizes do not fit one another or the statistics are no numbers to divide by.
    pub fn square(
        side: u32,
        patch: u32,
        pooling: u32,
        mean: [f32; 3],
        std: [f32; 3],
    ) -> Result<Preparation, PreparationError> {
        check_sizes(&[("image size", side), ("patch size", patch), ("pooling", pooling)])?;
        if !u64::from(side).is_multiple_of(u64::from(patch) * u64::from(pooling)) {
            return Err(PreparationError::Indivisible { side, patch, pooling });
        }
        check_pixels(u128::from(side) * u128::from(side))?;
        let is_sound = |std: &f32| std.is_finite() && *std > 0.0;
        if !mean.iter().all(|mean| mean.is_finite()) || !std.iter().all(is_sound) {
            return Err(PreparationError::Statistics);
        }
        Ok(Preparation { shape: Shape::Square { side, mean, std }, patch, pooling })
    }

    /// The preparation of Gemma 4: as large as `tokens` soft tokens allow, the shape kept as well
    /// as whole soft tokens do, with a cubic filter; values are v / 255.
    ///
    /// A patch has `patch` x `patch` pixels, a soft token `pooling` x `pooling` patches. Rows of
    /// patches are in the order row, column, channel. Gemma 4 has 16 and 3 where it has a tower;
    /// 12B, which has none, has 48 and 1. 280 tokens are usual.
    ///
    /// # Errors
    ///
    /// If a size is zero or the budget absurd.
    pub fn budget(patch: u32, pooling: u32, tokens: u32) -> Result<Preparation, PreparationError> {
        check_sizes(&[("patch size", patch), ("pooling", pooling), ("token budget", tokens)])?;
        let side = u128::from(patch) * u128::from(pooling);
        check_pixels(side.saturating_mul(side).saturating_mul(u128::from(tokens)))?;
        Ok(Preparation { shape: Shape::Budget { tokens }, patch, pooling })
    }

    /// Returns the width and height in pixels that a picture of `width` x `height` is resized to.
    #[must_use]
    pub fn size(&self, width: u32, height: u32) -> (u32, u32) {
        match self.shape {
            Shape::Square { side, .. } => (side, side),
            Shape::Budget { tokens } => {
                let unit = self.patch * self.pooling;
                let (columns, rows) = fit(width.max(1), height.max(1), unit, tokens);
                (columns * unit, rows * unit)
            }
        }
    }

    /// Returns the number of soft tokens that stand for a picture of `width` x `height` pixels. It
    /// does not change if the two are exchanged.
    #[must_use]
    pub fn soft_tokens(&self, width: u32, height: u32) -> u32 {
        let (width, height) = self.size(width, height);
        let unit = self.patch * self.pooling;
        (width / unit) * (height / unit)
    }

    /// Returns whether [`Preparation::size`] and [`Preparation::soft_tokens`] depend on the size of
    /// the picture.
    #[must_use]
    pub fn depends_on_size(&self) -> bool {
        matches!(self.shape, Shape::Budget { .. })
    }

    /// Returns the bytes that the numbers of a picture of `width` x `height` pixels take, once it
    /// is prepared.
    #[must_use]
    pub fn bytes(&self, width: u32, height: u32) -> usize {
        let (width, height) = self.size(width, height);
        width as usize * height as usize * 3 * size_of::<f32>()
    }

    /// Prepares a picture.
    #[must_use]
    pub fn prepare(&self, picture: &Picture) -> Prepared {
        let (width, height) = self.size(picture.width(), picture.height());
        let filter = match self.shape {
            Shape::Square { .. } => Filter::Triangle,
            Shape::Budget { .. } => Filter::Cubic,
        };
        let rgb = resize(
            picture.rgb(),
            (picture.width() as usize, picture.height() as usize),
            (width as usize, height as usize),
            filter,
        );
        Prepared::new(self.clone(), width, height, rgb)
    }
}

/// Returns columns and rows of soft tokens of `unit` x `unit` pixels: the largest area within the
/// budget of the picture's shape, both sides rounded down. A side that would vanish has one soft
/// token, and the other the picture's ratio, rounded down.
fn fit(width: u32, height: u32, unit: u32, tokens: u32) -> (u32, u32) {
    let budget = f64::from(tokens) * f64::from(unit) * f64::from(unit);
    let factor = (budget / (f64::from(width) * f64::from(height))).sqrt();
    let units = |side: u32| (factor * f64::from(side) / f64::from(unit)).floor() as u32;
    match (units(width), units(height)) {
        // Only rounding makes both vanish, for a square and one token.
        (0, 0) => (1, 1),
        (_, 0) => ((width / height).clamp(1, tokens), 1),
        (0, _) => (1, (height / width).clamp(1, tokens)),
        sides => sides,
    }
}

fn check_sizes(sizes: &[(&'static str, u32)]) -> Result<(), PreparationError> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((what, _)) => Err(PreparationError::Zero { what }),
        None => Ok(()),
    }
}

fn check_pixels(pixels: u128) -> Result<(), PreparationError> {
    let pixels = u64::try_from(pixels).unwrap_or(u64::MAX);
    if pixels > PIXELS_MAX {
        return Err(PreparationError::TooLarge { pixels, limit: PIXELS_MAX });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: u32, height: u32) -> Picture {
        let rgb = (0..width * height * 3).map(|value| (value * 31 % 251) as u8).collect();
        Picture::from_rgb(width, height, rgb).unwrap()
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let square = |side, patch, pooling| {
            Preparation::square(side, patch, pooling, [0.5; 3], [0.5; 3]).unwrap_err()
        };
        assert_eq!(square(0, 14, 4), PreparationError::Zero { what: "image size" });
        assert_eq!(square(896, 14, 0), PreparationError::Zero { what: "pooling" });
        let expected = PreparationError::Indivisible { side: 897, patch: 14, pooling: 4 };
        assert_eq!(square(897, 14, 4), expected);
        let expected =
            PreparationError::Indivisible { side: 8, patch: u32::MAX, pooling: u32::MAX };
        assert_eq!(square(8, u32::MAX, u32::MAX), expected);
        assert!(matches!(square(1 << 20, 16, 4), PreparationError::TooLarge { .. }));
        for (mean, std) in [(f32::NAN, 0.5), (0.5, 0.0), (0.5, -1.0), (0.5, f32::INFINITY)] {
            let found = Preparation::square(896, 14, 4, [0.5, mean, 0.5], [0.5, 0.5, std]);
            assert_eq!(found, Err(PreparationError::Statistics));
        }
        let budget = |patch, pooling, tokens| Preparation::budget(patch, pooling, tokens);
        assert_eq!(budget(16, 3, 0), Err(PreparationError::Zero { what: "token budget" }));
        let too_large = budget(u32::MAX, u32::MAX, u32::MAX);
        assert!(matches!(too_large, Err(PreparationError::TooLarge { .. })));
        assert!(budget(16, 3, 1120).is_ok() && budget(48, 1, 1120).is_ok());
    }

    #[test]
    fn sizes_stay_within_the_budget() {
        let sides = [1, 2, 3, 47, 48, 49, 999, 16_383, 65_535];
        for tokens in [1, 2, 70, 280, 1120] {
            let preparation = Preparation::budget(16, 3, tokens).unwrap();
            for (width, height) in sides.iter().flat_map(|w| sides.iter().map(move |h| (*w, *h))) {
                let (wide, high) = preparation.size(width, height);
                assert!(wide % 48 == 0 && high % 48 == 0);
                assert!((1..=tokens).contains(&(wide / 48 * (high / 48))), "{width} x {height}");
            }
        }
    }

    #[test]
    fn sizes_are_known_before_a_picture_is_prepared() {
        let square = Preparation::square(56, 14, 2, [0.5; 3], [0.5; 3]).unwrap();
        for preparation in [square, Preparation::budget(4, 3, 7).unwrap()] {
            for (width, height) in [(1, 1), (30, 20), (200, 1), (1, 200), (64, 64)] {
                let prepared = preparation.prepare(&picture(width, height));
                assert_eq!(preparation.soft_tokens(width, height), prepared.soft_tokens());
                assert_eq!(preparation.soft_tokens(height, width), prepared.soft_tokens());
                assert_eq!(preparation.bytes(width, height), prepared.rows().len() * 4);
            }
        }
    }

    #[test]
    fn digests_name_content_and_preparation() {
        let square = |mean| Preparation::square(28, 14, 2, [mean, 0.5, 0.5], [0.5; 3]).unwrap();
        let digest = |preparation: Preparation, picture| preparation.prepare(&picture).digest();
        let first = digest(square(0.5), picture(30, 20));
        assert_eq!(digest(square(0.5), picture(30, 20)), first);
        assert_ne!(digest(square(0.4), picture(30, 20)), first);
        assert_ne!(digest(square(0.5), picture(31, 20)), first);
        let budget = Preparation::budget(14, 2, 1).unwrap();
        assert_eq!(budget.size(30, 30), (28, 28));
        assert_ne!(digest(budget, picture(30, 20)), first);
        assert_eq!(first.to_string().len(), 64);
    }
}
