//! The way from floats to whole numbers of 8 bits and back: as `Products::Int8` of
//! `trine_backend::reference`, with two terms for activations and one for weights.

/// The largest number of a term.
const LARGEST: f32 = 127.0;
/// How many times finer the second term is: its largest number is half a step of the first.
const FINER: f32 = 2.0 * LARGEST;

/// Writes values as multiples of a scale, which it returns: the second term of a value that is left
/// over goes to `rest`, in steps that are [`second`] of the scale. Values that are not finite
/// make the scale NaN, and with it every product.
pub(super) fn quantize(values: &[f32], first: &mut [i8], mut rest: Option<&mut [i8]>) -> f32 {
    let largest = values.iter().fold(0.0_f32, |largest, value| match value.is_nan() {
        true => f32::INFINITY,
        false => largest.max(value.abs()),
    });
    if largest == 0.0 || !largest.is_finite() {
        first.fill(0);
        if let Some(rest) = rest {
            rest.fill(0);
        }
        return if largest == 0.0 { 0.0 } else { f32::NAN };
    }
    let scale = largest / LARGEST;
    let fine = second(scale);
    for (index, (value, first)) in values.iter().zip(first).enumerate() {
        let whole = (value / scale).round();
        *first = whole as i8;
        if let Some(rest) = rest.as_deref_mut() {
            rest[index] = ((value - whole * scale) / fine).round() as i8;
        }
    }
    scale
}

/// Returns the scale of the second term.
pub(super) fn second(scale: f32) -> f32 {
    scale / FINER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_terms_hold_what_one_does_not() {
        let values: Vec<f32> = (0..200).map(|at| ((at * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let (mut first, mut rest) = (vec![0; 200], vec![0; 200]);
        let scale = quantize(&values, &mut first, Some(&mut rest));
        for ((value, first), rest) in values.iter().zip(&first).zip(&rest) {
            let coarse = f32::from(*first) * scale;
            assert!((value - coarse).abs() <= 0.5001 * scale);
            let both = coarse + f32::from(*rest) * second(scale);
            assert!((value - both).abs() <= 0.51 * second(scale), "{value} is not {both}");
        }
        assert_eq!(first.iter().map(|first| first.unsigned_abs()).max(), Some(127));
    }

    #[test]
    fn zeros_stay_and_what_is_no_number_spoils_all() {
        let mut first = [1; 3];
        assert_eq!(quantize(&[0.0, -0.0, 0.0], &mut first, None), 0.0);
        assert_eq!(first, [0; 3]);
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut rest = [1; 3];
            assert!(quantize(&[1.0, poison, 2.0], &mut first, Some(&mut rest)).is_nan());
            assert_eq!((first, rest), ([0; 3], [0; 3]));
        }
    }
}
