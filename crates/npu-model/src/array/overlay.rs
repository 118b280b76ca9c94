//! What the PDI of a kernel configures, as facts.
//!
//! Source: the commands of the PDIs in `gemm_4x4_a8w8acc32.xclbin` and
//! `gemm_4x4_a16fw4acc32f.xclbin` of `amd/RyzenAI-SW` at 2a3c4afe (MIT). Streams between tiles are
//! the stream switches' registers (cores and shim tiles from 0x3f000, memory tiles from 0xb0000)
//! followed from end to end. Of cores: descriptors from 0x1d000, queues at 0x1de04, 0x1de0c and
//! 0x1de14, locks from 0x1f000.

use trine_npu::contract::COLUMNS_MAX;
use trine_npu::tile::Tile;

/// Rows of cores.
pub(super) const CORE_ROWS: std::ops::RangeInclusive<u8> = 2..=5;

/// What cores do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// `a8w8acc32`: whole numbers of 8 bits, sums of 32 bits.
    Int8,
    /// `a16fw4acc32f`: bf16 by 4 bits, sums in f32.
    Int4,
}

/// Where a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A channel of a tile's DMA that writes memory.
    Memory(Tile, u8),
    /// The port from which a core's program reads words.
    Port(Tile),
}

/// A stream from a channel that reads memory to one or more ends. All have to take a word before
/// the next is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The tile and channel that send.
    pub from: (Tile, u8),
    /// Where the words go.
    pub to: Vec<End>,
    /// The id of the packets that go this way, if the sender's stream is switched by packets. Their
    /// headers are dropped.
    pub packet: Option<u8>,
}

/// Buffers of a core that one channel of its DMA works through in turns, without end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffers {
    /// The channel.
    pub channel: u8,
    /// Where each begins in the core's memory, in bytes.
    pub starts: Vec<u32>,
    /// Words of each.
    pub words: u32,
    /// The lock that counts free buffers. It begins with all.
    pub free: u8,
    /// The lock that counts full buffers.
    pub full: u8,
}

/// What a PDI configures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    /// What cores do.
    pub behaviour: Behaviour,
    /// Columns of the partition.
    pub columns: u8,
    /// Columns with cores that work.
    pub core_columns: std::ops::Range<u8>,
    /// Streams between tiles.
    pub routes: Vec<Route>,
    /// Buffers for A, in each core.
    pub activations: Buffers,
    /// Buffers for W, in each core.
    pub weights: Buffers,
    /// Buffers for C, in the cores that send.
    pub results: Buffers,
    /// Rows of cores that send C.
    pub senders: std::ops::RangeInclusive<u8>,
}

impl Overlay {
    /// The kernel `a8w8acc32`. Memory tiles and cores of columns 0 to 3 work with the shim tiles of
    /// the columns after them.
    #[must_use]
    pub fn int8() -> Self {
        let all_cores = || CORE_ROWS.flat_map(|row| (0..4).map(move |column| (column, row)));
        let columns = (0..4).map(|column| outer(column + 1, column, [(3, 2)]));
        let mut routes: Vec<Route> = columns.flatten().collect();
        // The first stream of the first column is switched by packets.
        routes[0].packet = Some(0);
        let ports = all_cores().map(|(column, row)| End::Port(Tile::new(column, row)));
        routes.push(Route { packet: Some(1), ..route(Tile::new(1, 0), 0, ports) });
        routes.extend(inner(0..4));
        Self {
            behaviour: Behaviour::Int8,
            columns: COLUMNS_MAX,
            core_columns: 0..4,
            routes,
            activations: buffers(0, [0, 0x8000], 0x800),
            weights: buffers(1, [0x6000, 0xc000], 0x800),
            results: buffers(0, [0x2000], 0x1000),
            senders: 3..=3,
        }
    }

    /// The kernel `a16fw4acc32f`, in columns 1 to 4.
    #[must_use]
    pub fn int4() -> Self {
        let senders = || CORE_ROWS.map(|row| (row, row));
        let columns = (1..5).map(|column| outer(column, column, senders()));
        let mut routes: Vec<Route> = columns.flatten().collect();
        routes.extend(inner(1..5));
        Self {
            behaviour: Behaviour::Int4,
            columns: COLUMNS_MAX,
            core_columns: 1..5,
            routes,
            activations: buffers(0, [0x8000, 0xc000], 0x200),
            weights: buffers(1, [0xc800, 0x8800], 0x850),
            results: buffers(0, [0xa940], 0x400),
            senders: CORE_ROWS,
        }
    }
}

/// What both kernels have between a column's shim tile, which may be in another column, its memory
/// tile and its cores that send: these are named by their row and the channel that takes what they
/// send.
fn outer(
    shim: u8,
    column: u8,
    senders: impl IntoIterator<Item = (u8, u8)>,
) -> impl Iterator<Item = Route> {
    let (shim, memory) = (Tile::new(shim, 0), Tile::new(column, 1));
    let inputs = (0..2).map(move |channel| route(shim, channel, [End::Memory(memory, channel)]));
    let results = senders.into_iter().map(move |(row, channel)| {
        route(Tile::new(column, row), 0, [End::Memory(memory, channel)])
    });
    let output = route(memory, 5, [End::Memory(shim, 0)]);
    inputs.chain(results).chain([output])
}

/// What both kernels have: channel 0 of the memory tile in the column's place `i` sends A to the
/// `i`-th core of all columns, channels 1 to 4 send W to the cores of the own column.
fn inner(columns: std::ops::Range<u8>) -> Vec<Route> {
    let mut routes = Vec::new();
    for (column, row) in columns.clone().zip(CORE_ROWS) {
        let memory = Tile::new(column, 1);
        let cores = columns.clone().map(|column| End::Memory(Tile::new(column, row), 0));
        routes.push(route(memory, 0, cores));
        for row in CORE_ROWS {
            routes.push(route(memory, row - 1, [End::Memory(Tile::new(column, row), 1)]));
        }
    }
    routes
}

fn route(tile: Tile, channel: u8, to: impl IntoIterator<Item = End>) -> Route {
    Route { from: (tile, channel), to: to.into_iter().collect(), packet: None }
}

/// Locks 0 and 1 are those of A, 2 and 3 of W, 4 and 5 of C, which is the only one with one buffer.
fn buffers<const N: usize>(channel: u8, starts: [u32; N], words: u32) -> Buffers {
    let free = if N == 1 { 4 } else { 2 * channel };
    Buffers { channel, starts: starts.into(), words, free, full: free + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every channel has one stream per packet, and every end is reached by one.
    #[test]
    fn streams_neither_fork_nor_meet() {
        for overlay in [Overlay::int8(), Overlay::int4()] {
            let mut ends = Vec::new();
            for (at, route) in overlay.routes.iter().enumerate() {
                let is_same =
                    |other: &&Route| other.from == route.from && other.packet == route.packet;
                assert_eq!(overlay.routes[at..].iter().filter(is_same).count(), 1, "{route:?}");
                for end in &route.to {
                    assert!(!ends.contains(end), "{end:?}");
                    ends.push(*end);
                }
            }
        }
    }

    #[test]
    fn buffers_of_a_core_do_not_overlap() {
        for overlay in [Overlay::int8(), Overlay::int4()] {
            let Overlay { activations, weights, results, .. } = overlay;
            let mut places: Vec<(u32, u32)> = [activations, weights, results]
                .iter()
                .flat_map(|buffers| {
                    buffers.starts.iter().map(|start| (*start, start + 4 * buffers.words))
                })
                .collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{places:x?}");
            assert!(places.last().unwrap().1 <= 0x1_0000);
        }
    }
}
