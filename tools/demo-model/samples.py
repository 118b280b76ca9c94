"""Prompts whose answers show what the model can do, and the text file made of them."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor

from evaluate import Sampling, generate
from model import BOS, Gemma3

RAW_PROMPTS = [
    "Once upon a time there was a",
    "The old man looked at the sea and",
    '"Where have you been?" said',
    "One day, a little girl named Lily",
    "It was a dark night, and the wind",
]
CHAT_PROMPTS = [
    ["Tell me a story about a fox."],
    ["Tell me a story about a fox"],
    ["Hello!"],
    ["Hi, who are you?"],
    ["Tell me a story about a brave little mouse and a big storm."],
    ["Can you write a short story about a lonely lighthouse keeper?"],
    ["tell me a story about a penguin who cannot swim"],
    ["Please tell me a bedtime story."],
    ["Write a story about a robot named Tock."],
    ["Tell me a story about a dragon and a princess."],
    ["I am sad today."],
    ["What colour is grass?"],
    ["What is two plus three?"],
    ["What is the opposite of hot?"],
    ["What does a cow say?"],
    ["Can you count to five?"],
    ["Thank you!"],
    ["What can you do?"],
    ["Tell me a joke."],
    ["What is the capital of France?"],
    ["Continue this story: Once there was a little boat that wanted to see the sea."],
    ["You are a kind storyteller.\n\nTell me about a bear and a honey pot."],
]
FOLLOW_UPS = [
    ["Tell me a story about a rabbit.", "What was the rabbit's name?"],
    ["Tell me a story about a little owl.", "Make it shorter."],
    ["Tell me a story about a kite.", "Another one, please."],
    ["Hello!", "Tell me a story about a frog.", "Thank you, goodbye!"],
]


def chat_prompt(turns: list[str]) -> str:
    """User and model turns alternating, ending where the model is to speak."""
    roles = ("user", "model")
    text = "".join(f"<start_of_turn>{roles[i % 2]}\n{turn}<end_of_turn>\n" for i, turn in enumerate(turns))
    return text + "<start_of_turn>model\n"


def sample_text(model: Gemma3, tokenizer: Tokenizer, seed: int) -> tuple[str, Tensor]:
    """The samples as text, and the chats with their answers as rows [chats, length + 1]."""

    def encode(text: str) -> list[int]:
        return [BOS, *tokenizer.encode(text, add_special_tokens=False).ids]

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    limit = min(320, model.config.context // 2)
    lines: list[str] = []
    raw = [encode(text) for text in RAW_PROMPTS]
    for text, ids in zip(RAW_PROMPTS, generate(model, raw, limit // 2, Sampling(), seed), strict=True):
        lines.append(f"[raw] {text}|{decode(ids)}\n")
    rows: list[list[int]] = []
    for temperature in (0.0, 0.7, 1.0):
        chats = [encode(chat_prompt(turns)) for turns in CHAT_PROMPTS]
        answers = generate(model, chats, limit, Sampling(temperature), seed)
        for turns, prompt, answer in zip(CHAT_PROMPTS, chats, answers, strict=True):
            lines.append(f"[temperature {temperature}] {turns[0]}\n> {decode(answer)}\n")
            rows.append(prompt + answer)
    talks: list[list[str]] = [[] for _ in FOLLOW_UPS]
    for turn in range(max(map(len, FOLLOW_UPS))):
        going = [i for i, questions in enumerate(FOLLOW_UPS) if turn < len(questions)]
        for i in going:
            talks[i].append(FOLLOW_UPS[i][turn])
        prompts = [encode(chat_prompt(talks[i])) for i in going]
        for i, answer in zip(going, generate(model, prompts, limit, Sampling(), seed), strict=True):
            talks[i].append(decode(answer))
    for talk in talks:
        lines += [f"[chat] {q}\n> {a}\n" for q, a in zip(talk[::2], talk[1::2], strict=True)]
    width = min(max(map(len, rows)), model.config.context) + 1
    padded = [(row + [BOS] * width)[:width] for row in rows]
    return "\n".join(lines), torch.tensor(padded, device=next(model.parameters()).device)
