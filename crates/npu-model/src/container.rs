//! An xclbin for a model's array. No byte of it is AMD's.

/// Sections of kernels' arguments, of units and of the partition.
const METADATA: u32 = 2;
const UNITS: u32 = 8;
const PARTITION: u32 = 32;
/// Where the table of sections begins, and bytes of an entry.
const TABLE: usize = 456;
const ENTRY_BYTES: usize = 40;
/// Buffers of the kernel.
const BUFFERS: usize = 6;

/// Returns an xclbin of five columns with one kernel of six buffers, whose cores run `pdi`.
#[must_use]
pub fn xclbin(pdi: &[u8]) -> Vec<u8> {
    xclbin_of(BUFFERS, Some(pdi), 0)
}

/// Returns an xclbin of five columns with one kernel of `buffers` buffers, with or without a PDI,
/// whose unit has this function, from 0 to 3.
#[must_use]
pub fn xclbin_of(buffers: usize, pdi: Option<&[u8]>, function: u8) -> Vec<u8> {
    let mut metadata = "<kernel name=\"DPU\">".to_owned();
    for at in 0..buffers + 3 {
        let (size, offset) = (if at == 2 { 4 } else { 8 }, 8 * at);
        metadata += &format!("<arg name=\"a\" id=\"{at}\" size=\"{size}\" offset=\"{offset}\"/>");
    }
    // After the partition come its start column, which is 0, the entry of the PDI, and the PDI.
    let (start, entry, place) = (184_u32, 192_u32, 288_u32);
    let mut partition = vec![0; place as usize];
    let mut put = |at: u32, number: u32| {
        partition[at as usize..at as usize + 4].copy_from_slice(&number.to_le_bytes());
    };
    for (at, number) in [(0x20, 5), (0x28, 1), (0x2c, start)] {
        put(at, number);
    }
    if let Some(pdi) = pdi {
        let length = pdi.len() as u32;
        for (at, number) in [(0x78, 1), (0x7c, entry), (entry + 16, length), (entry + 20, place)] {
            put(at, number);
        }
        partition.extend(pdi);
    }

    // One unit of the array, of kernel 0x100.
    let mut units = vec![0; 88];
    units[0] = 1;
    units[8] = 7;
    units[12..16].copy_from_slice(&(0x100_0001 | u32::from(function) << 4).to_le_bytes());
    units[24..31].copy_from_slice(b"DPU:one");

    let mut bytes = b"xclbin2\0".to_vec();
    bytes.resize(TABLE, 0);
    bytes[448] = 3;
    let mut data = Vec::new();
    let sections = [(METADATA, metadata.into_bytes()), (PARTITION, partition), (UNITS, units)];
    for (kind, section) in sections {
        let offset = (TABLE + 3 * ENTRY_BYTES + data.len()) as u64;
        bytes.extend(kind.to_le_bytes());
        bytes.extend([0; 20]);
        bytes.extend(offset.to_le_bytes());
        bytes.extend((section.len() as u64).to_le_bytes());
        data.extend(section);
    }
    bytes.extend(data);
    let length = (bytes.len() as u64).to_le_bytes();
    bytes[304..312].copy_from_slice(&length);
    bytes
}
