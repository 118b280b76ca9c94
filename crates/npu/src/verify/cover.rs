//! Whether runs of words cover buffers as a contract says.

use crate::contract::{Access, Buffer, Contract};
use crate::dma::WordRun;
use crate::refusal::{Problem, REBUILD};
use crate::registers::Direction;

/// Compares all runs with the contract.
pub(super) fn check(contract: &Contract, runs: &[WordRun]) -> Result<(), Problem> {
    let own = |buffer: &Buffer| {
        let argument = buffer.argument;
        runs.iter().filter(move |run| run.argument == argument)
    };
    for buffer in &contract.buffers {
        own(buffer).try_for_each(|run| check_run(buffer, run))?;
    }
    for buffer in &contract.buffers {
        let own: Vec<_> = own(buffer).collect();
        match buffer.access {
            Access::WriteOnce => check_times(buffer, &own, 1, "")?,
            Access::ReadTogether(times) => check_times(buffer, &own, times, "")?,
            Access::ReadByEach { columns, times } => {
                let mut found = 0;
                for column in 0..contract.columns {
                    let own: Vec<_> =
                        own.iter().copied().filter(|run| run.column == column).collect();
                    if !own.is_empty() {
                        found += 1;
                        check_times(buffer, &own, times, &format!(" by column {column}"))?;
                    }
                }
                if found != columns {
                    let name = &buffer.name;
                    let problem = format!("{found} columns read {name}, expected {columns}");
                    return Err(Problem::new(problem, REBUILD));
                }
            }
        }
    }
    Ok(())
}

/// Refuses a run in the wrong direction or outside of its buffer.
fn check_run(buffer: &Buffer, run: &WordRun) -> Result<(), Problem> {
    let Buffer { name, bytes, .. } = buffer;
    let is_written = buffer.access == Access::WriteOnce;
    let at = |problem: String| Problem { operation: Some(run.operation), problem, remedy: REBUILD };
    if is_written != (run.channel.direction == Direction::ToMemory) {
        let (does, is) = if is_written { ("read", "written") } else { ("written", "read") };
        return Err(at(format!("{name} is {does} by this task and may only be {is}")));
    }
    let end = run.start.checked_add(run.words).and_then(|end| end.checked_mul(4));
    if end.is_none_or(|end| end > *bytes) {
        let (start, words) = (run.start, run.words);
        return Err(at(format!(
            "{words} words from word {start} of {name}, which has {bytes} bytes"
        )));
    }
    Ok(())
}

/// Refuses runs that do not touch each word of the buffer exactly `times` times.
fn check_times(buffer: &Buffer, runs: &[&WordRun], times: u32, by: &str) -> Result<(), Problem> {
    let mut edges = Vec::with_capacity(2 * runs.len());
    for run in runs {
        edges.push((run.start, 1_i64, run.operation));
        edges.push((run.start + run.words, -1, run.operation));
    }
    edges.sort_unstable();
    let expected = i64::from(times);
    let (mut depth, mut before) = (0_i64, 0_u64);
    let end = buffer.bytes / 4;
    for (place, change, operation) in edges.into_iter().chain([(end, 0, usize::MAX)]) {
        if place > before && depth != expected {
            let does = if buffer.access == Access::WriteOnce { "written" } else { "read" };
            let (first, last) = (before * 4, place * 4);
            let problem = format!(
                "bytes {first:#x} to {last:#x} of {} are {does} {depth} times{by}, expected \
                 {times}",
                buffer.name
            );
            let operation = (operation != usize::MAX && depth > expected).then_some(operation);
            return Err(Problem { operation, problem, remedy: REBUILD });
        }
        depth += change;
        before = place;
    }
    Ok(())
}
