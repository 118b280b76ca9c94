//! Changes to sampling parameters.

use super::params::SamplingParams;

/// Changes to how a model samples. A field that is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingChanges {
    /// See [`SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`SamplingParams::top_k`].
    pub top_k: Option<usize>,
    /// See [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplingParams::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// See [`SamplingParams::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`SamplingParams::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`SamplingParams::seed`].
    pub seed: Option<u64>,
}

impl SamplingChanges {
    /// Makes the changes, unchecked.
    pub fn apply(&self, sampling: &mut SamplingParams) {
        let set = |target: &mut f32, value: Option<f32>| {
            if let Some(value) = value {
                *target = value;
            }
        };
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.seed = self.seed.unwrap_or(sampling.seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_set_what_they_name_and_nothing_else() {
        let model = SamplingParams { temperature: 0.7, top_k: 64, ..SamplingParams::greedy() };
        let mut sampling = model.clone();
        SamplingChanges::default().apply(&mut sampling);
        assert_eq!(sampling, model);
        let changes = SamplingChanges {
            temperature: Some(0.2),
            top_k: Some(1),
            top_p: Some(0.3),
            min_p: Some(0.4),
            repetition_penalty: Some(1.5),
            presence_penalty: Some(0.6),
            frequency_penalty: Some(0.8),
            seed: Some(7),
        };
        changes.apply(&mut sampling);
        let expected = SamplingParams {
            temperature: 0.2,
            top_k: 1,
            top_p: 0.3,
            min_p: 0.4,
            repetition_penalty: 1.5,
            presence_penalty: 0.6,
            frequency_penalty: 0.8,
            seed: 7,
            ..model
        };
        assert_eq!(sampling, expected);
    }
}
