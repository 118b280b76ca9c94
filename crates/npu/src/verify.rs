//! The proof that a stream is safe, as far as a stream can be.
//!
//! [`Verifier::verify`] runs the stream on the model of the shim DMA ([`crate::dma`]) and compares
//! what it does with a [`Contract`]. What it refuses is not known to be harmful; what it accepts
//! has these properties:
//!
//! - Only registers of tiles inside the partition are written, and only those that data movement
//!   needs.
//! - Each descriptor that is run was written as a whole by this stream, points into an argument,
//!   and does not change while it may be in use.
//! - Every access lies inside of its buffer. Every word of what is written is written exactly once,
//!   inputs are read in full and as often as the contract says.
//! - Every channel that writes memory is waited for at the end.
//!
//! In [`Scope::Whole`] the stream is also the one that trine generates for the kernel and shape, so
//! that the part of it that works inside of the array is known. No stream has run on silicon.

mod cover;

use crate::contract::{APERTURE, Contract, TRANSLATED_ARGUMENTS};
use crate::dma::{Shim, WordRun};
use crate::generate;
use crate::refusal::{Problem, REBUILD, Refusal, UNSUPPORTED};
use crate::registers::{
    CONTROL_RESET, Channel, DESCRIPTOR_WORDS, Direction, LOCK_MAX, Register, SHIM_CONTROL_VALUE,
    STATUS_IDLE_MASK, Task, register,
};
use crate::tile::{Address, ROWS, Tile, TileKind};
use crate::txn::{Action, GENERATION, Transaction};

/// How much is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// What the stream does to the machine's memory. Whether the array ends is not known.
    Memory,
    /// Also that the whole stream is the generated one, whose part inside of the array is that of
    /// streams published for the kernel.
    Whole,
}

/// What was proven of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The extent of the proof.
    pub scope: Scope,
    /// What each channel moves, in the order of columns.
    pub traffic: Vec<Traffic>,
}

/// What a channel moves from or to an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// The shim tile's column.
    pub column: u8,
    /// The channel.
    pub channel: Channel,
    /// The kernel's argument.
    pub argument: u32,
    /// Bytes.
    pub bytes: u64,
}

/// Proves streams against one contract.
#[derive(Debug)]
pub struct Verifier {
    contract: Contract,
    expected: Option<Transaction>,
}

impl Verifier {
    /// Takes a contract; if it names a kernel, generates the kernel's stream.
    ///
    /// # Errors
    ///
    /// Returns an error if the contract contradicts itself or its kernel cannot be generated.
    pub fn new(contract: Contract) -> Result<Self, String> {
        contract.check()?;
        let expected = contract.kernel.map(generate::stream).transpose()?;
        if let Some(kernel) = contract.kernel {
            let own = generate::contract(kernel)?;
            let is_same = own.buffers.len() == contract.buffers.len()
                && own.buffers.iter().zip(&contract.buffers).all(|(own, other)| {
                    (own.argument, own.bytes, own.access)
                        == (other.argument, other.bytes, other.access)
                });
            if !is_same || own.columns != contract.columns {
                return Err(format!("the buffers are not those of {kernel}"));
            }
        }
        Ok(Self { contract, expected })
    }

    /// Returns the contract.
    #[must_use]
    pub fn contract(&self) -> &Contract {
        &self.contract
    }

    /// Proves a stream, and returns how much was proven: [`Scope::Whole`] if the contract names a
    /// kernel, else [`Scope::Memory`].
    ///
    /// # Errors
    ///
    /// Returns the first thing that keeps the stream from being safe.
    pub fn verify(&self, stream: &Transaction) -> Result<Proof, Refusal> {
        let proof = self.verify_memory(stream)?;
        let Some(expected) = &self.expected else { return Ok(proof) };
        self.compare(stream, expected)?;
        Ok(Proof { scope: Scope::Whole, ..proof })
    }

