"""Made-up vocabularies of Gemma's size: special ids and bytes are where Gemma has them; the others are single letters,
words of one to three letters, then words of four that no text becomes. Only tokens of one character have digits, as with Gemma."""

from __future__ import annotations

import itertools

from container import Metadata

SIZE = 262_144

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
SPACE = "\u2581"

GEMMA_3_SPECIAL = {5: "[multimodal]", 105: "<start_of_turn>", 106: "<end_of_turn>"}
GEMMA_3_PICTURES = {255_999: "<start_of_image>", 256_000: "<end_of_image>"}

#: Where no source gives the id of a mark, its place is made up: 46 to 49, 51, 52, 98, 100 and 101.
GEMMA_4_SPECIAL = {
    46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>", 49: "<tool_call|>", 50: "<|tool_response>", 51: "<tool_response|>",
    52: '<|"|>', 98: "<|think|>", 100: "<|channel>", 101: "<channel|>", 105: "<|turn>", 106: "<turn|>",
}  # fmt: skip
GEMMA_4_PICTURES = {
    255_999: "<|image>", 256_000: "<|audio>", 258_880: "<|image|>", 258_881: "<|audio|>", 258_882: "<image|>",
    258_883: "<audio|>", 258_884: "<|video|>",
}  # fmt: skip

#: Marks of Gemma 4 that chats render as text.
RENDERED = ("channel", "tool_call", "tool_response", '"')

TEMPLATE = (
    "{{{{ bos_token }}}}{{% for message in messages %}}{start}"
    "{{{{ 'model' if message['role'] == 'assistant' else message['role'] }}}}\n"
    "{{{{ message['content'] | trim }}}}{end}\n{{% endfor %}}"
    "{{% if add_generation_prompt %}}{start}model\n{{% endif %}}"
)


def words() -> list[str]:
    """Words of two and three letters."""
    return ["".join(word) for length in (2, 3) for word in itertools.product(LETTERS, repeat=length)]


def pieces(special: dict[int, str], pictures: dict[int, str]) -> tuple[list[str], list[int]]:
    """Pieces and their types."""
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    unused = itertools.count()
    while len(first) < 107:
        first.append(special.get(len(first)) or f"<unused{next(unused)}>")
    runs = ["\n" * length for length in range(1, 32)] + [SPACE * length for length in range(2, 32)]
    fill = [f"<tag{index}>" for index in range(238 - len(first) - len(runs))]
    tokens = first + runs + fill + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [CONTROL] * len(first) + [USER_DEFINED] * (len(runs) + len(fill)) + [BYTE] * 256
    kinds[tokens.index("<unk>")] = UNKNOWN
    ordinary = [SPACE, *(chr(code) for code in range(33, 127))]
    ordinary += [f"{SPACE}{word}" for word in [*LETTERS, *words()]] + words()
    rest = itertools.product(LETTERS, repeat=4)
    ordinary += [SPACE + "".join(word) for word in itertools.islice(rest, SIZE - len(tokens) - len(ordinary))]
    tokens += ordinary
    kinds += [NORMAL] * len(ordinary)
    for index, token in pictures.items():
        tokens[index], kinds[index] = token, CONTROL
    return tokens, kinds


def merges() -> list[str]:
    """Merges that make the words, the shorter ones first."""
    pairs = [f"{word[:-1]} {word[-1]}" for word in words()]
    return pairs + [f"{SPACE} {word}" for word in [*LETTERS, *words()]]


def write_shared(entries: Metadata, ids: list[tuple[str, int]], turn: tuple[str, str]) -> None:
    own = "tokenizer.ggml."
    for key, value in ids:
        entries.number(f"{own}{key}_token_id", "u32", value)
    for key, value in [("add_bos_token", True), ("add_eos_token", False), ("add_space_prefix", False)]:
        entries.number(own + key, "bool", value)
    entries.string("tokenizer.chat_template", TEMPLATE.format(start=turn[0], end=turn[1]))


def write_gemma3(entries: Metadata) -> None:
    """Pieces with scores."""
    own = "tokenizer.ggml."
    tokens, kinds = pieces(GEMMA_3_SPECIAL, GEMMA_3_PICTURES)
    scores = [-float(index) if kind == NORMAL else 0.0 for index, kind in enumerate(kinds)]
    entries.string(own + "model", "llama")
    entries.string(own + "pre", "default")
    entries.strings(own + "tokens", tokens)
    entries.numbers(own + "scores", "f32", scores)
    entries.numbers(own + "token_type", "i32", kinds)
    ids = [("bos", 2), ("eos", 1), ("eot", 106), ("unknown", 3), ("padding", 0)]
    write_shared(entries, ids, ("<start_of_turn>", "<end_of_turn>"))


def write_gemma4(entries: Metadata) -> None:
    """Pieces with merges. Scores of published files mean nothing: all are -1000."""
    own = "tokenizer.ggml."
    tokens, kinds = pieces(GEMMA_4_SPECIAL, GEMMA_4_PICTURES)
    for index, token in GEMMA_4_SPECIAL.items():
        if any(mark in token for mark in RENDERED):
            kinds[index] = USER_DEFINED
    entries.string(own + "model", "gemma4")
    entries.strings(own + "tokens", tokens)
    entries.numbers(own + "scores", "f32", [-1000.0] * len(tokens))
    entries.numbers(own + "token_type", "i32", kinds)
    entries.strings(own + "merges", merges())
    ids = [("bos", 2), ("eos", 106), ("unknown", 3), ("padding", 0)]
    write_shared(entries, ids, ("<|turn>", "<turn|>"))
