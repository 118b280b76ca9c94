//! The models that clients may pull, with what is forecast for the machine.

/// The models that a library knows by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Catalog {
    /// Where models run, for people; `None` if nothing was measured.
    pub device: Option<String>,
    /// Bytes of the machine's memory that are free, if the system tells.
    pub free_bytes: Option<u64>,
    /// The models.
    pub models: Vec<Offer>,
}

/// A model that can be pulled.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Offer {
    /// All its names, the usual one first.
    pub names: Vec<String>,
    /// Its name in the store: the repository with the quantisation.
    pub model: String,
    /// The quantisation.
    pub quantization: String,
    /// About the bytes of a download.
    pub bytes: u64,
    /// Whether it has room in the memory that is free; `None` if nobody knows.
    pub fits: Option<bool>,
    /// Forecast of the tokens per second of one conversation; `None` if nothing was measured.
    pub tokens_per_second: Option<f64>,
    /// Whether it is the one to take on this machine.
    pub is_recommended: bool,
    /// Whether it is the usual file of its size.
    pub is_usual: bool,
    /// Whether it reads images.
    pub sees: bool,
    /// What of it is on this machine.
    pub state: OfferState,
}

/// What of a model is on the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OfferState {
    /// Nothing.
    #[default]
    Absent,
    /// A part, in percent of its bytes if that is known: a pull continues it.
    Partial(Option<u8>),
    /// All of it, under a name that requests may use.
    Here(String),
}
