//! The array of a model, which carries out a stream's operations.

use std::collections::BTreeMap;
use std::fmt;

use super::engine::Problem;
use super::grid::{Chance, Grid};
use super::overlay::{Behaviour, Overlay};
use super::{Array, DeviceMemory, Task, Trap};
use trine_npu::contract::{APERTURE, TRANSLATED_ARGUMENTS};
use trine_npu::registers::{
    CONTROL_RESET, Register, SHIM_CONTROL_VALUE, STATUS_IDLE_MASK, Task as QueueTask, register,
};
use trine_npu::sha256;
use trine_npu::tile::{Address, ROWS, Tile, TileKind};
use trine_npu::txn::{Action, GENERATION, Header, Transaction};

/// The PDIs that AMD published, by SHA-256: those in `gemm_4x4_a8w8acc32.xclbin` and
/// `gemm_4x4_a16fw4acc32f.xclbin`.
const PUBLISHED: [(&str, Behaviour); 2] = [
    ("eade7b019b79ecf8a299b5023701ae64ed35bcb56148248b4077e76ba679ed81", Behaviour::Int8),
    ("1cb571eb3a0620b5275059f0f5d90ba0a626d5dce79f66befdb5487d34f4e2a2", Behaviour::Int4),
];

impl Behaviour {
    /// Returns what stands for the kernel's PDI where AMD's is not at hand. No byte is AMD's.
    #[must_use]
    pub const fn stand_in(self) -> &'static [u8] {
        match self {
            Self::Int8 => b"in the place of the program a8w8acc32",
            Self::Int4 => b"in the place of the program a16fw4acc32f",
        }
    }

    /// Returns what the kernel's PDI configures.
    #[must_use]
    pub fn overlay(self) -> Overlay {
        match self {
            Self::Int8 => Overlay::int8(),
            Self::Int4 => Overlay::int4(),
        }
    }
}

/// The array: tiles with memories, locks and DMA, and cores whose programs are modelled by what
/// they do. It knows AMD's published programs for products and what stands for them
/// ([`Behaviour::stand_in`]); under any other a command gets stuck.
///
/// Streams, descriptors and locks decide what reaches a core. The order in which things happen that
/// wait for nothing is one of chance: a stream is right if it is so under every seed. Between
/// commands of the same program everything stays as it is; after a command that did not end well,
/// the program is loaded again.
pub struct Tiles {
    known: BTreeMap<String, Overlay>,
    chance: Chance,
    faulty: Option<Tile>,
    delayed: Option<(Tile, u8)>,
    loaded: Option<(String, Grid)>,
    problem: Option<String>,
}

impl fmt::Debug for Tiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { known, faulty, delayed, problem, .. } = self;
        let known = known.keys().collect::<Vec<_>>();
        let mut fields = f.debug_struct("Tiles");
        fields.field("known", &known).field("faulty", faulty).field("delayed", delayed);
        fields.field("problem", problem).finish_non_exhaustive()
    }
}

impl Tiles {
    /// An array in which things happen in an order that follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let published = PUBLISHED.map(|(hash, behaviour)| (hash.to_owned(), behaviour.overlay()));
        let stand_ins = [Behaviour::Int8, Behaviour::Int4]
            .map(|behaviour| (sha256(behaviour.stand_in()), behaviour.overlay()));
        Self {
            known: published.into_iter().chain(stand_ins).collect(),
            chance: Chance::new(seed),
            faulty: None,
            delayed: None,
            loaded: None,
            problem: None,
        }
    }

    /// Says what a program configures.
    #[must_use]
    pub fn with(mut self, pdi: &[u8], overlay: Overlay) -> Self {
        self.known.insert(sha256(pdi), overlay);
        self
    }

    /// Makes a core err: a bit of the first element of each block that it sends is another.
    #[must_use]
    pub fn with_faulty(mut self, core: Tile) -> Self {
        self.faulty = Some(core);
        self
    }

    /// Lets the words that a channel of a tile sends wait until nothing else can happen. This
    /// brings out what is right only because that stream is quick.
    #[must_use]
    pub fn with_delayed(mut self, tile: Tile, channel: u8) -> Self {
        self.delayed = Some((tile, channel));
        self
    }

    /// Returns why the last command did not end well.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn carry_out(
        &mut self,
        grid: &mut Grid,
        columns: u8,
        task: &Task,
        memory: &mut dyn DeviceMemory,
    ) -> Result<(), Problem> {
        let stream = Transaction::parse(&task.instructions).map_err(|error| error.to_string())?;
        let expected = Header { padding: stream.header.padding, ..Header::new(columns) };
        if stream.header != expected || (GENERATION, ROWS) != (expected.generation, expected.rows) {
            return Err("the stream is for another array".into());
        }
        grid.begin(&mut self.chance);
        let mut run = Run { grid, chance: &mut self.chance, memory, arguments: &task.arguments };
        for (index, operation) in stream.operations.iter().enumerate() {
            run.apply(&operation.action).map_err(|problem| match problem {
                Problem::Stuck(text) => {
                    Problem::Stuck(format!("operation {index}, {}: {text}", operation.action))
                }
                other => other,
            })?;
            run.meanwhile()?;
        }
        Ok(())
    }
}

