//! A page as a file: its name, which determines what it must hold, and its bytes, which have to
//! prove it.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `trineKV1` |
//! | 8 | length of the keys and values, u64 |
//! | 32 | hash of the chain before this block |
//! | 32 | hash of the chain with it |
//! | 4, 4 | part (0 global, 1 local) and index of the block, u32 |
//! | 128 | the block's token ids, u32 |
//! | | keys and values, as the device has them |
//! | 32 | SHA-256 of all of it |
//!
//! Numbers are little-endian. The chain of a sequence begins with the hash of everything that
//! determines its keys and values except the tokens ([`Origin`]) and of who may use them
//! ([`Scope`]). Each block adds the hash of the chain before it and its tokens, so a page's name
//! identifies the whole beginning of the sequence. A block with soft tokens adds the places and
//! names of the pictures that they belong to, whose names include the tower.

use sha2::{Digest, Sha256};
use trine_backend::{BLOCK, Facts, KvPart};

use crate::pictures::PictureSpans;
use crate::scope::Scope;

const MAGIC: &[u8; 8] = b"trineKV1";
/// The bytes before the keys and values.
const HEADER: usize = 8 + 8 + 32 + 32 + 8 + 4 * BLOCK;
/// The bytes after them.
const DIGEST: usize = 32;

/// A link of a chain.
type Hash = [u8; 32];

/// The name of a page. The same sequence, computed by the same device and program, has the same
/// name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageName {
    chain: Hash,
    part: KvPart,
}

/// Everything that is known of a page before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageKey {
    /// The layers that it covers.
    pub part: KvPart,
    /// The index of its block in the sequence.
    pub index: u32,
    /// The tokens of the block.
    pub tokens: [u32; BLOCK],
    /// The bytes of keys and values.
    pub bytes: usize,
    before: Hash,
    chain: Hash,
}

/// What determines keys and values apart from the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    hash: Hash,
    page_bytes: [usize; 2],
}

/// How a file differs from the page that it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The file is too short or too long.
    #[error("it has {found} bytes, {expected} are expected")]
    Length {
        /// The bytes that it has.
        found: u64,
        /// The bytes that such a page has.
        expected: u64,
    },
    /// The digest is not that of the file's bytes.
    #[error("its checksum does not match")]
    Checksum,
    /// The file is sound but holds another page.
    #[error("it holds something else than its name says")]
    Foreign,
}

impl Origin {
    /// Creates the origin of sequences that a Program computes with the model of this
    /// [fingerprint](trine_model::Model::fingerprint). Returns `None` if the Program cannot export
    /// its pages.
    pub fn new(fingerprint: Hash, program: &Facts) -> Option<Self> {
        let layout = program.pages.as_ref()?;
        let page_bytes = [KvPart::Global, KvPart::Local].map(|part| layout.page_bytes(part));
        let layout = layout.name.as_str();
        let mut hash = Sha256::new();
        hash.update(MAGIC);
        // Another version may compute differently.
        hash.update(concat!(env!("CARGO_PKG_VERSION"), "\n"));
        hash.update(fingerprint);
        for number in [BLOCK, page_bytes[0], page_bytes[1], layout.len()] {
            hash.update((number as u64).to_le_bytes());
        }
        hash.update(layout);
        Some(Self { hash: hash.finalize().into(), page_bytes })
    }

    /// Returns the bytes of keys and values in a page.
    pub fn page_bytes(&self, part: KvPart) -> usize {
        self.page_bytes[number(part) as usize]
    }

    /// Returns for each full block of a sequence the page of its global layers; [`PageKey::of`]
    /// returns that of the local ones. `is_bulk` is whether its prompt has
    /// [bulk rows](trine_backend::Batch::bulk_from), which are computed differently. Sequences of
    /// different scopes have different pages.
    pub fn pages(
        self,
        is_bulk: bool,
        scope: Scope,
        tokens: &[u32],
    ) -> impl Iterator<Item = PageKey> {
        static NONE: PictureSpans = PictureSpans::none();
        self.pages_with(is_bulk, scope, tokens, &NONE)
    }

