//! All tiles, and the streams between them.

use super::DeviceMemory;
use super::core::{Core, Kernel};
use super::engine::Problem;
use super::int4::Int4;
use super::int8::Int8;
use super::node::Node;
use super::overlay::{Behaviour, CORE_ROWS, End, Overlay, Route};
use trine_npu::registers::{Channel, Direction};
use trine_npu::tile::{Tile, TileKind};

/// Words that a command may move between tiles. The largest product of a published stream moves a
/// third of it.
const WORDS_MAX: u64 = 1 << 30;
/// Rounds through all tiles in a command.
const SWEEPS_MAX: u64 = 1 << 22;

/// Numbers that look random (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ word >> 31) % end as u64) as usize
    }
}

/// A column's tiles.
struct Column {
    shim: Node,
    memory: Node,
    cores: Vec<Core>,
    kernels: Vec<Box<dyn Kernel>>,
}

/// Something that can happen next.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A channel begins or ends descriptors.
    Channel(Tile, Channel),
    /// Words go over the stream with this index.
    Route(usize),
    /// A core does a step.
    Core(Tile),
}

/// How urgent events can be. One happens only if none that is more urgent can.
///
/// What waits for nothing can happen late on silicon, and how late does not follow from the
/// stream. Two events that only luck keeps in their order change it where the second is more
/// urgent.
const URGENCIES: usize = 4;
/// Every how many sweeps events get another urgency, on average.
const RECONSIDERED: usize = 64;

/// The tiles of a partition as an overlay configures them.
pub(super) struct Grid {
    columns: Vec<Column>,
    routes: Vec<Route>,
    events: Vec<Event>,
    /// Indices of events, the most urgent ones first.
    urgencies: [Vec<usize>; URGENCIES],
    /// The channel whose words wait for everything else.
    delayed: Option<(Tile, u8)>,
    words: Vec<u32>,
    words_left: u64,
    sweeps_left: u64,
}

impl Grid {
    /// Configures all tiles. The program of the core `faulty` makes a mistake; words from `delayed`
    /// wait for everything else.
    pub(super) fn new(
        overlay: &Overlay,
        faulty: Option<Tile>,
        delayed: Option<(Tile, u8)>,
    ) -> Result<Self, Problem> {
        let mut grid = Self {
            columns: Vec::new(),
            routes: overlay.routes.clone(),
            events: (0..overlay.routes.len()).map(Event::Route).collect(),
            urgencies: Default::default(),
            delayed,
            words: Vec::new(),
            words_left: 0,
            sweeps_left: 0,
        };
        for column in 0..overlay.columns {
            let mut cores = Vec::new();
            let mut kernels: Vec<Box<dyn Kernel>> = Vec::new();
            for row in CORE_ROWS {
                let tile = Tile::new(column, row);
                cores.push(Core::new(Node::core(overlay, tile)?));
                if overlay.core_columns.contains(&column) {
                    let is_faulty = faulty == Some(tile);
                    kernels.push(match overlay.behaviour {
                        Behaviour::Int8 => Box::new(Int8::new(overlay, is_faulty)),
                        Behaviour::Int4 => Box::new(Int4::new(overlay, is_faulty)),
                    });
                    grid.events.push(Event::Core(tile));
                }
            }
            grid.columns.push(Column {
                shim: Node::shim(),
                memory: Node::memory(),
                cores,
                kernels,
            });
            for row in 0..trine_npu::tile::ROWS {
                let tile = Tile::new(column, row);
                let channels = grid.node(tile)?.channels() as u8;
                for direction in [Direction::ToMemory, Direction::FromMemory] {
                    let channel = |index| Event::Channel(tile, Channel { direction, index });
                    grid.events.extend((0..channels).map(channel));
                }
            }
        }
        Ok(grid)
    }

    /// Says that a command begins.
    pub(super) fn begin(&mut self, chance: &mut Chance) {
        (self.words_left, self.sweeps_left) = (WORDS_MAX, SWEEPS_MAX);
        self.reconsider(chance);
    }

    /// Gives every event an urgency.
    fn reconsider(&mut self, chance: &mut Chance) {
        self.urgencies.iter_mut().for_each(Vec::clear);
        for (at, event) in self.events.iter().enumerate() {
            let sender = match event {
                Event::Route(index) => Some(self.routes[*index].from),
                Event::Channel(..) | Event::Core(_) => None,
            };
            let urgency = match self.delayed {
                None => chance.below(URGENCIES),
                delayed if sender == delayed => URGENCIES - 1,
                Some(_) => 0,
            };
            self.urgencies[urgency].push(at);
        }
    }

