//! Tokenizers, chat templates, streaming detokenizer, stop strings
