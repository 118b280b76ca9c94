"""Makes ../../../../tests/goldens/gemma4-vision-*: small random models of Gemma 4 that read pictures, and what transformers
computes from two pictures with them.

Takes numpy, torch, transformers, safetensors, gguf and Pillow. Everything is made from fixed seeds.
"""
import json, math, shutil
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers import (Gemma4Config, Gemma4ForConditionalGeneration, Gemma4UnifiedConfig,
                          Gemma4UnifiedForConditionalGeneration)

HERE = Path(__file__).parent
OUT = HERE / "../../../../tests/goldens"
VOCABULARY, IMAGE, BEGIN, END = 320, 300, 301, 302
TOKENS = 70
torch.manual_seed(4)
torch.set_num_threads(2)


def text(**extra):
    return {"vocab_size": VOCABULARY, "hidden_size": 40, "intermediate_size": 48, "num_hidden_layers": 4,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32,
            "sliding_window": 40, "max_position_embeddings": 4096, "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, **extra}


def vision(**extra):
    return {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 12, "patch_size": 8, "pooling_kernel_size": 3,
            "position_embedding_size": 840, **extra}


SPECIAL = {"image_token_id": IMAGE, "boi_token_id": BEGIN, "eoi_token_id": END, "audio_config": None,
           "video_token_id": 303, "audio_token_id": 304}
E = text(hidden_size_per_layer_input=6, vocab_size_per_layer_input=VOCABULARY, num_kv_shared_layers=2,
         use_double_wide_mlp=True, use_bidirectional_attention=None)
DENSE = text(hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
             use_bidirectional_attention="vision")


def models():
    yield "gemma4-vision-e", Gemma4ForConditionalGeneration, Gemma4Config(
        text_config=E, vision_config=vision(use_clipped_linears=True), **SPECIAL)
    yield "gemma4-vision-dense", Gemma4ForConditionalGeneration, Gemma4Config(
        text_config=DENSE, vision_config=vision(standardize=True), **SPECIAL)
    own = {key: value for key, value in DENSE.items() if not key.startswith("hidden_size_per")}
    yield "gemma4-vision-unified", Gemma4UnifiedForConditionalGeneration, Gemma4UnifiedConfig(
        text_config=own, vision_config={"patch_size": 4, "pooling_kernel_size": 3, "mm_embed_dim": 24, "mm_posemb_size": 280,
                                        "output_proj_dims": 24}, **SPECIAL)


def fill(model):
    """Random weights of about the magnitude that keeps activations near 1, with limits that bind."""
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name or "embed_scale" in name or value.dtype in (torch.int64, torch.bool):
                continue
            if name.endswith(("input_min", "output_min")):
                value.fill_(-(0.9 + 0.4 * torch.rand(())))
            elif name.endswith(("input_max", "output_max")):
                value.fill_(0.9 + 0.4 * torch.rand(()))
            elif name.endswith("std_bias"):
                value.normal_(0, 0.5)
            elif "norm" in name and name.endswith("weight") or name.endswith(("std_scale", "layer_scalar")) or ".patch_ln" in name and name.endswith("weight"):
                value.normal_(1, 0.2)
            elif value.dim() == 1:
                value.normal_(0, 0.2)
            elif value.dim() >= 2:
                value.normal_(0, 0.5 if "pos" in name else 1 / math.sqrt(value.shape[-1]))
        # Queries and keys of the first layer have one limit, those of the second different ones.
        for name, value in model.named_buffers():
            if "layers.0.self_attn.k_proj.input" in name:
                value.copy_(dict(model.named_buffers())[name.replace("k_proj", "q_proj")])
    # The values of the files are those that results are computed with.
    for tensor in model.state_dict().values():
        if tensor.dtype == torch.float32:
            tensor.copy_(tensor.bfloat16().float())


def pictures(model):
    """Patches and places of both pictures, without padding, and how many soft tokens each has."""
    vision = model.config.vision_config
    processor = Gemma4ImageProcessorPil(patch_size=vision.patch_size, pooling_kernel_size=vision.pooling_kernel_size,
                                        max_soft_tokens=TOKENS)
    for name in ("a.png", "b.png"):
        out = processor(Image.open(HERE / name).convert("RGB"), return_tensors="pt")
        soft = int(out["num_soft_tokens_per_image"][0])
        count = soft * vision.pooling_kernel_size ** 2
        yield out["pixel_values"][0][:count], out["image_position_ids"][0][:count], soft


def joined(pixels, places, patch, pool):
    """Patches of `pool` x `pool` patches, and their places."""
    columns, rows = (int(side) + 1 for side in places.max(0).values)
    whole = pixels.reshape(rows // pool, pool, columns // pool, pool, patch, patch, 3).permute(0, 2, 1, 4, 3, 5, 6)
    count = columns // pool * (rows // pool)
    y, x = np.divmod(np.arange(count), columns // pool)
    return whole.reshape(count, -1), torch.tensor(np.stack([x, y], -1))


def prompts(soft):
    words = lambda *ids: list(ids)
    picture = lambda n: [BEGIN, *[IMAGE] * soft[n], END]
    return {
        "one": [2, 10, 11, *picture(0), *range(20, 32)],
        "two": [2, 7, *picture(0), 12, 13, 14, *picture(1), *range(40, 47)],
        "back_to_back": [2, *picture(1), *picture(0), 15, 16],
    }, {"one": [0], "two": [0, 1], "back_to_back": [1, 0]}


def run(name, kind, config):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    fill(model)
    unified = "unified" in name
    own = model.config.vision_config
    results, features, soft, inputs = {}, [], [], []
    for number, (pixels, places, count) in enumerate(pictures(model)):
        if unified:
            pixels, places = joined(pixels, places, own.patch_size, own.pooling_kernel_size)
        inputs.append((pixels, places))
        with torch.no_grad():
            out = model.model.get_image_features(pixels[None], places[None], return_dict=True)
        rows = out.pooler_output[0] if unified else out.pooler_output[0]
        rows = rows.reshape(count, -1)
        # Values are levels of 8 bits divided by 255.
        levels = (pixels * 255).round()
        assert (levels / 255 - pixels).abs().max() < 1e-6
        results[f"levels.{number}"] = levels.byte().contiguous()
        results[f"grid.{number}"] = places.max(0).values + 1
        results[f"tower.{number}"] = out.last_hidden_state.reshape(count, -1).contiguous()
        results[f"projector.{number}"] = rows.contiguous()
        soft.append(count)
        features.append(rows)
    all_ids, which = prompts(soft)

    def logits(ids, numbers, double=False, own_mask=False):
        """With pictures one after the other: the model's own batching pads them to one size.

        Masks are those of `generate`. A call of the model makes the same ones, except that of 12B, which then has Gemma 3's.
        """
        run_model = model.double() if double else model.float()
        encoded = {"image": type(out)(last_hidden_state=None, pooler_output=[features[n].to(next(run_model.parameters()).dtype) for n in numbers])}
        ids = torch.tensor([ids])
        types = (ids == IMAGE).long()
        embeds = torch.zeros(*ids.shape, 1, dtype=next(run_model.parameters()).dtype)
        positions = torch.arange(ids.shape[1])[None]
        masks = None if own_mask else kind.create_masks_for_generate(
            run_model.config, inputs_embeds=embeds, attention_mask=None, cache=None, position_ids=positions, mm_token_type_ids=types)
        with torch.no_grad():
            return run_model(input_ids=ids, attention_mask=masks, mm_token_type_ids=types, mm_encoder_outputs=encoded).logits[0]

    manifest = {"name": name, "soft_tokens": soft, "versions": {"transformers": transformers.__version__, "torch": torch.__version__}}
    for prompt, ids in all_ids.items():
        results[f"{prompt}.input_ids"] = torch.tensor(ids)
        results[f"{prompt}.logits"] = logits(ids, which[prompt]).contiguous()
        exact = logits(ids, which[prompt], double=True)
        manifest[f"{prompt}.float32_vs_float64"] = float((exact - results[f"{prompt}.logits"]).abs().max())
        model.float()
        greedy = list(ids)
        gaps = []
        for _ in range(8):
            last = logits(greedy, which[prompt])[-1].clone()
            # A picture's token is never generated.
            last[IMAGE] = -math.inf
            top = last.topk(2).values
            gaps.append(float(top[0] - top[1]))
            greedy.append(int(last.argmax()))
        results[f"{prompt}.greedy_ids"] = torch.tensor(greedy[len(ids):])
        manifest[f"{prompt}.least_gap"] = min(gaps)
    # How far the logits move if rows of pictures see ahead everywhere, nowhere, or as they do.
    text_config = model.config.get_text_config()
    direction = text_config.use_bidirectional_attention
    text_config.use_bidirectional_attention = None if direction else "vision"
    manifest["other_direction"] = float((logits(all_ids["two"], [0, 1]) - results["two.logits"]).abs().max())
    text_config.use_bidirectional_attention = direction
    manifest["own_mask"] = float((logits(all_ids["two"], [0, 1], own_mask=True) - results["two.logits"]).abs().max())
    model.bfloat16().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(
        {"do_normalize": False, "do_rescale": True, "do_resize": True, "max_soft_tokens": TOKENS,
         "patch_size": own.patch_size, "pooling_kernel_size": own.pooling_kernel_size}, indent=1))
    stored = load_file(folder / "model.safetensors")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({key: value.float() if value.is_floating_point() else value for key, value in results.items()},
              folder / "goldens.safetensors")
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    print(name, json.dumps(manifest, indent=1))
    return folder, stored


LAYER = {"input_layernorm": "ln1", "pre_feedforward_layernorm": "ln2", "post_attention_layernorm": "attn_post_norm",
         "post_feedforward_layernorm": "ffn_post_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_out",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
UNIFIED = {"patch_dense.weight": "v.patch_embd.weight", "patch_dense.bias": "v.patch_embd.bias", "pos_embedding": "v.position_embd.weight",
           **{f"{hf}.{end}": f"v.patch_norm.{n}.{end}" for n, hf in enumerate(["patch_ln1", "patch_ln2", "pos_norm"], 1)
              for end in ("weight", "bias")}}


def mmproj(folder, stored, config):
    """The tower as a GGUF file with the names, shapes and orders of llama.cpp's converter."""
    own = config.vision_config
    unified = "unified" in folder.name
    writer = gguf.GGUFWriter(folder / "mmproj.gguf", "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    counts = {"image_size": 224, "patch_size": own.patch_size, "projection_dim": config.get_text_config().hidden_size,
              "embedding_length": own.mm_embed_dim if unified else own.hidden_size,
              "feed_forward_length": 0 if unified else own.intermediate_size,
              "block_count": 0 if unified else own.num_hidden_layers,
              "attention.head_count": 0 if unified else own.num_attention_heads}
    writer.add_string("clip.vision.projector_type", "gemma4uv" if unified else "gemma4v")
    for key, count in counts.items():
        writer.add_uint32(f"clip.vision.{key}", count)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", own.rms_norm_eps)
    writer.add_array("clip.vision.image_mean", [0.0, 0.0, 0.0])
    writer.add_array("clip.vision.image_std", [1.0, 1.0, 1.0])
    side = own.patch_size * (own.pooling_kernel_size if unified else 1)
    # Column of a row, column, colour for each colour, row, column.
    colours_first = np.arange(side * side * 3).reshape(side, side, 3).transpose(2, 0, 1).ravel()
    for name, tensor in stored.items():
        values = tensor.float().numpy()
        if name == "model.embed_vision.embedding_projection.weight":
            gguf_name = "mm.input_projection.weight"
        elif name.startswith("model.vision_embedder."):
            gguf_name = UNIFIED[name.removeprefix("model.vision_embedder.")]
            if gguf_name == "v.position_embd.weight":
                values = values.transpose(1, 0, 2)
            elif gguf_name.startswith("v.patch_norm.1") or gguf_name == "v.patch_embd.weight":
                values = values[..., colours_first]
        elif name.startswith("model.vision_tower.encoder.layers."):
            number, rest = name.removeprefix("model.vision_tower.encoder.layers.").split(".", 1)
            part, end = rest.replace(".linear.", ".").rsplit(".", 1)
            gguf_name = f"v.blk.{number}.{LAYER[part]}.{end}"
        elif name.startswith("model.vision_tower."):
            rest = name.removeprefix("model.vision_tower.")
            gguf_name = {"patch_embedder.input_proj.weight": "v.patch_embd.weight",
                         "patch_embedder.position_embedding_table": "v.position_embd.weight"}.get(rest, f"v.{rest}")
            if gguf_name == "v.patch_embd.weight":
                values = values[:, colours_first].reshape(-1, 3, side, side)
        else:
            continue
        writer.add_tensor(gguf_name, np.ascontiguousarray(values.reshape(values.shape or (1,))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


for name, kind, config in models():
    mmproj(*run(name, kind, config), config)
