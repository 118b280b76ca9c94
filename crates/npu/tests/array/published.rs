//! What an overlay says, compared with AMD's PDIs; AMD's streams on the model. `TRINE_NPU_FILES`
//! names the folder with AMD's files; without it these tests are skipped.

use std::collections::BTreeMap;

use trine_npu::generate::Kernel;
use trine_npu::pdi::{Command, Pdi};
use trine_npu::tile::{Tile, TileKind};
use trine_npu::xclbin::Xclbin;
use trine_npu_model::{Array, Buffers, End, Overlay, Task, Tiles};

use crate::published_files::published;
use crate::{int4, int8};

fn pdi(name: &str) -> Option<Vec<u8>> {
    let bytes = published(&format!("{name}.xclbin"))?;
    let partition = Xclbin::parse(&bytes).unwrap().partition.unwrap();
    Some(bytes[partition.pdis[0].range.clone()].to_vec())
}

/// Words that a PDI writes, by tile and offset. Memory and programs of cores are left out.
type Registers = BTreeMap<(Tile, u32), u32>;

fn registers(bytes: &[u8]) -> Registers {
    let mut registers = Registers::new();
    for command in Pdi::parse(bytes).unwrap().commands {
        let (address, words) = match command {
            Command::Write { address, value } => (address, vec![value]),
            Command::DmaWrite { address, data } if data.len() <= 64 => {
                let words = bytes[data].chunks_exact(4);
                (address, words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
            }
            _ => continue,
        };
        for (at, word) in words.into_iter().enumerate() {
            registers.insert((address.tile(), address.offset() + 4 * at as u32), word);
        }
    }
    registers
}

/// A port of a tile's stream switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    Core,
    Dma(u8),
    /// Of a neighbour: columns and rows to it.
    To(i8, i8, u8),
    Other,
}

/// A port of a kind by its number.
type Numbered = fn(u8) -> Port;

/// Ports in the order of their registers: how many of each kind.
fn ports(counts: &[(Numbered, u8)]) -> Vec<Port> {
    counts.iter().flat_map(|(port, count)| (0..*count).map(port)).collect()
}

/// Where a tile's switch is, the ports that it sends to, and those that it receives from.
fn switch(kind: TileKind) -> (u32, Vec<Port>, Vec<Port>) {
    let core: Numbered = |_| Port::Core;
    let other: Numbered = |_| Port::Other;
    let dma: Numbered = Port::Dma;
    let (north, south): (Numbered, Numbered) = (|at| Port::To(0, 1, at), |at| Port::To(0, -1, at));
    let (east, west): (Numbered, Numbered) = (|at| Port::To(1, 0, at), |at| Port::To(-1, 0, at));
    match kind {
        TileKind::Shim => (
            0x3_f000,
            ports(&[(other, 2), (south, 6), (west, 4), (north, 6), (east, 4)]),
            ports(&[(other, 2), (south, 8), (west, 4), (north, 4), (east, 4)]),
        ),
        TileKind::Memory => (
            0xb_0000,
            ports(&[(dma, 6), (other, 1), (south, 4), (north, 6)]),
            ports(&[(dma, 6), (other, 1), (south, 6), (north, 4)]),
        ),
        TileKind::Core => (
            0x3_f000,
            ports(&[(core, 1), (dma, 2), (other, 2), (south, 4), (west, 4), (north, 6), (east, 4)]),
            ports(&[(core, 1), (dma, 2), (other, 2), (south, 6), (west, 4), (north, 4), (east, 4)]),
        ),
    }
}