    /// Does the same for a sequence with pictures. The name of a page has the names of all pictures
    /// that a row of its block sees.
    pub(crate) fn pages_with(
        self,
        is_bulk: bool,
        scope: Scope,
        tokens: &[u32],
        spans: &PictureSpans,
    ) -> impl Iterator<Item = PageKey> {
        let start: Hash = Sha256::new()
            .chain_update(self.hash)
            .chain_update([u8::from(is_bulk)])
            .chain_update(scope.bytes())
            .finalize()
            .into();
        let link = move |before: &mut Hash, (index, tokens): (usize, &[u32; BLOCK])| {
            let mut hash = Sha256::new_with_prefix(*before);
            tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
            for picture in spans.within(index * BLOCK..(index + 1) * BLOCK) {
                hash.update((picture.at as u64).to_le_bytes());
                hash.update((picture.end as u64).to_le_bytes());
                hash.update(picture.name);
            }
            let chain = hash.finalize().into();
            let before = std::mem::replace(before, chain);
            let (part, bytes) = (KvPart::Global, self.page_bytes(KvPart::Global));
            Some(PageKey { part, index: index as u32, tokens: *tokens, bytes, before, chain })
        };
        tokens.as_chunks().0.iter().enumerate().scan(start, link)
    }
}

impl PageKey {
    /// Returns the page of the same block and another part.
    pub fn of(&self, part: KvPart, origin: &Origin) -> Self {
        Self { part, bytes: origin.page_bytes(part), ..*self }
    }

    /// Returns its name.
    pub fn name(&self) -> PageName {
        PageName { chain: self.chain, part: self.part }
    }

    /// Returns the bytes of its file.
    pub fn file_bytes(&self) -> u64 {
        (HEADER + self.bytes + DIGEST) as u64
    }

    /// Returns the bytes of its file before and after the keys and values.
    pub fn frame(&self, payload: &[u8]) -> ([u8; HEADER], [u8; DIGEST]) {
        let header = self.header();
        (header, Sha256::new().chain_update(header).chain_update(payload).finalize().into())
    }

    /// Returns the keys and values of a file.
    ///
    /// # Errors
    /// Returns why the file is not this page.
    pub fn payload<'a>(&self, file: &'a [u8]) -> Result<&'a [u8], Damage> {
        let (found, expected) = (file.len() as u64, self.file_bytes());
        if found != expected {
            return Err(Damage::Length { found, expected });
        }
        let (content, digest) = file.split_at(file.len() - DIGEST);
        if Sha256::digest(content)[..] != *digest {
            return Err(Damage::Checksum);
        }
        let (header, payload) = content.split_at(HEADER);
        // The whole header is compared, including the token ids, so that nothing relies on a hash.
        if header == self.header() { Ok(payload) } else { Err(Damage::Foreign) }
    }

    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let mut rest = &mut header[..];
        let mut put = |bytes: &[u8]| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            own.copy_from_slice(bytes);
            rest = others;
        };
        put(MAGIC);
        put(&(self.bytes as u64).to_le_bytes());
        put(&self.before);
        put(&self.chain);
        put(&number(self.part).to_le_bytes());
        put(&self.index.to_le_bytes());
        self.tokens.iter().for_each(|token| put(&token.to_le_bytes()));
        header
    }
}

impl PageName {
    /// Returns the name of its file: the chain in hexadecimal digits, the part, `.kv`.
    pub fn file_name(&self) -> String {
        let digits: String = self.chain.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digits}{}", suffix(self.part))
    }

    /// Parses the name of a file. Returns `None` for a name that no page has.
    pub fn parse(name: &str) -> Option<Self> {
        let part = [KvPart::Global, KvPart::Local].into_iter();
        let (part, digits) =
            part.filter_map(|part| Some((part, name.strip_suffix(suffix(part))?))).next()?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() != 64 || !digits.bytes().all(is_digit) {
            return None;
        }
        let mut chain = [0; 32];
        for (byte, at) in chain.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
        }
        Some(Self { chain, part })
    }
}

