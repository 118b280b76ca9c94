"""Writing a model as a Hugging Face folder, reading it back, checking it against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model import Gemma3, ModelConfig, dense_masks

SHARD_BYTES = 14_000_000
GENERATION = {"do_sample": True, "temperature": 0.7, "top_k": 40, "top_p": 0.95}


def hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """`config.json` in the spelling of the published Gemma 3 text models."""
    return {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": [1, 106],
        "pad_token_id": 0,
        "final_logit_softcapping": None,
        "head_dim": config.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": config.hidden,
        "initializer_range": 0.02,
        "intermediate_size": config.ffn,
        "max_position_embeddings": config.context,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "query_pre_attn_scalar": config.head_dim,
        "rms_norm_eps": config.epsilon,
        "rope_local_base_freq": config.local_theta,
        "rope_scaling": None,
        "rope_theta": config.global_theta,
        "sliding_window": config.window,
        "sliding_window_pattern": config.pattern,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": config.vocabulary,
        "torch_dtype": "float32",
    }


def config_from_json(data: dict[str, Any]) -> ModelConfig:
    """The inverse of `hugging_face_config`."""
    return ModelConfig(
        vocabulary=data["vocab_size"],
        hidden=data["hidden_size"],
        layers=data["num_hidden_layers"],
        heads=data["num_attention_heads"],
        kv_heads=data["num_key_value_heads"],
        head_dim=data["head_dim"],
        ffn=data["intermediate_size"],
        window=data["sliding_window"],
        context=data["max_position_embeddings"],
        pattern=data["sliding_window_pattern"],
    )


def write_json(path: Path, data: Any) -> None:
    """Indented JSON with a final newline."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def split_shards(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Groups tensors in order so that no file is larger than `SHARD_BYTES`."""
    shards: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if used + size > SHARD_BYTES and shards[-1]:
            shards.append({})
            used = 0
        shards[-1][name] = tensor
        used += size
    return shards


def save_weights(model: Gemma3, folder: Path) -> None:
    """Float32 weights with Hugging Face names, in one file or several and an index."""
    tensors = {
        f"model.{name}": tensor.detach().float().cpu().contiguous()
        for name, tensor in model.state_dict().items()
    }
    shards = split_shards(tensors)
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
        where = {t: name for name, shard in zip(names, shards, strict=True) for t in shard}
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": where}
        write_json(folder / "model.safetensors.index.json", index)
    for name, shard in zip(names, shards, strict=True):
        part = folder / f"{name}.part"
        save_file(shard, part, metadata={"format": "pt"})
        part.rename(folder / name)


def save_folder(model: Gemma3, folder: Path, tokenizer_folder: Path) -> None:
    """Everything `transformers` and trine need to load the model."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", hugging_face_config(model.config))
    generation = {"bos_token_id": 2, "eos_token_id": [1, 106], "pad_token_id": 0, **GENERATION}
    write_json(folder / "generation_config.json", generation)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_folder / name, folder / name)
    save_weights(model, folder)


def load_folder(folder: Path, device: torch.device) -> Gemma3:
    """Reads a folder written by `save_folder`."""
    config = config_from_json(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors |= load_file(path)
    model = Gemma3(config)
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items()})
    return model.to(device)


@torch.no_grad()
def check_with_transformers(folder: Path, ids: list[int], out: Path | None) -> str:
    """Compares logits with `transformers` on the CPU in float32; optionally stores its logits.

    Writes `input_ids` [T] and `logits` [T, vocabulary] to `out`, and returns a line for the log.
    """
    try:
        from transformers import Gemma3ForCausalLM
    except ImportError as error:
        return f"{folder.name}: transformers is not here, nothing compared ({error})"
    other = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    batch = torch.tensor([ids])
    expected = other(batch).logits[0].float()
    model = load_folder(folder, torch.device("cpu")).eval()
    actual = model.logits(model(batch, dense_masks(batch, model.config.window)))[0]
    difference = float((actual - expected).abs().max())
    if out is not None:
        save_file({"input_ids": batch[0].contiguous(), "logits": expected.contiguous()}, out)
    return f"{folder.name}: largest logit difference to transformers {difference:.2e}"
