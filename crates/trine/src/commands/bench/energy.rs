//! `bench`: the energy of each token, by the sensors that the machine has.

use serde::Serialize;
use trine_session::statistics::Summary;

use crate::commands::bench::runs::{BenchRun, Test};
use crate::terminal;
use crate::terminal::output;
use trine_session::energy::Sensor;

/// What a sensor measured in the repeats of a test.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Used {
    /// The name of the sensor.
    sensor: String,
    /// Joules for each token, one value for each repeat in which the sensor did not fail.
    joules_per_token: Vec<f64>,
    summary: Summary,
    /// The median of the average watts of a repeat.
    watts: f64,
}

impl Used {
    /// Returns what each sensor measured; nothing for a sensor that always failed.
    pub(super) fn of(sensors: &[Sensor], runs: &[BenchRun]) -> Vec<Self> {
        let used = |(index, sensor): (usize, &Sensor)| {
            let measured = runs.iter().filter_map(|run| {
                let energy = run.energy.as_ref()?;
                let joules = (*energy.joules.get(index)?)?;
                let watts = joules / energy.seconds;
                // Sensors are read for a little longer than the run takes.
                Some((watts * run.seconds / run.tokens.max(1) as f64, watts))
            });
            let (joules_per_token, watts): (Vec<f64>, Vec<f64>) = measured.unzip();
            Some(Self {
                sensor: sensor.name.clone(),
                summary: Summary::of(&joules_per_token)?,
                watts: Summary::of(&watts)?.median,
                joules_per_token,
            })
        };
        sensors.iter().enumerate().filter_map(used).collect()
    }
}

const HEADER: [&str; 7] = ["energy", "batch", "sensor", "J/token", "quartiles", "min..max", "W"];

/// Returns a table of what sensors measured in each test, if they did.
pub(super) fn table<'a>(
    tests: impl Iterator<Item = (Test, &'a [Used])>,
    markdown: bool,
) -> Option<String> {
    let row = |test: Test, used: &Used| {
        let Summary { median, lower_quartile, upper_quartile, minimum, maximum, .. } = used.summary;
        let span = |from, to| format!("{}..{}", output::rate(from), output::rate(to));
        vec![
            test.name(),
            test.batch.to_string(),
            terminal::harmless(&used.sensor).to_string(),
            output::rate(median),
            span(lower_quartile, upper_quartile),
            span(minimum, maximum),
            output::rate(used.watts),
        ]
    };
    let rows = tests.flat_map(|(test, used)| used.iter().map(move |used| row(test, used)));
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return None;
    }
    let right = [1, 3, 4, 5, 6];
    let table = match markdown {
        true => output::markdown(&HEADER, rows, &right),
        false => output::table(&HEADER, rows, &right),
    };
    Some(format!("{table}\n\nenergy of the whole device or machine, with what it takes when idle"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::commands::bench::runs::TestKind;
    use trine_session::energy::{Energy, Sensors};

    /// Returns two sensors; their files are not read here.
    fn sensors() -> Vec<Sensor> {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join("class/hwmon").join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(Path::new(""))).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (path, text) in [
            ("hwmon0/name", "amdgpu"),
            ("hwmon0/power1_average", "1"),
            ("hwmon1/name", "xe\u{1b}[2J"),
            ("hwmon1/energy1_input", "1"),
        ] {
            write(path, text);
        }
        Sensors::find(folder.path()).list().to_vec()
    }

    /// Returns a run that took half of the time in which its energy was measured.
    fn run(tokens: usize, seconds: f64, joules: [Option<f64>; 2]) -> BenchRun {
        let energy = Some(Energy { seconds, joules: joules.to_vec() });
        BenchRun { tokens, seconds: seconds / 2.0, energy, ..BenchRun::default() }
    }

    #[test]
    fn joules_are_divided_among_tokens() {
        let runs = [
            run(10, 2.0, [Some(40.0), None]),
            run(10, 2.0, [Some(60.0), None]),
            run(20, 4.0, [Some(160.0), None]),
            BenchRun { tokens: 5, ..BenchRun::default() },
        ];
        let used = Used::of(&sensors(), &runs);
        assert_eq!(used.len(), 1, "a sensor that always failed is left out");
        assert_eq!(used[0].joules_per_token, [2.0, 3.0, 4.0]);
        assert_eq!((used[0].summary.median, used[0].watts), (3.0, 30.0));
        assert!(Used::of(&[], &runs).is_empty() && Used::of(&sensors(), &[]).is_empty());
    }

    #[test]
    fn the_table_has_a_row_for_each_sensor() {
        let test = Test {
            kind: TestKind::Generate,
            tokens: 10,
            batch: 2,
            depth: 0,
            is_drafted: false,
            is_guided: false,
        };
        let used = Used::of(&sensors(), &[run(10, 2.0, [Some(40.0), Some(10.0)])]);
        let text = table([(test, used.as_slice())].into_iter(), false).unwrap();
        let rows: Vec<&str> = text.lines().skip(1).take(2).collect();
        assert!(rows[0].contains("generate 10") && rows[0].contains("amdgpu"), "{text}");
        assert!(rows[0].contains("2.00") && rows[0].contains("20.0"), "{text}");
        assert!(rows[1].contains("xe") && rows[1].contains("0.500"), "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("when idle"), "{text}");
        assert_eq!(table([(test, &[][..])].into_iter(), true), None);
    }
}
