"""Puts stories together: chooses a hero, a plot and props, and writes the paragraphs."""

from __future__ import annotations

import random
from dataclasses import dataclass

from synthetic.language import Character, Scene, capital, lower
from synthetic.more_plots import MORE_PLOTS
from synthetic.object_plots import OBJECT_PLOTS, OBJECT_WORK
from synthetic.plots import BUILT, PLOTS, SKILLS
from synthetic.words import (
    ADJECTIVES,
    ANIMALS,
    BOY_NAMES,
    COLOURS,
    CREATURE_NAMES,
    FANTASY,
    FOODS,
    GENDERS,
    GIRL_NAMES,
    HABITATS,
    OBJECTS,
    PEOPLE,
    SMALL_ADJECTIVES,
    TREASURES,
)

OPENINGS = (
    "[Once upon a time|Once upon a time|Once|Long ago], there was {h.full}. {h.They} lived {place}.",
    "[Once upon a time|Once|Long, long ago], {h.full} lived {place}.",
    "There once was {h.full} who lived {place}.",
    "{place.Capital} there lived {h.full}.",
    "{h.Full} lived {place}.",
    "[Once upon a time|Once], {place}, there lived {h.full}.",
    "In the old days, when [the world was quiet|the nights were long], {h.full} lived {place}.",
)
HABITS = (
    "",
    "",
    "Everybody [there|who knew {h.them}] liked {h.them}.",
    "{h.They} was always [cheerful|busy|curious|kind to others] and [never afraid of hard work|loved to sing|full of ideas].",
    "{h.They} had [bright|big|clever|kind] eyes and a [warm|big|good] heart.",
    "Every morning {h.they} [got up with the sun|sang a little song|went for a walk].",
    "{h.Their} favorite food was {h.food}, and {h.their} favorite place was {mark}.",
    "{h.They} loved {h.food} and long [summer|winter] evenings.",
    "{h.They} had a small {h.home} near {mark}.",
)
OBJECT_HABITS = (
    "",
    "",
    "It was [small|not very big], but it had a good heart.",
    "It had been there for [many|a hundred] years.",
)
ENDINGS = (
    "",
    "",
    "",
    "",
    "",
    "",
    "And they all lived happily ever after.",
    "From that day on, {h} was happy.",
    "It was a day {h} never forgot.",
    "And if you go there today, you may still see them together.",
)


@dataclass
class Story:
    """A finished story and what can be asked about it."""

    hero: Character
    friend: Character
    paragraphs: list[str]
    short: str
    outcome: str
    wish: str
    lesson: str
    themes: list[str]
    where: str

    @property
    def text(self) -> str:
        """Paragraphs with blank lines between them."""
        return "\n\n".join(self.paragraphs)


def name_for(gender: str, person: bool, draw: random.Random) -> str:
    """A fitting first name."""
    if not person and draw.random() < 0.6:
        return draw.choice(CREATURE_NAMES)
    return draw.choice(GIRL_NAMES if gender == "she" else BOY_NAMES)


def fixed_gender(kind: str) -> str:
    """`she` or `he` for kinds that are always one of them, else an empty string."""
    gender = PEOPLE[kind][0] if kind in PEOPLE else GENDERS.get(kind, "any")
    return "" if gender == "any" else gender


def make_character(kind: str, draw: random.Random, avoid: str = "", named: float = 0.65) -> Character:
    """A character of that kind; `avoid` is a gender it must not have."""
    gender = fixed_gender(kind) or draw.choice([g for g in ("he", "she") if g != avoid])
    if kind in PEOPLE:
        _, habitat, home, food = PEOPLE[kind]
    elif kind in OBJECTS:
        gender, habitat, home, food = "it", OBJECTS[kind], "place", "sunshine"
    else:
        habitat, home, food = (ANIMALS | FANTASY)[kind]
    named = 0.2 if kind in OBJECTS else named
    name = name_for(gender, kind in PEOPLE, draw) if draw.random() < named else ""
    adjective = draw.choice(SMALL_ADJECTIVES if draw.random() < 0.5 else ADJECTIVES)
    if adjective in kind or (kind in ("old man", "old woman", "grandmother", "grandfather")):
        adjective = ""
    if kind in OBJECTS and draw.random() < 0.5:
        adjective = draw.choice(["little", "old", "small", *COLOURS])
    return Character(kind, gender, name, adjective, home, food, habitat=habitat)


