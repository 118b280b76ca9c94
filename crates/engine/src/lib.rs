//! From a prompt to sampled tokens: sequences, KV bookkeeping, sampling
