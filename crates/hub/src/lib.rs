//! Downloads from Hugging Face repositories and the local model store
