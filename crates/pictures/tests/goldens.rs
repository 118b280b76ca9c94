//! Pictures decoded and prepared as Pillow and transformers do it. `tests/goldens/README.md` says
//! how the files were made.

use std::path::PathBuf;

use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};
use trine_pictures::{Limits, Picture, Preparation};

fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(goldens().join(name)).unwrap()
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&read(name)).unwrap()
}

fn picture(name: &str) -> Picture {
    Picture::decode(&read(name), &Limits::default()).unwrap()
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// Returns the values of one channel after the other.
fn planar(rgb: &[u8]) -> Vec<u8> {
    [0, 1, 2].iter().flat_map(|&channel| rgb[channel..].iter().step_by(3).copied()).collect()
}

fn difference(found: &[u8], expected: &[u8]) -> (u8, f64) {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b));
    let count = differences.clone().filter(|difference| *difference > 0).count();
    (differences.max().unwrap(), count as f64 / found.len() as f64)
}

#[test]
fn files_decode_as_pillow_decodes_them() {
    let bytes = read("decoded.safetensors");
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    for (name, tensor) in expected.iter() {
        let found = Picture::decode(&read(&format!("decoded/{name}")), &Limits::default());
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        let shape = [found.height() as usize, found.width() as usize, 3];
        assert_eq!(tensor.shape(), shape, "{name}");
        let (largest, share) = difference(found.rgb(), tensor.data());
        // The JPEG decoder rounds otherwise than libjpeg, most where colours are subsampled.
        let (largest_allowed, share_allowed) =
            if name.ends_with(".jpg") { (4, 0.25) } else { (0, 0.0) };
        assert!(largest <= largest_allowed, "{name}: {largest} levels");
        assert!(share <= share_allowed, "{name}: {share} of the values differ");
    }
}

#[test]
fn gray_of_16_bits_keeps_its_upper_8() {
    // 0, 255, 256, 4660, 65279, 65535. Pillow makes white of everything above 255.
    let levels = [0, 0, 1, 18, 254, 255];
    assert_eq!(picture("gray16.png").rgb(), levels.map(|level| [level; 3]).concat());
}

fn gemma3(side: u32, pooling: u32) -> Preparation {
    Preparation::square(side, 14, pooling, [0.5; 3], [0.5; 3]).unwrap()
}

#[test]
fn pictures_are_prepared_for_gemma_3() {
    let facts = json("gemma3/preprocess.json");
    let grids = read("gemma3/grid.safetensors");
    let grids = SafeTensors::deserialize(&grids).unwrap().tensor("grid").unwrap();
    for (index, fact) in facts["images"].as_array().unwrap().iter().enumerate() {
        let name = fact["file"].as_str().unwrap();
        let source = picture(&format!("gemma3/{name}"));
        assert_eq!(source.width(), number(&fact["decoded_width"]));
        assert_eq!(source.height(), number(&fact["decoded_height"]));
        let prepared = gemma3(896, 4).prepare(&source);
        assert_eq!((prepared.patches(), prepared.soft_tokens()), ((64, 64), 256));
        let found = planar(prepared.rgb());
        let grid: Vec<u8> = found
            .chunks(896)
            .enumerate()
            .filter(|(row, _)| row % 896 % 28 == 13)
            .flat_map(|(_, row)| row.iter().copied().skip(13).step_by(28))
            .collect();
        let (largest, share) = difference(&grid, &grids.data()[index * grid.len()..][..grid.len()]);
        if name.ends_with(".jpg") {
            // The decoder's rounding: 16 of 3,072 values.
            assert!(largest <= 1 && share < 0.006, "{name}: {largest} levels, {share} differ");
        } else {
            assert_eq!(hash(&found), fact["sha256_planar_rgb_u8"].as_str().unwrap(), "{name}");
            assert_eq!(largest, 0, "{name}");
        }
    }
}

#[test]
fn planes_and_rows_are_those_of_gemma_3s_tower() {
    let bytes = read("gemma3-vision.safetensors");
    let expected = SafeTensors::deserialize(&bytes).unwrap().tensor("pixel_values").unwrap();
    let expected = floats(expected.data());
    for (name, expected) in ["a.png", "b.png"].iter().zip(expected.chunks(3 * 56 * 56)) {
        let prepared = gemma3(56, 2).prepare(&picture(name));
        assert_eq!((prepared.patches(), prepared.soft_tokens()), ((4, 4), 4));
        assert_eq!(prepared.planes(), expected, "{name}");
        // A convolution of stride 14 multiplies its weight, (3, 14, 14), with these.
        let rows = prepared.rows();
        for (index, &value) in rows.iter().enumerate() {
            let (patch, place) = (index / (3 * 196), index % (3 * 196));
            let (channel, y, x) = (place / 196, place / 14 % 14, place % 14);
            let (y, x) = (patch / 4 * 14 + y, patch % 4 * 14 + x);
            assert_eq!(value, expected[(channel * 56 + y) * 56 + x]);
        }
        assert_eq!(rows.len(), expected.len());
    }
}

#[test]
fn pictures_are_prepared_for_gemma_4() {
    let facts = json("gemma4.json");
    let bytes = read("gemma4.safetensors");
    let values = SafeTensors::deserialize(&bytes).unwrap();
    let levels = |rows: &[f32]| -> Vec<u8> {
        rows.iter().map(|value| (value * 255.0).round() as u8).collect()
    };
    for fact in facts["cases"].as_array().unwrap() {
        let (name, tokens) = (fact["file"].as_str().unwrap(), number(&fact["tokens"]));
        let source = picture(name);
        let prepared = Preparation::budget(16, 3, tokens).unwrap().prepare(&source);
        assert_eq!(prepared.patches(), (number(&fact["columns"]), number(&fact["rows"])));
        assert_eq!(prepared.soft_tokens(), number(&fact["soft_tokens"]), "{name}");
        let rows = prepared.rows();
        assert_eq!(hash(&levels(&rows)), fact["sha256_rows_u8"].as_str().unwrap(), "{name}");
        let expected = floats(values.tensor(&format!("{name}/{tokens}")).unwrap().data());
        let length = 3 * 16 * 16;
        let some = [&rows[..2 * length], &rows[rows.len() - length..]].concat();
        for (found, expected) in some.iter().zip(&expected) {
            // One divides by 255, the other multiplies with the rounded 1 / 255.
            assert!((found - expected).abs() <= f32::EPSILON, "{name}: {found} {expected}");
        }
        assert_eq!(some.len(), expected.len());

        // 12B: the same pixels, 48 x 48 of them in a row.
        let joined = Preparation::budget(48, 1, tokens).unwrap().prepare(&source);
        assert_eq!((joined.rgb(), joined.soft_tokens()), (prepared.rgb(), prepared.soft_tokens()));
        let rows = levels(&joined.rows());
        assert_eq!(hash(&rows), fact["sha256_joined_u8"].as_str().unwrap(), "{name}");
        assert_ne!(joined.digest(), prepared.digest());
    }
}

#[test]
fn sizes_are_those_of_gemma_4() {
    for size in json("gemma4.json")["sizes"].as_array().unwrap() {
        let [width, height, tokens, wide, high] = [0, 1, 2, 3, 4].map(|at| number(&size[at]));
        let preparation = Preparation::budget(16, 3, tokens).unwrap();
        let found = preparation.size(width, height);
        assert_eq!(found, (wide, high), "{width} x {height} with {tokens} tokens");
    }
}