impl Array for Tiles {
    fn run(&mut self, task: &Task, memory: &mut dyn DeviceMemory) -> Result<(), Trap> {
        let hash = sha256(&task.program);
        let loaded = self.loaded.take().filter(|(loaded, _)| *loaded == hash);
        let outcome = (|| {
            let overlay = self.known.get(&hash).ok_or("the program is not known")?;
            let columns = overlay.columns;
            let mut grid = match loaded {
                Some((_, grid)) => grid,
                None => Grid::new(overlay, self.faulty, self.delayed)?,
            };
            self.carry_out(&mut grid, columns, task, memory)?;
            Ok(grid)
        })();
        match outcome {
            Ok(grid) => {
                self.loaded = Some((hash, grid));
                self.problem = None;
                Ok(())
            }
            Err(Problem::Unreachable(address)) => {
                self.problem = Some(format!("nothing is at {address:#x}"));
                Err(Trap::Unreachable { address })
            }
            Err(Problem::Stuck(text)) => {
                self.problem = Some(text);
                Err(Trap::Stuck)
            }
        }
    }
}

/// A stream that is carried out.
struct Run<'a> {
    grid: &'a mut Grid,
    chance: &'a mut Chance,
    memory: &'a mut dyn DeviceMemory,
    arguments: &'a [u64],
}

impl Run<'_> {
    /// Lets the array go on between two operations, for no time, a while, or until it rests.
    fn meanwhile(&mut self) -> Result<(), Problem> {
        match self.chance.below(8) {
            0 => while self.grid.sweep(self.memory, self.chance)? {},
            1 | 2 => {
                self.grid.sweep(self.memory, self.chance)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn apply(&mut self, action: &Action) -> Result<(), Problem> {
        match action {
            Action::Write { address, value } => self.write(*address, *value),
            Action::BlockWrite { address, words } => self.block_write(*address, words),
            Action::MaskWrite { address, value, mask, .. } => {
                let tile = address.tile();
                match register(tile, address.offset()) {
                    Register::Control(channel)
                        if *mask == CONTROL_RESET && value & !CONTROL_RESET == 0 =>
                    {
                        self.grid.node(tile)?.reset(channel, *value != 0)
                    }
                    _ => Err("not modelled".into()),
                }
            }
            Action::MaskPoll { address, value, mask, .. } => self.poll(*address, *value, *mask),
            Action::Patch { address, argument, offset } => self.patch(*address, *argument, *offset),
            Action::Sync { .. } | Action::Other { .. } => Err("not modelled".into()),
        }
    }

    fn write(&mut self, address: Address, value: u32) -> Result<(), Problem> {
        let tile = address.tile();
        let node = self.grid.node(tile)?;
        match register(tile, address.offset()) {
            Register::Descriptor { index, word } => node.write(index, word, &[value]),
            Register::Lock(lock) => node.set_lock(lock, value),
            Register::Queue(channel) => {
                let task = QueueTask::decode(value).ok_or("a task sets bits without meaning")?;
                node.push(channel, task)
            }
            Register::Control(_)
                if tile.kind() == Some(TileKind::Shim) && value == SHIM_CONTROL_VALUE =>
            {
                Ok(())
            }
            _ => Err("not modelled".into()),
        }
    }

    fn block_write(&mut self, address: Address, words: &[u32]) -> Result<(), Problem> {
        let tile = address.tile();
        let node = self.grid.node(tile)?;
        match register(tile, address.offset()) {
            Register::Descriptor { index, word } => node.write(index, word, words),
            Register::Data(byte) if byte.is_multiple_of(4) => {
                let start = byte as usize / 4;
                let place = node.data.get_mut(start..start + words.len());
                place.ok_or("runs over the memory's end")?.copy_from_slice(words);
                Ok(())
            }
            _ => Err("not modelled".into()),
        }
    }

    fn patch(&mut self, address: Address, argument: u32, offset: u64) -> Result<(), Problem> {
        let tile = address.tile();
        let Register::Descriptor { index, word: 1 } = register(tile, address.offset()) else {
            return Err("not modelled".into());
        };
        if tile.kind() != Some(TileKind::Shim) {
            return Err("not modelled".into());
        }
        let base = self.arguments.get(argument as usize).ok_or("there is no such argument")?;
        let offset = if argument < TRANSLATED_ARGUMENTS {
            Some(offset)
        } else {
            offset.checked_sub(APERTURE)
        };
        let place = offset.and_then(|offset| base.checked_add(offset));
        self.grid.node(tile)?.patch(index, place.ok_or(Problem::Unreachable(*base))?)
    }

    /// Waits until a channel rests.
    fn poll(&mut self, address: Address, value: u32, mask: u32) -> Result<(), Problem> {
        let tile = address.tile();
        let Register::Status(channel) = register(tile, address.offset()) else {
            return Err("not modelled".into());
        };
        if (value, mask) != (0, STATUS_IDLE_MASK) {
            return Err("not modelled".into());
        }
        while !self.grid.node(tile)?.is_idle(channel)? {
            if !self.grid.sweep(self.memory, self.chance)? {
                return Err("waits for what never comes".into());
            }
        }
        Ok(())
    }
}