    /// Proves what a stream does to memory, whether the contract names a kernel or not.
    ///
    /// # Errors
    ///
    /// Returns the first thing that keeps the machine's memory from being safe.
    pub fn verify_memory(&self, stream: &Transaction) -> Result<Proof, Refusal> {
        self.check_header(stream)?;
        let mut shim = Shim::new(self.contract.columns);
        for (index, operation) in stream.operations.iter().enumerate() {
            self.step(&mut shim, index, &operation.action)
                .map_err(|problem| refusal(stream, Some(index), problem))?;
        }
        if let Some((column, channel)) = shim.unfinished() {
            let Channel { direction, index } = channel;
            let problem = format!(
                "the stream ends without waiting for channel {index} {} of {}",
                direction.name(),
                Tile::new(column, 0)
            );
            let problem = Problem::new(problem, "Add a wait for its status");
            return Err(refusal(stream, None, problem));
        }
        cover::check(&self.contract, shim.runs())
            .map_err(|problem| refusal(stream, problem.operation, problem))?;
        Ok(Proof { scope: Scope::Memory, traffic: traffic(shim.runs()) })
    }

    fn check_header(&self, stream: &Transaction) -> Result<(), Refusal> {
        let header = stream.header;
        let columns = self.contract.columns;
        let problem = if header.version != (0, 1) {
            let (major, minor) = header.version;
            format!("the stream has version {major}.{minor} of the format, not 0.1")
        } else if header.generation != GENERATION {
            format!("the stream is for generation {} of the array, not 3", header.generation)
        } else if (header.rows, header.memory_rows) != (ROWS, 1) {
            let (rows, memory_rows) = (header.rows, header.memory_rows);
            format!("the stream is for {rows} rows, {memory_rows} with memory tiles, not 6 and 1")
        } else if header.columns != columns {
            format!("the stream is for {} columns, the partition has {columns}", header.columns)
        } else if header.padding != [0; 2] {
            "the stream's header has padding that is not zero".to_owned()
        } else {
            return Ok(());
        };
        Err(refusal(stream, None, Problem::new(problem, REBUILD)))
    }

    /// Applies one operation to the model.
    fn step(&self, shim: &mut Shim, index: usize, action: &Action) -> Result<(), Problem> {
        match action {
            Action::Sync { place, extent } => return self.sync(shim, *place, *extent),
            Action::Other { code, .. } => {
                let problem = format!("operation {code:#x} is not known to be safe");
                return Err(Problem::new(problem, UNSUPPORTED));
            }
            _ => {}
        }
        let tile = action.tile().expect("all others have one");
        if tile.column >= self.contract.columns || tile.kind().is_none() {
            let problem = format!("{tile} is outside of the partition");
            return Err(Problem::new(problem, "Use a kernel for this partition"));
        }
        if tile.kind() != Some(TileKind::Shim) {
            return check_array(action);
        }
        if tile.column + self.contract.start_column == 0 {
            let problem = "column 0 of the array has no shim DMA";
            return Err(Problem::new(problem, "Use a kernel for this partition"));
        }
        match action {
            Action::Write { address, value } => write(shim, index, *address, *value),
            Action::BlockWrite { address, words } => match register(tile, address.offset()) {
                Register::Descriptor { index, word: 0 } if words.len() == DESCRIPTOR_WORDS => {
                    shim.write(tile.column, index, 0, words)
                }
                _ => Err(unknown(action)),
            },
            Action::MaskPoll { address, value, mask, .. } => {
                poll(shim, *address, *value, *mask).unwrap_or_else(|| Err(unknown(action)))
            }
            Action::Patch { address, argument, offset } => {
                self.patch(shim, *address, *argument, *offset)
            }
            Action::MaskWrite { .. } | Action::Sync { .. } | Action::Other { .. } => {
                Err(unknown(action))
            }
        }
    }

