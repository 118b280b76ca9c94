"""Builds the training documents: prose of the corpus, and chats and stories made here.

python3 make_data.py --corpus DIR --held-out FILE     writes the held-out text
python3 make_data.py --corpus DIR --preview 20        prints chats, to be read by a person
"""

from __future__ import annotations

import argparse
import random
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from corpus import Corpus, held_out_excerpt, read_corpus
from synthetic.chats import ChatMaker, Library
from synthetic.stories import make_story

#: How often each part is seen in an epoch, in the first phase and in the last.
MIXTURE = {
    "books_simple": 1.0,
    "books_wide": 1.0,
    "picture_books": 2.0,
    "tiny_stories": 2.0,
    "chats": 0.25,
    "stories": 0.2,
}
ANNEAL_MIXTURE = {
    "books_simple": 1.0,
    "books_wide": 0.5,
    "picture_books": 3.0,
    "tiny_stories": 4.0,
    "chats": 0.4,
    "stories": 0.15,
}
SHARD = 500


def synthetic_shard(task: tuple[Library, str, int, int, int]) -> list[str]:
    """`count` documents of a kind; each depends on the seed and its own number alone."""
    library, kind, seed, first, count = task
    maker = ChatMaker(library)
    documents = []
    for number in range(first, first + count):
        draw = random.Random(f"{kind} {seed} {number}")
        documents.append(maker.make(draw) if kind == "chats" else make_story(draw).text)
    return documents


def synthetic_parts(corpus: Corpus, count: int, seed: int, processes: int = 1) -> dict[str, list[str]]:
    """`count` chats, a third as many plain stories, and chats nobody trains on."""
    library = Library(corpus.tiny_stories, corpus.picture_books)
    wanted = {
        "chats": (count, seed),
        "stories": (count // 3, seed),
        "held_out_chats": (min(400, count), seed + 10**6),
    }
    parts: dict[str, list[str]] = {}
    with ProcessPoolExecutor(processes) as pool:
        for name, (number, part_seed) in wanted.items():
            kind = "stories" if name == "stories" else "chats"
            tasks = [
                (library, kind, part_seed, first, min(SHARD, number - first))
                for first in range(0, number, SHARD)
            ]
            parts[name] = [d for shard in pool.map(synthetic_shard, tasks) for d in shard]
    return parts


@cache
def build_parts(folder: Path, chats: int, seed: int, processes: int) -> dict[str, list[str]]:
    """All parts of the training data and the two held-out parts, by name."""
    corpus = read_corpus(folder)
    parts = {
        "books_simple": corpus.books_simple,
        "books_wide": corpus.books_wide,
        "picture_books": corpus.picture_books,
        "tiny_stories": corpus.tiny_stories,
        "held_out": corpus.held_out,
    }
    return parts | synthetic_parts(corpus, chats, seed, processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, help="file to write the held-out text to")
    parser.add_argument("--preview", type=int, default=0, help="number of chats to print")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    corpus = read_corpus(options.corpus)
    if options.held_out:
        text = held_out_excerpt(corpus)
        options.held_out.write_text(text, encoding="utf-8")
        print(f"{options.held_out}: {len(text)} characters")
    if options.preview:
        library = Library(corpus.tiny_stories, corpus.picture_books)
        print("\n".join(synthetic_shard((library, "chats", options.seed, 0, options.preview))))
    parts = {n: getattr(corpus, n) for n in corpus.__dataclass_fields__}
    for name, documents in parts.items():
        print(f"{name:14} {len(documents):7} documents {sum(map(len, documents)):10} characters")


if __name__ == "__main__":
    main()