    /// Returns a tile.
    pub(super) fn node(&mut self, tile: Tile) -> Result<&mut Node, Problem> {
        let column = self.columns.get_mut(usize::from(tile.column));
        let node = column.and_then(|column| match tile.kind()? {
            TileKind::Shim => Some(&mut column.shim),
            TileKind::Memory => Some(&mut column.memory),
            TileKind::Core => {
                let index = usize::from(tile.row - CORE_ROWS.start());
                column.cores.get_mut(index).map(|core| &mut core.node)
            }
        });
        node.ok_or_else(|| format!("{tile} is outside of the partition").into())
    }

    /// Lets the most urgent events happen that can, each once. Returns whether one did.
    pub(super) fn sweep(
        &mut self,
        memory: &mut dyn DeviceMemory,
        chance: &mut Chance,
    ) -> Result<bool, Problem> {
        let left = self.sweeps_left.checked_sub(1);
        self.sweeps_left = left.ok_or("the command does not come to an end")?;
        if chance.below(RECONSIDERED) == 0 {
            self.reconsider(chance);
        }
        let longest = 256 << (4 * chance.below(3));
        let mut progress = false;
        for urgency in 0..URGENCIES {
            for at in 0..self.urgencies[urgency].len() {
                match self.events[self.urgencies[urgency][at]] {
                    Event::Channel(tile, channel) => {
                        self.node(tile)?.offer(channel, &mut progress)?;
                    }
                    Event::Route(index) => progress |= self.carry(index, longest, memory)?,
                    Event::Core(tile) => progress |= self.step(tile)?,
                }
            }
            if progress {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn step(&mut self, tile: Tile) -> Result<bool, Problem> {
        let index = usize::from(tile.row - CORE_ROWS.start());
        let column = &mut self.columns[usize::from(tile.column)];
        column.kernels[index].step(&mut column.cores, index)
    }

    /// Carries words over a stream, as far as its ends are ready. Returns whether it did.
    fn carry(
        &mut self,
        index: usize,
        longest: u64,
        memory: &mut dyn DeviceMemory,
    ) -> Result<bool, Problem> {
        let route = std::mem::replace(
            &mut self.routes[index],
            Route { from: (Tile::new(0, 0), 0), to: Vec::new(), packet: None },
        );
        let carried = self.carry_over(&route, longest, memory);
        self.routes[index] = route;
        carried
    }

    fn carry_over(
        &mut self,
        route: &Route,
        longest: u64,
        memory: &mut dyn DeviceMemory,
    ) -> Result<bool, Problem> {
        let mut progress = false;
        let (tile, channel) = route.from;
        let from = Channel { direction: Direction::FromMemory, index: channel };
        let Some(offer) = self.node(tile)?.offer(from, &mut progress)? else {
            return Ok(progress);
        };
        // Words that no stream is switched for stay where they are.
        if offer.packet != route.packet {
            return Ok(progress);
        }
        let mut count = offer.words.min(longest);
        for end in &route.to {
            count = count.min(self.room(*end, &mut progress)?);
        }
        if count == 0 {
            return Ok(progress);
        }
        let left = self.words_left.checked_sub(count);
        self.words_left = left.ok_or("the command moves words without end")?;
        let mut words = std::mem::take(&mut self.words);
        words.resize(count as usize, 0);
        self.node(tile)?.read(channel, &mut words, memory)?;
        for end in &route.to {
            match *end {
                End::Memory(tile, channel) => self.node(tile)?.take(channel, &words, memory)?,
                End::Port(tile) => self.core(tile)?.0.port.extend_from_slice(&words),
            }
        }
        self.words = words;
        Ok(true)
    }

    /// Returns how many words the end of a stream takes now.
    fn room(&mut self, end: End, progress: &mut bool) -> Result<u64, Problem> {
        match end {
            End::Memory(tile, index) => {
                let channel = Channel { direction: Direction::ToMemory, index };
                let offer = self.node(tile)?.offer(channel, progress)?;
                Ok(offer.map_or(0, |offer| offer.words))
            }
            End::Port(tile) => {
                let (core, kernel) = self.core(tile)?;
                Ok(kernel.wanted(core) as u64)
            }
        }
    }

    fn core(&mut self, tile: Tile) -> Result<(&mut Core, &dyn Kernel), Problem> {
        let index = usize::from(tile.row).checked_sub(usize::from(*CORE_ROWS.start()));
        let found = self.columns.get_mut(usize::from(tile.column)).and_then(|column| {
            Some((column.cores.get_mut(index?)?, &**column.kernels.get(index?)?))
        });
        found.ok_or_else(|| format!("{tile} has no core that works").into())
    }
}
