//! Commands that are submitted as lists (`CMD_CHAIN`).
//!
//! A list costs one call of the kernel and one wait. The firmware 1.5.5.391 was seen to drop some
//! commands of lists and to report them as done (`FIM43-Redeye/xdna-emu`, finding of 2026-05-13).
//! So nothing is chained unless it is asked for. The driver counts a chain as one, so that the
//! counter does not show a drop: what does is the poison in each command's own result.

use bytemuck::cast_slice_mut;

use super::context::{ChainPackets, Context, Executed, Flight, Run};
use super::error::DriverError;
use super::handle::{Mapped, words};
use crate::packet::{self, CHAIN_ERROR_WORD, State};
use crate::sys::{Errno, Sys};

impl<S: Sys> Context<S> {
    /// Carries out commands like [`Self::execute`], in chains of as many as the device takes.
    ///
    /// The watchdog's time is that of a whole chain, as the kernel's is: a chain of commands that
    /// take long is given up. The counter has to rise by the number of chains.
    ///
    /// # Errors
    ///
    /// As for [`Self::execute`], with [`DriverError::ChainFailed`] for a chain that does not end
    /// well.
    pub fn execute_chained(
        &mut self,
        runs: Vec<Run<'_, S>>,
    ) -> Result<Vec<Executed<S>>, DriverError> {
        let slots = runs.iter().map(|run| run.program.slots()).max().unwrap_or(0);
        let most = packet::chain_commands_max(packet::payload_words(slots));
        let wanted = runs.len().min(most);
        let made = self.chain.as_ref().map_or(0, |chain| chain.commands.len());
        if made < wanted {
            self.hardware.handle.check_quarantine()?;
            self.chain = Some(ChainPackets::new(&self.hardware.handle, wanted)?);
        }
        self.carry_out(runs, |context, runs, _, done| {
            let mut runs = runs.into_iter();
            loop {
                let part: Vec<_> = runs.by_ref().take(most).collect();
                if part.is_empty() {
                    return Ok(());
                }
                context.fly_chain(part, done)?;
            }
        })
    }

    /// Submits a chain and waits for it.
    fn fly_chain(
        &self,
        runs: Vec<Run<'_, S>>,
        done: &mut Vec<Flight<S>>,
    ) -> Result<(), DriverError> {
        let call = DriverError::call("submit a chain of commands to the NPU");
        let Some(ChainPackets { own: packet, commands }) = &self.chain else { return Ok(()) };
        let (mut handles, mut numbers, mut flights) = (Vec::new(), Vec::new(), Vec::new());
        for (run, command) in runs.into_iter().zip(commands) {
            let prepared = self.prepare(command, run)?;
            handles.extend(prepared.handles);
            numbers.push(command.object.number);
            flights.push((prepared.result, prepared.result_bytes));
        }
        handles.sort_unstable();
        handles.dedup();
        let chain = packet::chain(&numbers).ok_or_else(|| call(Errno::E2BIG))?;
        packet.write(0, &words(&chain)).map_err(&call)?;
        let point = self.hardware.submit(packet.object.number, &mut handles).map_err(&call)?;
        self.land_chain(point, packet, numbers.len())?;
        let flight = |(result, result_bytes)| Flight { point, packet: 0, result, result_bytes };
        done.extend(flights.into_iter().map(flight));
        Ok(())
    }

    /// Waits for a chain and reads how it ended.
    fn land_chain(
        &self,
        point: u64,
        packet: &Mapped<S>,
        commands: usize,
    ) -> Result<(), DriverError> {
        self.hardware.wait_or_quarantine(point)?;
        let mut words = [0_u32; CHAIN_ERROR_WORD + 1];
        let call = DriverError::call("read how a chain of the NPU's commands ended");
        packet.read(0, cast_slice_mut(&mut words)).map_err(call)?;
        let error = match State::from_number(words[0] & 15) {
            Some(State::Completed) => return Ok(()),
            Some(state) => {
                // In other states the word is what was written before.
                let index = Some(words[CHAIN_ERROR_WORD] as usize);
                let index = index.filter(|index| state == State::Error && *index < commands);
                DriverError::ChainFailed { state, commands, command: index }
            }
            None => DriverError::BadPacket { word: words[0] },
        };
        if !matches!(error, DriverError::ChainFailed { state: State::Error, .. }) {
            self.hardware.quarantine(&error);
        }
        Err(error)
    }
}