def make_friend(hero: Character, kind: str, draw: random.Random) -> Character:
    """A second character of that kind (or from the hero's surroundings), of another gender."""
    among = list(PEOPLE) if hero.kind in PEOPLE and draw.random() < 0.4 else HABITATS[hero.habitat][3]
    fitting = [k for k in among if k != hero.kind and fixed_gender(k) != hero.gender]
    kind = kind or draw.choice(fitting)
    friend = make_character(kind, draw, avoid=hero.gender, named=0.5)
    while friend.name and friend.name == hero.name:
        friend.name = draw.choice(CREATURE_NAMES)
    if friend.adjective == hero.adjective:
        friend.adjective = "old" if hero.adjective != "old" else "young"
    return friend


def make_story(draw: random.Random, kind: str = "", friend_kind: str = "") -> Story:
    """A story about that kind of hero (any, if empty), with that kind of second character.

    Two characters of one fixed gender would make the pronouns unclear: the second is then another.
    """
    kind = kind or random_kind(draw)
    hero = make_character(kind, draw, avoid=fixed_gender(friend_kind))
    if friend_kind and hero.gender == fixed_gender(friend_kind):
        friend_kind = ""
    plots = OBJECT_PLOTS if kind in OBJECTS else PLOTS + MORE_PLOTS
    plot = draw.choice([p for p in plots if p.suits(kind, friend_kind)])
    if plot.friends and not friend_kind:
        friend_kind = draw.choice([k for k in plot.friends if k != kind])
    friend = make_friend(hero, friend_kind, draw)
    place, searches, mark, _ = HABITATS[hero.habitat]
    first, second, third = draw.sample(searches, 3)
    scene = Scene(draw, {"h": hero, "f": friend})
    scene.slots |= {
        "place": scene.say(f"[{place}]").lower(),
        "p1": first,
        "p2": second,
        "p3": third,
        "mark": mark,
        "o": scene.say(f"[{TREASURES}]").lower(),
        "food": scene.say(f"[{FOODS}]").lower(),
        "skill": scene.say(f"[{SKILLS}]").lower(),
        "built": scene.say(f"[{BUILT}]").lower(),
        "colour": draw.choice(COLOURS),
        "work": OBJECT_WORK.get(kind, ""),
    }
    opening = scene.choose(*OPENINGS)
    habit = scene.choose(*(OBJECT_HABITS if hero.gender == "it" else HABITS))
    branch = draw.choice(plot.branches())
    beats = [scene.choose(*plot.choices(i, branch)) for i in range(len(plot.beats))]
    first_paragraph = " ".join(t for t in (opening, habit, beats[0]) if t)
    ending = scene.choose(*ENDINGS)
    if "day on" in beats[-1] or draw.random() < 0.2:
        ending = scene.choose(*plot.lesson)
    paragraphs = [first_paragraph, *beats[1:-1], f"{beats[-1]} {ending}".strip()]
    return Story(
        hero,
        friend,
        paragraphs,
        scene.choose(*plot.short),
        scene.choose(*plot.outcome),
        scene.choose(*plot.wish),
        scene.choose(*plot.lesson),
        [lower(scene.say(theme)) for theme in plot.themes],
        capital(str(scene.slots["place"])),
    )


def random_kind(draw: random.Random) -> str:
    """A kind of hero; animals are the most frequent."""
    group = draw.choices((ANIMALS, PEOPLE, FANTASY, OBJECTS), (0.5, 0.22, 0.12, 0.16))[0]
    return draw.choice(list(group))