fn suffix(part: KvPart) -> &'static str {
    match part {
        KvPart::Global => ".global.kv",
        KvPart::Local => ".local.kv",
    }
}

fn number(part: KvPart) -> u32 {
    match part {
        KvPart::Global => 0,
        KvPart::Local => 1,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn origin(seed: u8) -> Origin {
        Origin { hash: [seed; 32], page_bytes: [40, 24] }
    }

    impl Origin {
        pub(crate) fn with_page_bytes(self, page_bytes: [usize; 2]) -> Self {
            Self { page_bytes, ..self }
        }
    }

    fn file(key: &PageKey, payload: &[u8]) -> Vec<u8> {
        let (header, digest) = key.frame(payload);
        [&header, payload, &digest].concat()
    }

    #[test]
    fn names_depend_on_all_that_was_before() {
        let tokens: Vec<u32> = (0..100).collect();
        let pages: Vec<PageKey> = origin(1).pages(false, Scope::default(), &tokens).collect();
        assert_eq!(pages.len(), 3, "only full blocks");
        let begun = origin(1).pages(false, Scope::default(), &tokens[..70]);
        assert!(pages[..2].iter().copied().eq(begun));
        let mut other = tokens.clone();
        other[0] = 7;
        let (all, own) = (Scope::default(), Scope::default().within(b"own"));
        for (seed, is_bulk, scope, tokens) in [
            (1, false, all, &other),
            (1, true, all, &tokens),
            (2, false, all, &tokens),
            (1, false, own, &tokens),
        ] {
            let others = origin(seed).pages(is_bulk, scope, tokens);
            for (one, other) in pages.iter().zip(others) {
                assert_ne!(one.name(), other.name());
            }
        }
        let local = pages[1].of(KvPart::Local, &origin(1));
        assert_ne!(local.name(), pages[1].name());
        for key in [pages[1], local] {
            assert_eq!(PageName::parse(&key.name().file_name()), Some(key.name()));
        }
        let name = local.name().file_name();
        for wrong in ["", ".kv", ".local.kv", &name[1..], &name.to_uppercase(), &format!("0{name}")]
        {
            assert_eq!(PageName::parse(wrong), None, "{wrong}");
        }
        assert_eq!(PageName::parse(&format!("{}é.local.kv", &name[..62])), None);
    }

    #[test]
    fn a_file_with_any_bit_changed_is_not_the_page() {
        let key = origin(1).pages(true, Scope::default(), &[5; BLOCK]).next().unwrap();
        let payload: Vec<u8> = (0..40).collect();
        let sound = file(&key, &payload);
        assert_eq!(key.payload(&sound), Ok(&payload[..]));
        for bit in 0..8 * sound.len() {
            let mut damaged = sound.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.payload(&damaged), Err(Damage::Checksum), "bit {bit}");
        }
        for length in 0..sound.len() {
            assert!(matches!(key.payload(&sound[..length]), Err(Damage::Length { .. })));
        }
        let long = [&sound[..], &[0]].concat();
        assert!(matches!(key.payload(&long), Err(Damage::Length { .. })));
    }

    /// The case of two lists of tokens with the same hash, and of a file under another page's name.
    #[test]
    fn a_sound_file_of_other_tokens_is_not_the_page() {
        let key = origin(1).pages(true, Scope::default(), &[5; BLOCK]).next().unwrap();
        let payload = [9; 40];
        for other in [
            PageKey { tokens: [6; BLOCK], ..key },
            PageKey { index: 1, ..key },
            PageKey { part: KvPart::Local, ..key },
            PageKey { before: [0; 32], ..key },
            PageKey { chain: [0; 32], ..key },
        ] {
            assert_eq!(key.payload(&file(&other, &payload)), Err(Damage::Foreign));
        }
    }
}
