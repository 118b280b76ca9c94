//! Model files as named tensors: GGUF, safetensors, block formats
