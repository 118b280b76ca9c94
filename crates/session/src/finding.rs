//! What a name means: files, models of the store, catalogues and drafts; and what suits a machine.

pub mod assistants;
pub mod embedded;
pub mod fetch;
pub mod fitting;
pub mod header;
pub mod model_path;
pub mod model_source;
pub mod modelfile;
pub mod open_files;
pub mod picture_file;
pub mod preset;
pub mod suiting;
pub mod vocabulary;
