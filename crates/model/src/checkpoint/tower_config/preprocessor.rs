//! What a folder says of the preparation of pictures: `preprocessor_config.json`, or a part of
//! `processor_config.json`.

use std::path::PathBuf;

use serde_json::Value;

use super::{COLOURS, DEVIATION_MIN, NORMAL, Pixels, SOFT_TOKENS_MAX, as_colours};
use crate::checkpoint::fields::Fields;
use crate::error::ModelError;

/// The most soft tokens of a picture of Gemma 4, if the files do not say.
pub(super) const BUDGET: usize = 280;

/// What a setting has to be. Pictures are prepared in one way, and a model that was made for
/// another one would see other pictures.
#[derive(Clone, Copy)]
enum Expected {
    Flag(bool),
    /// A number, with the inaccuracy of one that was rounded to 32 bits.
    Number(f64),
}

/// Settings of all towers.
const OF_ALL: [(&str, Expected); 3] = [
    ("do_resize", Expected::Flag(true)),
    ("do_rescale", Expected::Flag(true)),
    ("rescale_factor", Expected::Number(1.0 / 255.0)),
];
/// Settings of towers that read squares. Filters have Pillow's numbers: 2 is bilinear.
const OF_SQUARES: [(&str, Expected); 3] = [
    ("do_normalize", Expected::Flag(true)),
    ("do_pan_and_scan", Expected::Flag(false)),
    ("resample", Expected::Number(2.0)),
];
/// Settings of towers that read pictures of any shape; filter 3 is bicubic.
const OF_BUDGETS: [(&str, Expected); 2] =
    [("do_normalize", Expected::Flag(false)), ("resample", Expected::Number(3.0))];

impl Expected {
    fn check(self, key: &str, found: &Value) -> Result<(), ModelError> {
        let is_met = match self {
            Expected::Flag(flag) => *found == Value::Bool(flag),
            Expected::Number(number) => {
                let is_near = |found: f64| (found - number).abs() <= number * 1e-6;
                found.as_f64().is_some_and(is_near)
            }
        };
        match self {
            _ if is_met => Ok(()),
            Expected::Flag(flag) => Err(ModelError::bad(key, found, flag)),
            Expected::Number(number) => Err(ModelError::bad(key, found, number)),
        }
    }
}

/// The file that says how pictures are prepared, and what it says. Settings that it leaves out are
/// as published models have them; without a file, all are.
#[derive(Default)]
pub(crate) struct Preprocessor {
    /// The path, for messages.
    pub(crate) file: PathBuf,
    pub(crate) settings: Value,
}

impl Preprocessor {
    /// Returns what a tower reads of a picture that becomes a square of `side` pixels.
    ///
    /// # Errors
    /// Returns a [`ModelError`] with the file and the key that is wrong.
    pub(super) fn square(&self, side: usize) -> Result<Pixels, ModelError> {
        self.read_square(side).map_err(|error| error.in_file(&self.file))
    }

    fn read_square(&self, side: usize) -> Result<Pixels, ModelError> {
        let fields = Fields(&self.settings);
        check(fields, &OF_SQUARES)?;
        if let Some(size) = fields.given("size")
            && ["height", "width"].iter().any(|key| size[key].as_u64() != Some(side as u64))
        {
            let expected = format!("{{\"height\":{side},\"width\":{side}}}");
            return Err(ModelError::bad("size", size, expected));
        }
        let mean = colours(fields, "image_mean", 0.0)?;
        let deviation = colours(fields, "image_std", DEVIATION_MIN)?;
        Ok(Pixels::Square { side, mean, deviation })
    }

    /// Returns what a tower reads of a picture of any shape. `side` is the most patches on a side,
    /// `pixels` the pixels on a side of a soft token.
    ///
    /// # Errors
    /// Returns a [`ModelError`] with the file and the key that is wrong.
    pub(super) fn budget(&self, side: usize, pixels: usize) -> Result<Pixels, ModelError> {
        self.read_budget(side, pixels).map_err(|error| error.in_file(&self.file))
    }

    fn read_budget(&self, side: usize, pixels: usize) -> Result<Pixels, ModelError> {
        let fields = Fields(&self.settings);
        check(fields, &OF_BUDGETS)?;
        // Of 12B a patch is what the tower reads, and 3 x 3 of the preprocessor's.
        let keys = [("patch_size", 16), ("pooling_kernel_size", 3)];
        if keys.iter().any(|(key, _)| fields.given(key).is_some()) {
            let [patch, pool] = keys.map(|(key, usual)| fields.count(key, usual));
            let found = patch?.saturating_mul(pool?);
            if found != pixels {
                return Err(ModelError::bad("patch_size x pooling_kernel_size", found, pixels));
            }
        }
        let key = "max_soft_tokens";
        let soft_tokens = fields.count(key, BUDGET)?;
        if !(1..=SOFT_TOKENS_MAX).contains(&soft_tokens) {
            let expected = format!("a number from 1 to {SOFT_TOKENS_MAX}");
            return Err(ModelError::bad(key, soft_tokens, expected));
        }
        Ok(Pixels::Budget { soft_tokens, side })
    }
}

fn check(fields: Fields, own: &[(&str, Expected)]) -> Result<(), ModelError> {
    OF_ALL.iter().chain(own).try_for_each(|(key, expected)| match fields.given(key) {
        None => Ok(()),
        Some(found) => expected.check(key, found),
    })
}

/// Reads a number for each colour.
fn colours(fields: Fields, key: &str, least: f32) -> Result<[f32; COLOURS], ModelError> {
    let Some(value) = fields.given(key) else { return Ok(NORMAL) };
    let number = |value: &Value| value.as_f64().map(|number| number as f32);
    let values = value.as_array().and_then(|values| values.iter().map(number).collect());
    let colours = values.and_then(|values: Vec<f32>| as_colours(&values, least));
    let expected = || format!("{COLOURS} numbers from {least} to 1");
    colours.ok_or_else(|| ModelError::bad(key, value, expected()))
}