    fn patch(
        &self,
        shim: &mut Shim,
        address: Address,
        argument: u32,
        offset: u64,
    ) -> Result<(), Problem> {
        let tile = address.tile();
        let Register::Descriptor { index, word: 1 } = register(tile, address.offset()) else {
            let problem = format!("a patch of {address}, which is no descriptor's address");
            return Err(Problem::new(problem, REBUILD));
        };
        let buffers = &self.contract.buffers;
        let Some(buffer) = buffers.iter().find(|buffer| buffer.argument == argument) else {
            let problem = format!("argument {argument} is not in the contract");
            return Err(Problem::new(problem, "Use the manifest that belongs to the stream"));
        };
        let offset = if argument < TRANSLATED_ARGUMENTS {
            offset
        } else {
            let problem = format!(
                "argument {argument} is not translated by the firmware, and its offset {offset:#x} \
                 does not contain the aperture {APERTURE:#x}"
            );
            let remedy = "Use arguments 0 to 4, or add the aperture to the offset";
            offset.checked_sub(APERTURE).ok_or_else(|| Problem::new(problem, remedy))?
        };
        if !offset.is_multiple_of(4) || offset >= buffer.bytes {
            let (name, bytes) = (&buffer.name, buffer.bytes);
            let problem = format!(
                "offset {offset:#x} in {name}, expected a multiple of 4 below its {bytes} bytes"
            );
            return Err(Problem::new(problem, REBUILD));
        }
        shim.patch(tile.column, index, argument, offset)
    }

    /// Waits for one token of each of some columns' channels.
    fn sync(&self, shim: &mut Shim, place: u32, extent: u32) -> Result<(), Problem> {
        let [direction, row, column, _] = place.to_le_bytes();
        let [_, rows, columns, index] =
            [extent as u8, (extent >> 8) as u8, (extent >> 16) as u8, (extent >> 24) as u8];
        let end = u32::from(column) + u32::from(columns);
        let is_known = direction < 2
            && place >> 24 == 0
            && extent & 0xff == 0
            && (row, rows) == (0, 1)
            && index < 2
            && columns > 0
            && end <= u32::from(self.contract.columns);
        if !is_known {
            let problem = format!("a wait for tokens of unknown places ({place:#x} {extent:#x})");
            return Err(Problem::new(problem, REBUILD));
        }
        let direction = if direction == 0 { Direction::ToMemory } else { Direction::FromMemory };
        (column..column + columns)
            .try_for_each(|column| shim.wait_token(column, Channel { direction, index }))
    }

    /// Refuses a stream that is not the expected one.
    fn compare<'a>(
        &self,
        stream: &'a Transaction,
        expected: &'a Transaction,
    ) -> Result<(), Refusal> {
        let remedy = "Use the published or the generated stream";
        let kernel = || self.contract.kernel.map_or_else(String::new, |kernel| kernel.to_string());
        let actions =
            |stream: &'a Transaction| stream.operations.iter().map(|operation| &operation.action);
        let mut pairs = actions(stream).zip(actions(expected)).enumerate();
        if let Some((index, (found, expected))) =
            pairs.find(|(_, (found, expected))| !found.does_the_same(expected))
        {
            let problem = format!("{} has here: {expected}. Found: {found}", kernel());
            return Err(refusal(stream, Some(index), Problem::new(problem, remedy)));
        }
        let (found, count) = (stream.operations.len(), expected.operations.len());
        if found != count {
            let problem = format!("{found} operations, {} has {count}", kernel());
            return Err(refusal(stream, None, Problem::new(problem, remedy)));
        }
        Ok(())
    }
}

/// Gives a problem its place.
fn refusal(stream: &Transaction, operation: Option<usize>, problem: Problem) -> Refusal {
    let tile = operation.and_then(|index| stream.operations.get(index)?.action.tile());
    Refusal {
        operation: operation.map(|index| (index, stream.offset_of(index))),
        tile,
        problem: problem.problem,
        remedy: problem.remedy,
    }
}

