//! Formats that suit a budget: what each matrix loses in each format is measured, and bytes go
//! where they save most.

use anyhow::{Result, bail};
use trine_model::{Weight, names};
use trine_weights::DType::{self, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K, Q8_0};
use trine_weights::{Tensor, fallback, quantize_weighted};

use super::{Importance, Subject};

/// The formats that are tried.
const TRIED: [DType; 7] = [Q2K, Q3K, Iq4Xs, Q4K, Q5K, Q6K, Q8_0];

/// How many matrices of each layer the output counts as: its errors are those of logits, of others
/// a layer's part of a sum. Measured on the embedded model (`docs/benchmarks/made-files.md`).
const OUTPUT_SHARE: f64 = 4.0;

/// The runs of rows that a loss is measured on, spread evenly over a matrix, and the rows of each.
const RUNS: usize = 16;
const RUN_ROWS: usize = 4;

/// A format of a matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Choice {
    dtype: DType,
    bytes: u64,
    /// The weighted sum of squares of the differences, as a share of that of the elements.
    loss: f64,
}

/// Returns a format for each matrix, so that the rows that are given with it take at most `budget`
/// bytes in all. `check` is called before each, which takes a while.
///
/// # Errors
/// Returns an error if the smallest formats take more, a matrix cannot be quantised, importances
/// are another model's, or `check` fails.
pub fn fit(
    subject: &Subject,
    matrices: &[(&Weight, usize)],
    importance: &Importance,
    budget: u64,
    check: impl Fn() -> Result<()>,
) -> Result<Vec<DType>> {
    let all = matrices.iter().map(|(weight, rows)| {
        check()?;
        choices(subject, weight, *rows, importance)
    });
    let chosen = choose(&all.collect::<Result<Vec<_>>>()?, budget)?;
    Ok(chosen.into_iter().map(|choice| choice.dtype).collect())
}

/// Returns the formats in which a matrix can lie, each with its bytes and its loss, by rising
/// bytes: those of [`TRIED`], or the next ones where rows are no whole blocks.
fn choices(
    subject: &Subject,
    weight: &Weight,
    rows: usize,
    importance: &Importance,
) -> Result<Vec<Choice>> {
    let tensor = subject.tensor(weight);
    let groups = subject.experts(weight);
    let known = importance.of_weight(subject, weight)?;
    let is_output = [names::TOKEN_EMBEDDING, names::OUTPUT].contains(&weight.name.as_str());
    let layers = subject.config().layers.len() as f64;
    let share = if is_output { OUTPUT_SHARE * layers } else { 1.0 };
    let mut choices: Vec<Choice> = Vec::new();
    for asked in TRIED {
        let dtype = fallback(asked, tensor.columns());
        if choices.iter().any(|choice| choice.dtype == dtype) {
            continue;
        }
        let Some(row_bytes) = dtype.row_bytes(tensor.columns()) else { continue };
        let bytes = (rows * row_bytes) as u64;
        let loss = share * loss(tensor, groups, known, dtype)?;
        choices.push(Choice { dtype, bytes, loss });
    }
    choices.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.loss.total_cmp(&b.loss)));
    Ok(choices)
}

/// Returns the loss of some rows of a matrix in a format.
fn loss(tensor: &Tensor, groups: usize, known: &[f32], dtype: DType) -> Result<f64> {
    let (rows, columns) = (tensor.rows(), tensor.columns());
    let of_group = rows / groups;
    let (mut missed, mut power) = (0.0, 0.0);
    let (mut old, mut new) = (vec![0.0; columns], vec![0.0; columns]);
    for run in 0..RUNS.min(rows) {
        let first = run * rows / RUNS.min(rows);
        let end = (first + RUN_ROWS).min((first / of_group + 1) * of_group);
        let before = tensor.slice_rows(tensor.name(), first..end)?;
        let own = match known.len() == columns {
            true => known,
            false => known.get(first / of_group * columns..).unwrap_or_default(),
        };
        let own = own.get(..columns).unwrap_or_default();
        let after = quantize_weighted(&before, dtype, own)?;
        for row in 0..end - first {
            before.decode_row(row, &mut old)?;
            after.decode_row(row, &mut new)?;
            for (column, (old, new)) in old.iter().zip(&new).enumerate() {
                let weight = f64::from(own.get(column).copied().unwrap_or(1.0));
                missed += weight * f64::from(old - new).powi(2);
                power += weight * f64::from(*old).powi(2);
            }
        }
    }
    Ok(if power > 0.0 { missed / power } else { 0.0 })
}

/// Chooses one of each list of [`choices`], so that all together take at most `budget` bytes and
/// the sum of their losses is small: beginning with the fewest bytes, the step that saves the most
/// loss for its bytes is taken, as long as one fits.
fn choose(all: &[Vec<Choice>], budget: u64) -> Result<Vec<Choice>> {
    let mut chosen: Vec<usize> = vec![0; all.len()];
    let mut used: u64 = all.iter().map(|choices| choices[0].bytes).sum();
    if used > budget {
        bail!(
            "the matrices take {used} bytes in the smallest formats, and the size leaves {budget} \
             for them; give a larger one"
        );
    }
    // Returns the step of a matrix that saves most for its bytes, as (gain, choice, bytes more).
    let best = |index: usize, at: usize, room: u64| {
        let from = all[index][at];
        let steps = all[index].iter().enumerate().skip(at + 1).filter_map(|(to, choice)| {
            let more = choice.bytes.checked_sub(from.bytes).filter(|&more| more <= room)?;
            let gain = (from.loss - choice.loss) / (more.max(1) as f64);
            (gain > 0.0).then_some((gain, to, more))
        });
        steps.max_by(|a, b| a.0.total_cmp(&b.0))
    };
    loop {
        let steps = (0..all.len()).filter_map(|index| {
            best(index, chosen[index], budget - used).map(|step| (index, step))
        });
        let Some((index, (_, to, more))) = steps.max_by(|a, b| a.1.0.total_cmp(&b.1.0)) else {
            break;
        };
        (chosen[index], used) = (to, used + more);
    }
    Ok(all.iter().zip(chosen).map(|(choices, at)| choices[at]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(losses: &[(u64, f64)]) -> Vec<Choice> {
        let formats = [Q2K, Q4K, Q8_0];
        let choice = |(&(bytes, loss), dtype)| Choice { dtype, bytes, loss };
        losses.iter().zip(formats).map(choice).collect()
    }

    #[test]
    fn bytes_go_where_they_save_most() {
        let all = [of(&[(10, 0.9), (20, 0.5), (40, 0.4)]), of(&[(10, 0.3), (20, 0.25), (40, 0.0)])];
        let bytes = |budget| -> Vec<u64> {
            choose(&all, budget).unwrap().iter().map(|choice| choice.bytes).collect()
        };
        assert_eq!(bytes(20), [10, 10]);
        assert_eq!(bytes(39), [20, 10]);
        // A step may pass over a format.
        assert_eq!(bytes(60), [20, 40]);
        assert_eq!(bytes(1000), [40, 40]);
        let error = choose(&all, 19).unwrap_err().to_string();
        assert!(error.contains("take 20 bytes") && error.contains("leaves 19"), "{error}");
        // Larger formats that lose more are never taken.
        let worse = [of(&[(10, 0.1), (20, 0.2)])];
        assert_eq!(choose(&worse, 100).unwrap()[0].bytes, 10);
    }
}
