//! Any bytes as a `tokenizer.json`, then any text through it. The input is the JSON, a NUL, the
//! text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trine_text::{Specials, Tokenizer};

fuzz_target!(|data: &[u8]| {
    let cut = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let (json, rest) = data.split_at(cut);
    let Ok(tokenizer) = Tokenizer::from_json_bytes(json) else { return };
    let text = String::from_utf8_lossy(rest.get(1..).unwrap_or_default());
    for specials in [Specials::Parse, Specials::AsText, Specials::ParseGuarded] {
        let Ok(ids) = tokenizer.encode_prompt(&text, specials) else { continue };
        let _ = tokenizer.decode(&ids, false);
        let _ = tokenizer.decode(&ids, true);
    }
    let any_ids: Vec<u32> = rest
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    let _ = tokenizer.decode(&any_ids, false);
});
