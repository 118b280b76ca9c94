#!/usr/bin/env python3
"""What single requests cost a server: status, time and memory of each, as a Markdown table.

    hostile_requests.py target/release/trine

Each request goes to a fresh server, which is ended if it takes 3 GiB. Memory is the peak of resident memory
(VmHWM of /proc/PID/status) beyond that of the idle server. The second table is of a model with 262,144 tokens that is
made here: bytes, letters, Chinese signs, runs of spaces and newlines, syllables, and weights of zero. Needs Linux and
Python 3.9 or later.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PORT = 18_437
LIMIT_KB = 3 << 20
#: Bytes of a body just below the limit of 32 MiB.
FULL = 31_000_000


def resident_kb(process: int, key: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    # A process that has just ended has none.
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def ask(path: str, body: bytes) -> tuple[int, int]:
    """Returns the status and the bytes of the answer, which is read as it comes and not kept."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer, size = connection.getresponse(), 0
    while piece := answer.read(1 << 16):
        size += len(piece)
    return answer.status, size


def measure(program: str, model: str, name: str, path: str, body: dict) -> str:
    sent = json.dumps(body, ensure_ascii=False).encode()
    server = subprocess.Popen(
        [program, "serve", model, "--port", str(PORT), "--device", "cpu"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02) and server.poll() is None:
            if resident_kb(server.pid, "VmRSS") > LIMIT_KB:
                server.kill()

    try:
        while True:
            try:
                ask("/tokenize", b'{"content": "a"}')
                break
            except OSError:
                time.sleep(0.05)
        threading.Thread(target=watch).start()
        idle, began = resident_kb(server.pid, "VmRSS"), time.monotonic()
        try:
            status, size = ask(path, sent)
            seconds = time.monotonic() - began
            more = (resident_kb(server.pid, "VmHWM") - idle) / 1024
            result = f"{status} | {size / 1e6:.1f} MB | {seconds:.1f} s | {more:.0f} MiB"
        except (OSError, http.client.HTTPException):
            result = "killed at 3 GiB | | |"
    finally:
        ended.set()
        server.kill()
        server.wait()
    return f"| {name} | {len(sent) / 1e6:.1f} MB | {result} |"


def texts() -> dict[str, str]:
    """Texts of about 31 MB each."""
    picks = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    lexicon = ["".join(picks.choices(letters, k=picks.randint(2, 9))) for _ in range(5000)]
    return {
        "`中`": "中" * (FULL // 3),
        "Chinese signs": "".join(map(chr, picks.choices(range(0x4E00, 0x9000), k=FULL // 3))),
        "emoji": "".join(map(chr, picks.choices(range(0x1F600, 0x1F640), k=FULL // 4))),
        "random letters": "".join(picks.choices(letters, k=FULL)),
        "`a`": "a" * FULL,
        "spaces": " " * FULL,
        "spaces and letters": "".join(picks.choices("    ab", k=FULL)),
        # JSON writes a newline as two bytes.
        "newlines": "\n" * (FULL // 2),
        "words": " ".join(picks.choices(lexicon, k=FULL // 7))[:FULL],
    }


def of_texts() -> list[tuple[str, str, dict]]:
    every = texts()
    rows = [(f"`/tokenize`, {name}", "/tokenize", {"content": text}) for name, text in every.items()]
    for name in ["`中`", "emoji", "random letters", "words"]:
        body = {"content": every[name], "with_pieces": True}
        rows.append((f"`/tokenize`, `with_pieces`, {name}", "/tokenize", body))
    body = {"prompt": every["`中`"], "return_token_strs": True}
    rows.append(("`/tokenize`, `return_token_strs`, `中`", "/tokenize", body))
    return rows


def of_lists() -> list[tuple[str, str, dict]]:
    objects, nested = [{"a": 0}] * 480_000, [[[[[[[[[0]]]]]]]]] * 100_000
    hi = [{"role": "user", "content": "Hi"}]
    part = {"type": "text", "text": "words of a part"}
    chat, count = "/v1/chat/completions", "/v1/messages/count_tokens"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"x": objects}}}
    return [
        ("`/apply-template`, `chat_template_kwargs` with 480,000 objects", "/apply-template",
         {"messages": hi, "chat_template_kwargs": {"x": objects}}),
        ("`input_tokens`, an unknown field of a message with them", chat + "/input_tokens",
         {"messages": [{**hi[0], "x": objects}]}),
        ("`/api/show`, an unknown field with 100,000 nested lists", "/api/show", {"model": "demo", "x": nested}),
        ("chat, an unknown field with 480,000 objects", chat, {"messages": hi, "max_tokens": 1, "x": objects}),
        ("chat, parameters of a tool with them", chat, {"messages": hi, "max_tokens": 1, "tools": [tool]}),
        ("`count_tokens`, 16,000 messages of 20 parts", count,
         {"messages": [{"role": "user", "content": [part] * 20}] * 16_000}),
        ("`count_tokens`, one message", count, {"messages": [{"role": "user", "content": "word " * 780_000}]}),
        ("`/detokenize`, 1,040,000 ids", "/detokenize", {"tokens": [500 + index % 7000 for index in range(1_040_000)]}),
        ("chat, `n` 12, 20 alternatives", chat,
         {"messages": hi, "logprobs": True, "top_logprobs": 20, "n": 12, "max_tokens": 1000, "ignore_eos": True}),
        ("chat, `n` 13, 20 alternatives", chat,
         {"messages": hi, "logprobs": True, "top_logprobs": 20, "n": 13, "max_tokens": 1000, "ignore_eos": True}),
        ("completions, `prompt_logprobs` of 250 prompts", "/v1/completions",
         {"prompt": [[5] * 48] * 250, "max_tokens": 1, "prompt_logprobs": 20}),
    ]  # fmt: skip


def string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def write_wide(path: Path) -> None:
    """Writes a model of one layer with 262,144 tokens and weights of zero."""
    count, hidden = 262_144, 32
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [3, 3, 3, 2, 3, 3] + [6] * 256
    letters = "etaoinshrdlcumwfgypbvkjxqz"
    pieces = ["\u2581", *letters, "\n", *map(chr, range(0x4E00, 0x9000))]
    pieces += [sign * length for length in range(2, 32) for sign in ("\u2581", "\n")]
    pieces += [begin + "".join(word) for length in (1, 2, 3) for word in itertools.product(letters, repeat=length)
               for begin in ("", "\u2581")]  # fmt: skip
    picks, seen = random.Random(2), set()
    pieces = [piece for piece in pieces if not (piece in seen or seen.add(piece))]
    while len(tokens) + len(pieces) < count:
        piece = "".join(picks.choices(letters, weights=range(52, 0, -2), k=picks.randint(4, 8)))
        if piece not in seen:
            seen.add(piece)
            pieces.append(piece)
    tokens, kinds = tokens + pieces, kinds + [1] * len(pieces)
    scores = [-float(index) for index in range(count)]
    entries = [string("general.architecture") + struct.pack("<I", 8) + string("gemma3")]
    numbers = [("context_length", 1024), ("embedding_length", hidden), ("block_count", 1), ("feed_forward_length", hidden),
               ("attention.head_count", 1), ("attention.head_count_kv", 1), ("attention.key_length", hidden),
               ("attention.value_length", hidden), ("attention.sliding_window", 512)]  # fmt: skip
    numbers = [("gemma3." + key, value) for key, value in numbers]
    numbers += [(f"tokenizer.ggml.{key}_token_id", value) for key, value in [("bos", 2), ("eos", 1), ("unknown", 3)]]
    entries += [string(key) + struct.pack("<II", 4, value) for key, value in numbers]
    for key, value in [("gemma3.attention.layer_norm_rms_epsilon", 1e-6), ("gemma3.rope.freq_base", 1e6)]:
        entries.append(string(key) + struct.pack("<If", 6, value))
    entries.append(string("tokenizer.ggml.model") + struct.pack("<I", 8) + string("llama"))
    entries.append(string("tokenizer.ggml.add_space_prefix") + struct.pack("<IB", 7, 0))
    entries.append(string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, count) + b"".join(map(string, tokens)))
    entries.append(string("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, count) + struct.pack(f"<{count}f", *scores))
    entries.append(string("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, count) + struct.pack(f"<{count}i", *kinds))
    layer = [f"attn_{name}" for name in ("q", "k", "v", "output")] + ["ffn_gate", "ffn_up", "ffn_down"]
    norms = ["attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]
    tensors = [("token_embd", [hidden, count]), ("output_norm", [hidden])]
    tensors += [(f"blk.0.{name}", [hidden, hidden]) for name in layer] + [(f"blk.0.{name}", [hidden]) for name in norms]
    table, place = b"", 0
    for name, shape in tensors:
        table += string(name + ".weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, place)
        place += 4 * hidden * (shape[1] if len(shape) > 1 else 1)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + table
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        file.truncate(file.tell() + place)


def main() -> None:
    program = sys.argv[1]
    parts = sys.argv[2:] or ["demo", "wide"]
    with tempfile.TemporaryDirectory() as folder:
        wide = Path(folder) / "wide.gguf"
        write_wide(wide)
        rows = [("demo", "demo", of_texts), ("demo", "demo", of_lists), ("wide", str(wide), of_texts)]
        for part, model, made in rows:
            if part not in parts:
                continue
            print(f"\n| request ({part}) | body | status | answer | time | more memory |\n|---|---:|---|---:|---:|---:|")
            for row in made():
                print(measure(program, model, *row), flush=True)


if __name__ == "__main__":
    main()
