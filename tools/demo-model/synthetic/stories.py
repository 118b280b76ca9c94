"""Puts stories together: chooses a hero, a plot and props, and writes the paragraphs."""

from __future__ import annotations

import random
from dataclasses import dataclass

from synthetic.language import Character, Scene, capital, lower
from synthetic.object_plots import OBJECT_PLOTS, OBJECT_WORK
from synthetic.plots import BUILT, PLOTS, SKILLS, Plot
from synthetic.words import (
    ADJECTIVES,
    ANIMALS,
    BOY_NAMES,
    COLOURS,
    CREATURE_NAMES,
    FANTASY,
    FOODS,
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
OBJECT_HABITS = ("", "", "It was [small|not very big], but it had a good heart.", "It had been there for [many|a hundred] years.")
ENDINGS = (
    "", "", "", "", "", "",
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


def make_character(kind: str, draw: random.Random, avoid: str = "", named: float = 0.65) -> Character:
    """A character of that kind; `avoid` is a gender it must not have."""
    genders = [g for g in ("he", "she") if g != avoid]
    if kind in PEOPLE:
        fixed, habitat, home, food = PEOPLE[kind]
        gender = draw.choice(genders) if fixed == "any" else fixed
    elif kind in OBJECTS:
        gender, habitat, home, food = "it", OBJECTS[kind], "place", "sunshine"
    else:
        habitat, home, food = (ANIMALS | FANTASY)[kind]
        gender = draw.choice(genders)
    named = 0.2 if kind in OBJECTS else named
    name = name_for(gender, kind in PEOPLE, draw) if draw.random() < named else ""
    adjective = draw.choice(SMALL_ADJECTIVES if draw.random() < 0.5 else ADJECTIVES)
    if adjective in kind or (kind in ("old man", "old woman", "grandmother", "grandfather")):
        adjective = ""
    if kind in OBJECTS and draw.random() < 0.5:
        adjective = draw.choice(["little", "old", "small", *COLOURS])
    return Character(kind, gender, name, adjective, home, food, habitat=habitat)


def make_friend(hero: Character, draw: random.Random) -> Character:
    """A second character from the hero's surroundings, of another gender and kind."""
    neighbours = [k for k in HABITATS[hero.habitat][3] if k != hero.kind]
    if hero.kind in PEOPLE and draw.random() < 0.4:
        fixed = [k for k, row in PEOPLE.items() if row[0] in ("any", *({"he", "she"} - {hero.gender}))]
        neighbours = [k for k in fixed if k != hero.kind]
    friend = make_character(draw.choice(neighbours), draw, avoid=hero.gender, named=0.5)
    while friend.name and friend.name == hero.name:
        friend.name = draw.choice(CREATURE_NAMES)
    if friend.adjective == hero.adjective:
        friend.adjective = "old" if hero.adjective != "old" else "young"
    return friend


def make_story(draw: random.Random, kind: str = "", friend_kind: str = "", name: str = "") -> Story:
    """A story about that kind of hero (any, if empty)."""
    kind = kind or random_kind(draw)
    hero = make_character(kind, draw)
    hero.name = name or hero.name
    friend = make_character(friend_kind, draw, avoid=hero.gender, named=0.4) if friend_kind else make_friend(hero, draw)
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
    plot: Plot = draw.choice(OBJECT_PLOTS if kind in OBJECTS else PLOTS)
    opening = scene.choose(*OPENINGS)
    habit = scene.choose(*(OBJECT_HABITS if hero.gender == "it" else HABITS))
    branch = draw.choice(plot.branches())
    beats = [scene.choose(*plot.choices(i, branch)) for i in range(len(plot.beats))]
    first_paragraph = " ".join(t for t in (opening, habit, beats[0]) if t)
    ending = scene.choose(*ENDINGS)
    if draw.random() < 0.2:
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
