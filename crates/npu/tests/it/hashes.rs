//! Hashes of the streams that AMD published for XDNA1 in `amd/RyzenAI-SW` at 2a3c4afe: of the file,
//! and of the stream in canonical form.

/// A published stream.
pub(crate) struct Published {
    /// Its file's name, without `.bin`.
    pub(crate) name: &'static str,
    /// The SHA-256 of the file.
    pub(crate) file: &'static str,
    /// The SHA-256 of its canonical form.
    pub(crate) canonical: &'static str,
}

/// Returns all 52.
pub(crate) fn hashes() -> Vec<Published> {
    let row = |line: &'static str| {
        let [name, file, canonical] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("a name and two hashes: {line}")
        };
        Published { name, file, canonical }
    };
    let all: Vec<Published> = include_str!("hashes.txt").lines().map(row).collect();
    assert_eq!(all.len(), 52);
    all
}