/// Returns the ports that words from a port go to, with the id of their packets.
fn sent(registers: &Registers, tile: Tile, from: Port) -> Vec<(Port, Option<u8>)> {
    let (base, senders, receivers) = switch(tile.kind().unwrap());
    let receiver = receivers.iter().position(|port| *port == from).unwrap() as u32;
    let mut found = Vec::new();
    for (at, port) in senders.iter().enumerate() {
        let Some(word) = registers.get(&(tile, base + 4 * at as u32)) else { continue };
        match word >> 30 {
            2 if word & 0x3f == receiver => found.push((*port, None)),
            // Bits 2:0 are the arbiter, 6:3 which of its rules; bit 7 drops headers.
            3 => {
                assert_eq!(word >> 7 & 1, 1, "headers are dropped");
                for rule in 0..4 {
                    let place = base + 0x200 + 0x10 * receiver + 4 * rule;
                    let Some(rule) = registers.get(&(tile, place)) else { continue };
                    let is_it = rule >> 8 & 1 == 1
                        && rule & 7 == word & 7
                        && word >> 3 >> (rule >> 4 & 3) & 1 == 1;
                    if is_it {
                        assert_eq!(rule >> 16 & 31, 31, "all bits of the id count");
                        found.push((*port, Some((rule >> 24) as u8 & 31)));
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// Follows a stream to its ends.
fn follow(
    registers: &Registers,
    tile: Tile,
    from: Port,
    packet: Option<u8>,
    ends: &mut Vec<(End, Option<u8>)>,
) {
    for (port, id) in sent(registers, tile, from) {
        let packet = packet.or(id);
        match port {
            Port::Core => ends.push((End::Port(tile), packet)),
            Port::Dma(channel) => ends.push((End::Memory(tile, channel), packet)),
            // The DMA of a shim tile has ports of its south.
            Port::To(0, -1, 2) if tile.row == 0 => ends.push((End::Memory(tile, 0), packet)),
            Port::To(column, row, index) => {
                let next = Tile::new(
                    tile.column.checked_add_signed(column).unwrap(),
                    tile.row.checked_add_signed(row).unwrap(),
                );
                follow(registers, next, Port::To(-column, -row, index), packet, ends);
            }
            Port::Other => panic!("{tile}"),
        }
    }
}

/// Streams as from, to and packet.
type Streams = Vec<String>;

fn streams_of_pdi(registers: &Registers) -> Streams {
    let mut streams = Vec::new();
    for column in 0..5 {
        for row in 0..6 {
            let tile = Tile::new(column, row);
            let sources: &[(u8, Port)] = match tile.kind().unwrap() {
                TileKind::Shim => &[(0, Port::To(0, -1, 3)), (1, Port::To(0, -1, 7))],
                TileKind::Memory => &[0, 1, 2, 3, 4, 5].map(|at| (at, Port::Dma(at))),
                TileKind::Core => &[0, 1].map(|at| (at, Port::Dma(at))),
            };
            for (channel, port) in sources {
                let mut ends = Vec::new();
                follow(registers, tile, *port, None, &mut ends);
                let ends = ends.into_iter();
                streams.extend(ends.map(|(end, id)| format!("{tile} {channel} {end:?} {id:?}")));
            }
        }
    }
    streams.sort();
    streams
}

fn streams_of_overlay(overlay: &Overlay) -> Streams {
    let routes = overlay.routes.iter().flat_map(|route| {
        let (tile, channel) = route.from;
        let id = route.packet;
        route.to.iter().map(move |end| format!("{tile} {channel} {end:?} {id:?}"))
    });
    let mut streams: Vec<String> = routes.collect();
    streams.sort();
    streams
}

/// Returns the buffers of the chain that a core's queue begins with. `is_filled` tells whether the
/// DMA fills them.
fn buffers(
    registers: &Registers,
    tile: Tile,
    queue: u32,
    channel: u8,
    is_filled: bool,
) -> Option<Buffers> {
    let word = |offset: u32| registers.get(&(tile, offset)).copied();
    let first = word(queue)?;
    let mut starts = Vec::new();
    let mut next = first;
    loop {
        let place = 0x1_d000 + 0x20 * next;
        let (place, control) = (word(place)?, word(place + 4 * 5)?);
        starts.push((place >> 14) * 4);
        // Valid, with a next one, waits for at least 1 and gives 1.
        assert_eq!(control & 0x07fc_1fe0, 0x0604_1fe0, "{tile} {control:x}");
        let (acquired, released) = (control as u8 & 15, (control >> 13) as u8 & 15);
        let (free, full) = if is_filled { (acquired, released) } else { (released, acquired) };
        next = control >> 27 & 15;
        if next == first {
            let words = place & 0x3fff;
            assert_eq!(word(0x1_f000 + 0x10 * u32::from(free)), Some(starts.len() as u32));
            return Some(Buffers { channel, starts, words, free, full });
        }
    }
}

#[test]
fn overlays_are_those_of_the_published_pdis() {
    let kernels =
        [("gemm_4x4_a8w8acc32", Overlay::int8()), ("gemm_4x4_a16fw4acc32f", Overlay::int4())];
    for (name, overlay) in kernels {
        let Some(bytes) = pdi(name) else { return };
        let registers = registers(&bytes);
        assert_eq!(streams_of_pdi(&registers), streams_of_overlay(&overlay), "{name}");
        for column in 0..5 {
            for row in 2..6 {
                let tile = Tile::new(column, row);
                let works = overlay.core_columns.contains(&column);
                let sends = works && overlay.senders.contains(&row);
                let of = |queue, channel, is_filled| {
                    buffers(&registers, tile, queue, channel, is_filled)
                };
                let is = |it: &Buffers, is_it: bool| is_it.then(|| it.clone());
                assert_eq!(of(0x1_de04, 0, true), is(&overlay.activations, works), "{tile}");
                assert_eq!(of(0x1_de0c, 1, true), is(&overlay.weights, works), "{tile}");
                assert_eq!(of(0x1_de14, 0, false), is(&overlay.results, sends), "{tile}");
            }
        }
    }
}

#[test]
fn published_streams_give_products_under_the_published_programs() {
    let run = |name: &str, program: &str, memory: &mut crate::support::Memory| {
        let task = Task {
            program: pdi(program)?,
            instructions: published(&format!("{name}.bin"))?,
            arguments: memory.arguments(),
        };
        Some(Tiles::new(1).run(&task, memory))
    };
    let case = int8::Case::new(2048, 2048, 8, 1);
    let mut memory = case.memory(8);
    let name = Kernel::Int8 { m: 8, k: 2048, n: 2048 }.to_string();
    let Some(outcome) = run(&name, "gemm_4x4_a8w8acc32", &mut memory) else { return };
    assert!(outcome == Ok(()) && case.is_right(&memory));
    let case = int4::Case::new(4096, 4096, 128, 1, 1);
    let mut memory = case.memory(1);
    let name = Kernel::Int4 { m: 1, k: 4096, n: 4096, group: 128 }.to_string();
    assert_eq!(run(&name, "gemm_4x4_a16fw4acc32f", &mut memory), Some(Ok(())));
    assert!(case.error(&memory) < 1.0);
}
