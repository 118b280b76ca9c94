"""A small template language.

`[a|b|c]` chooses one alternative (nesting allowed), `{slot}` and `{slot.form}` insert a word of the
scene (`{slot.Form}` with a capital). Afterwards articles are corrected (`a owl` -> `an owl`) and
sentences capitalised, except after a closing quotation mark, where the template must do it.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

PRONOUNS = {
    "he": {"they": "he", "them": "him", "their": "his", "theirs": "his", "self": "himself"},
    "she": {"they": "she", "them": "her", "their": "her", "theirs": "hers", "self": "herself"},
    "it": {"they": "it", "them": "it", "their": "its", "theirs": "its", "self": "itself"},
}
INNERMOST = re.compile(r"\[([^\[\]]*)\]")
SLOT = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])(?!(?:uni|use|usu|one|once|eu)\w*)")
HONEST = re.compile(r"\b([Aa]) (?=(?:hour|honest)\w*)")
SENTENCE_START = re.compile(r"([.!?] +)([a-z])")


@dataclass
class Character:
    """Somebody in a story: what it is, what it is called, and how one speaks of it."""

    kind: str
    gender: str
    name: str = ""
    adjective: str = ""
    home: str = "home"
    food: str = "bread"
    voice: str = "said"
    habitat: str = "village"
    introduced: bool = False

    def form(self, which: str, draw: random.Random) -> str:
        """One of the ways to refer to the character; see the module's `{slot.form}`."""
        if which[:1].isupper():
            return capital(self.form(which.lower(), draw))
        described = f"{self.adjective} {self.kind}".strip()
        if which in PRONOUNS["it"]:
            return PRONOUNS[self.gender][which]
        if which == "ref":
            return draw.choice([self.name or f"the {self.kind}", f"the {described}"])
        if which == "along" and (self.name or self.introduced):
            which = "" if self.introduced else "full"
        if which in ("along", "a", "full", "introduced"):
            self.introduced = True
        forms = {
            "": self.name or f"the {self.kind}",
            "name": self.name or f"the {self.kind}",
            "kind": self.kind,
            "the": f"the {self.kind}",
            "thelong": f"the {described}",
            "a": f"a {self.kind}",
            "along": f"a {described}",
            "full": self.introduction(draw),
            "bare": f"a {described}",
            "introduced": f"a {described}" + (f" named {self.name}" if self.name else ""),
            "home": self.home,
            "food": self.food,
            "adjective": self.adjective or "little",
        }
        return forms[which]

    def introduction(self, draw: random.Random) -> str:
        """First mention: `a little fox named Fenn`."""
        described = f"a {self.adjective} {self.kind}".replace("  ", " ")
        if not self.name:
            return described
        joint = draw.choice(["named", "named", "called", "whose name was"])
        return f"{described} {joint} {self.name}"


@dataclass
class Scene:
    """What the templates of one story may speak of."""

    draw: random.Random
    slots: dict[str, Character | str] = field(default_factory=dict)

    def choose(self, *options: str) -> str:
        """One option, expanded."""
        return self.say(self.draw.choice(options))

    def say(self, template: str) -> str:
        """Expands a template to finished sentences."""
        text = template
        while (match := INNERMOST.search(text)) is not None:
            chosen = self.draw.choice(match.group(1).split("|"))
            text = text[: match.start()] + chosen + text[match.end() :]
        text = SLOT.sub(self._fill, text)
        return polish(text)

    def _fill(self, match: re.Match[str]) -> str:
        value = self.slots[match.group(1)]
        if isinstance(value, Character):
            return value.form(match.group(2) or "", self.draw)
        return capital(value) if match.group(2) == "Capital" else value


def polish(text: str) -> str:
    """Corrects articles, spaces and capitals."""
    text = ARTICLE.sub(r"\1n ", text)
    text = HONEST.sub(r"\1n ", text)
    text = re.sub(r" +", " ", text).strip()
    text = re.sub(r" ([.,!?])", r"\1", text)
    text = SENTENCE_START.sub(lambda m: m.group(1) + m.group(2).upper(), text)
    parts = text.split('"')
    for index in range(1, len(parts), 2):
        goes_on = index > 1 and parts[index - 2].endswith(",") and parts[index - 1].endswith(", ")
        if not goes_on:
            parts[index] = capital(parts[index])
    return capital('"'.join(parts))


def capital(text: str) -> str:
    """First letter in upper case."""
    return text[:1].upper() + text[1:]


def lower(text: str) -> str:
    """First letter in lower case."""
    return text[:1].lower() + text[1:]


def listing(words: list[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def number_word(value: int) -> str:
    """Numbers up to a hundred in words."""
    small = (
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen"
    ).split()
    tens = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
    if value < 20:
        return small[value]
    if value == 100:
        return "one hundred"
    return tens[value // 10] + (f"-{small[value % 10]}" if value % 10 else "")
