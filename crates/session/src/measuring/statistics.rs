//! Order statistics of repeated measurements.

use serde::Serialize;

/// The summary of a set of measurements. Quantiles interpolate linearly between order statistics
/// (Hyndman and Fan 1996, type 7).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The value that half of the values are below.
    pub median: f64,
    /// The value that a quarter of the values are below.
    pub lower_quartile: f64,
    /// The value that three quarters of the values are below.
    pub upper_quartile: f64,
    /// The smallest value.
    pub minimum: f64,
    /// The largest value.
    pub maximum: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The indices of values further than 1.5 interquartile ranges from the quartiles (Tukey 1977).
    /// All other figures include them.
    pub outliers: Vec<usize>,
}

impl Summary {
    /// Returns the summary of finite values; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let (lower, upper) = (quantile(&sorted, 0.25), quantile(&sorted, 0.75));
        let reach = 1.5 * (upper - lower);
        let is_outlier = |value: f64| value < lower - reach || value > upper + reach;
        Some(Self {
            median: quantile(&sorted, 0.5),
            lower_quartile: lower,
            upper_quartile: upper,
            minimum: first,
            maximum: last,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            outliers: (0..values.len()).filter(|&at| is_outlier(values[at])).collect(),
        })
    }
}

/// Returns the `share` quantile of ascending values, of which there must be at least one.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_and_outliers() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0, 5.0]).unwrap();
        assert_eq!(
            (summary.lower_quartile, summary.median, summary.upper_quartile),
            (2.0, 3.0, 4.0)
        );
        assert_eq!((summary.minimum, summary.maximum, summary.mean), (1.0, 5.0, 3.0));
        assert!(summary.outliers.is_empty());
        let summary = Summary::of(&[10.0, 10.1, 9.9, 10.0, 3.0]).unwrap();
        assert_eq!(summary.outliers, [4]);
        assert_eq!(summary.minimum, 3.0, "outliers are kept");
        assert_eq!(Summary::of(&[7.0]).unwrap().median, 7.0);
        assert_eq!(Summary::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert!(Summary::of(&[]).is_none());
    }
}
