"""Reading the prose corpus and splitting off the held-out part.

The corpus folder holds `simple.txt`, `wide.txt` and `tinystories-944k.txt`, each compressed with
gzip or xz, documents ending in a line `<|endoftext|>`, and `picture-books-credits.tsv`.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "<|endoftext|>"
HELD_OUT_PER_MILLE = 10


@dataclass(frozen=True)
class Corpus:
    """Training documents by part, and the held-out documents of the public-domain books."""

    books_simple: list[str]
    books_wide: list[str]
    picture_books: list[str]
    tiny_stories: list[str]
    held_out: list[str]


def is_held_out(document: str) -> bool:
    """Decides by a hash of the text alone, so that every run and every machine agrees."""
    digest = hashlib.sha256(document.encode()).digest()
    return int.from_bytes(digest[:8], "big") % 1000 < HELD_OUT_PER_MILLE


def read_documents(folder: Path, name: str) -> list[str]:
    """Documents of `name`.gz or `name`.xz in file order, without surrounding blank lines."""
    for suffix, opener in ((".xz", lzma.open), (".gz", gzip.open)):
        path = folder / (name + suffix)
        if path.exists():
            with opener(path, "rt", encoding="utf-8") as file:
                text = file.read()
            return [d.strip() for d in text.split(SEPARATOR + "\n") if d.strip()]
    raise FileNotFoundError(f"{folder / name}: neither .gz nor .xz is there")


def title_of(document: str) -> str:
    """First line of a document (a picture book's title)."""
    return document.split("\n", 1)[0].strip()


def read_corpus(folder: Path) -> Corpus:
    """Reads all parts; one document in a hundred of the books is held out."""
    credits = (folder / "picture-books-credits.tsv").read_text(encoding="utf-8").splitlines()
    titles = {line.split("\t")[2].lower() for line in credits[1:]}
    simple = read_documents(folder, "simple.txt")
    pictures = [d for d in simple if title_of(d).lower() in titles]
    books = [d for d in simple if title_of(d).lower() not in titles]
    wide = read_documents(folder, "wide.txt")
    return Corpus(
        books_simple=[d for d in books if not is_held_out(d)],
        books_wide=[d for d in wide if not is_held_out(d)],
        picture_books=pictures,
        tiny_stories=read_documents(folder, "tinystories-944k.txt"),
        held_out=[d for d in books + wide if is_held_out(d)],
    )


def held_out_excerpt(corpus: Corpus, characters: int = 250_000) -> str:
    """Plain text of about that length from the held-out documents, a blank line between them."""
    chosen: list[str] = []
    total = 0
    for document in sorted(corpus.held_out, key=lambda d: hashlib.sha256(d.encode()).digest()):
        if total >= characters:
            break
        if len(document) < 6000:
            chosen.append(document)
            total += len(document) + 2
    return "\n\n".join(chosen) + "\n"
