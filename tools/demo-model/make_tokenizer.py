"""Trains the tokenizer and writes it as `tokenizer.model` and in Gemma's `tokenizer.json` form.

Ids follow Gemma: 0 <pad>, 1 <eos>, 2 <bos>, 3 <unk>, control pieces up to 105 <start_of_turn> and
106 <end_of_turn>, then newline and space runs, the 256 byte pieces, ordinary pieces.

    python3 make_tokenizer.py --corpus DIR --vocabulary 4096 --out DIR
"""

from __future__ import annotations

import argparse
import io
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece as spm
from tokenizers import Tokenizer

from corpus import read_corpus
from make_data import synthetic_parts

UNUSED = [f"<unused{i}>" for i in range(99)]
CONTROLS = ["<mask>", "[multimodal]", *UNUSED, "<start_of_turn>", "<end_of_turn>"]
SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", *CONTROLS]
RUNS = ["\n" * n for n in range(1, 6)] + ["▁" * n for n in range(2, 7)]
TEMPLATE = Path(__file__).parent / "chat_template.jinja"


def training_sample(corpus_folder: Path, characters: int, seed: int) -> list[str]:
    """Paragraphs drawn from all parts of the training data."""
    corpus = read_corpus(corpus_folder)
    chats = [text for part in synthetic_parts(corpus, 4000, seed).values() for text in part]
    draw = random.Random(seed)
    weighted = (
        (corpus.books_simple, 0.4),
        (corpus.books_wide, 0.25),
        (corpus.picture_books, 0.05),
        (corpus.tiny_stories, 0.05),
        (chats, 0.25),
    )
    lines: list[str] = []
    for documents, share in weighted:
        order = documents[:]
        draw.shuffle(order)
        budget = int(characters * share)
        for document in order:
            if budget <= 0:
                break
            budget -= len(document)
            for special in SPECIALS:
                document = document.replace(special, "\n")
            lines += [line for line in document.split("\n") if line.strip()]
    return lines


def train_sentencepiece(lines: list[str], vocabulary: int) -> bytes:
    """The serialised SentencePiece model."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocabulary,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        character_coverage=0.99999,
        max_sentence_length=100_000,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        unk_piece="<unk>",
        control_symbols=CONTROLS,
        user_defined_symbols=RUNS,
        minloglevel=1,
    )
    return model.getvalue()


def merges_of(pieces: list[str], ordinary_from: int) -> list[list[str]]:
    """Merge rules in order of the joined piece's rank, runs first (longest first)."""
    rank = {piece: index for index, piece in enumerate(pieces)}
    order = sorted(RUNS, key=len, reverse=True) + pieces[ordinary_from:]
    merges: list[list[str]] = []
    for piece in order:
        local = []
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in rank and right in rank:
                local.append((rank[left], rank[right], [left, right]))
        merges += [pair for _, _, pair in sorted(local)]
    return merges


def added_token(index: int, content: str) -> dict[str, Any]:
    """One entry of `added_tokens`."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": content, **flags, "special": content in SPECIALS}


def tokenizer_json(processor: spm.SentencePieceProcessor) -> dict[str, Any]:
    """The Hugging Face form of the tokenizer, with Gemma's structure."""
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    added = SPECIALS + RUNS
    assert pieces[: len(added)] == added, "control pieces are not where Gemma has them"

    def sequence(letter: str, kind: int) -> list[dict[str, Any]]:
        return [
            {"SpecialToken": {"id": "<bos>", "type_id": kind}},
            {"Sequence": {"id": letter, "type_id": kind}},
        ]

    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(i, content) for i, content in enumerate(added)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": sequence("A", 0),
            "pair": sequence("A", 0) + sequence("B", 1),
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": merges_of(pieces, len(added) + 256),
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """`tokenizer_config.json`, with the chat template."""
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "spaces_between_special_tokens": False,
        "tokenizer_class": "GemmaTokenizer",
        "use_default_system_prompt": False,
        "added_tokens_decoder": {
            str(i): {k: v for k, v in added_token(i, content).items() if k != "id"}
            for i, content in enumerate(SPECIALS + RUNS)
        },
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
    }


def check_agreement(processor: spm.SentencePieceProcessor, fast: Tokenizer, texts: list[str]) -> int:
    """Asserts that both give the same ids and get the text back; returns the number of texts."""
    for text in texts:
        expected = processor.encode(text)
        actual = fast.encode(text, add_special_tokens=False).ids
        assert actual == expected, f"{text[:200]!r}: {actual[:40]} instead of {expected[:40]}"
        assert fast.decode(actual, skip_special_tokens=False) == text, repr(text[:200])
    return len(texts)


HARD_TEXTS = [
    "",
    " ",
    "Hello world",
    " leading and trailing ",
    *("a" + " " * n + "b" for n in range(1, 20)),
    *("a" + "\n" * n + "b" for n in range(1, 12)),
    " \n \n\n  \n",
    "tab\there",
    "12345 and 3.14",
    "naïve café, 東京, Ωmega, 🙂🙂",
    "AAAAaaaa!!!!????....",
    "don't, it's, 'tis, --dashes--",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[4096])
    parser.add_argument("--characters", type=int, default=24_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lines = training_sample(options.corpus, options.characters, options.seed)
    sample = random.Random(options.seed).sample(lines, 3000)
    for vocabulary in options.vocabulary:
        folder = options.out / f"tokenizer-{vocabulary}"
        folder.mkdir(parents=True, exist_ok=True)
        serialised = train_sentencepiece(lines, vocabulary)
        (folder / "tokenizer.model").write_bytes(serialised)
        processor = spm.SentencePieceProcessor(model_proto=serialised)
        text = json.dumps(tokenizer_json(processor), ensure_ascii=False, indent=1)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        config = json.dumps(tokenizer_config(), ensure_ascii=False, indent=1)
        (folder / "tokenizer_config.json").write_text(config, encoding="utf-8")
        fast = Tokenizer.from_str(text)
        checked = check_agreement(processor, fast, HARD_TEXTS + sample)
        length = sum(len(ids) for ids in processor.encode(sample))
        ratio = sum(map(len, sample)) / length
        print(f"{folder}: {checked} texts agree, {ratio:.3f} characters per token")


if __name__ == "__main__":
    main()