fn unknown(action: &Action) -> Problem {
    Problem::new(format!("{action}: not known to be safe"), UNSUPPORTED)
}

/// A word for a register of a shim tile.
fn write(shim: &mut Shim, operation: usize, address: Address, value: u32) -> Result<(), Problem> {
    let column = address.tile().column;
    match register(address.tile(), address.offset()) {
        Register::Descriptor { index, word } => shim.write(column, index, word, &[value]),
        Register::Lock(lock) => shim.set_lock(column, lock, value),
        Register::Control(_) if value == SHIM_CONTROL_VALUE => Ok(()),
        Register::Queue(channel) => match Task::decode(value) {
            Some(task) => shim.start(operation, column, channel, task),
            None => {
                let problem = format!("task {value:#x} sets bits that mean nothing");
                Err(Problem::new(problem, REBUILD))
            }
        },
        _ => Err(unknown(&Action::Write { address, value })),
    }
}

/// A wait for a register of a shim tile, or `None` if it is of no kind that is known.
fn poll(shim: &mut Shim, address: Address, value: u32, mask: u32) -> Option<Result<(), Problem>> {
    let column = address.tile().column;
    match register(address.tile(), address.offset()) {
        Register::Status(channel) if (value, mask) == (0, STATUS_IDLE_MASK) => {
            Some(shim.wait_idle(column, channel))
        }
        // Bit 9 asks to acquire, the value above bit 2 is 1: the lock has to be 1.
        Register::LockRequest { lock, request: 0x204 } if (value, mask) == (1, 1) => {
            Some(shim.wait_lock(column, lock))
        }
        _ => None,
    }
}

/// Refuses operations on memory tiles and cores that could do more than move data.
fn check_array(action: &Action) -> Result<(), Problem> {
    let Some(tile) = action.tile() else { return Err(unknown(action)) };
    let is_memory = tile.kind() == Some(TileKind::Memory);
    let at = |address: &Address| register(tile, address.offset());
    let is_known = match action {
        Action::Write { address, value } => match at(address) {
            Register::Lock(_) => is_memory && *value <= LOCK_MAX,
            Register::Queue(_) => Task::decode(*value).is_some_and(|task| !task.token),
            _ => false,
        },
        Action::BlockWrite { address, words } => match at(address) {
            Register::Descriptor { word: 0, .. } => words.len() == DESCRIPTOR_WORDS,
            Register::Data(first) if !words.is_empty() => {
                let end = u64::from(first) + 4 * words.len() as u64;
                let last = Address(address.0 + 4 * (words.len() as u32 - 1));
                let stays = end <= 0x10_0000 && matches!(at(&last), Register::Data(_));
                first.is_multiple_of(4) && stays
            }
            _ => false,
        },
        Action::MaskWrite { address, value, mask, .. } => {
            matches!(at(address), Register::Control(_))
                && *mask == CONTROL_RESET
                && value & !CONTROL_RESET == 0
        }
        Action::MaskPoll { address, value, mask, .. } => match at(address) {
            Register::Status(_) => (*value, *mask) == (0, STATUS_IDLE_MASK),
            Register::LockRequest { .. } => (*value, *mask) == (1, 1),
            _ => false,
        },
        Action::Patch { .. } | Action::Sync { .. } | Action::Other { .. } => false,
    };
    if is_known { Ok(()) } else { Err(unknown(action)) }
}

/// Sums runs by column, channel and argument.
fn traffic(runs: &[WordRun]) -> Vec<Traffic> {
    let mut sums = std::collections::BTreeMap::new();
    for run in runs {
        *sums.entry((run.column, run.channel, run.argument)).or_insert(0) += run.words * 4;
    }
    let sums = sums.into_iter();
    sums.map(|((column, channel, argument), bytes)| Traffic { column, channel, argument, bytes })
        .collect()
}
