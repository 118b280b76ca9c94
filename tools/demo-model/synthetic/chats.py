"""Short chats in Gemma's turn format."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from synthetic.language import Scene, capital, lower, polish
from synthetic.smalltalk import small_talk_makers
from synthetic.stories import Story, make_story, random_kind
from synthetic.words import ANIMALS, BOY_NAMES, CREATURE_NAMES, FANTASY, GIRL_NAMES, OBJECTS, PEOPLE

Turn = tuple[str, str]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a kind storyteller.",
    "You tell stories to children.",
    "You are a friendly assistant who answers briefly.",
    "Answer in simple words.",
    "You are a good friend.",
    "You are a storyteller who loves animals.",
    "Be polite and brief.",
    "You are a helpful, honest assistant.",
)
REQUESTS = (
    "Tell me a story about {x}.",
    "Tell me a story about {x}.",
    "Tell me a story about {x}",
    "tell me a story about {x}",
    "Tell me a short story about {x}.",
    "Can you tell me a story about {x}?",
    "Please tell me a story about {x}.",
    "Write a story about {x}.",
    "Write a short story about {x}.",
    "Could you write me a story about {x}?",
    "I want to hear a story about {x}.",
    "I would like a story about {x}, please.",
    "Do you know a story about {x}?",
    "A story about {x}, please.",
    "Make up a story about {x}.",
    "story about {x}",
    "Give me a story about {x}.",
    "Tell a story about {x}.",
    "Tell me about {x}.",
    "Let me hear a little story about {x}.",
    "a story about {x}",
    "Tell my children a story about {x}.",
    "Tell me a bedtime story about {x}.",
    "Write a few sentences about {x}.",
    "Hello! Can you tell me a story about {x}?",
    "Hi, tell me a story about {x}, please.",
)
OPEN_REQUESTS = (
    "Tell me a story.",
    "tell me a story",
    "Tell me a story, please.",
    "Can you tell me a story?",
    "Write a short story.",
    "I want to hear a story.",
    "Tell me a bedtime story.",
    "Please tell me something nice.",
    "Do you know a good story?",
    "Tell me something.",
    "A story, please!",
    "Once more, tell me a story.",
    "Make up a story.",
    "Surprise me with a story.",
)
PREFACES = (
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "Here is a story for you.\n\n",
    "Of course!\n\n",
    "Gladly!\n\n",
    "All right, listen.\n\n",
)
SHORTER = (
    "Make it shorter.",
    "Can you make it shorter?",
    "Shorter, please.",
    "Tell it in two sentences.",
    "Too long. Make it shorter.",
    "Sum it up.",
    "make it shorter",
    "What is the story about, in short?",
)
ANOTHER = (
    "Another one, please.",
    "Another one!",
    "Tell me another story.",
    "One more, please.",
    "Again!",
    "more",
    "Tell me one more.",
)
LESSONS = (
    "What is the lesson?",
    "What can we learn from it?",
    "What is the moral of the story?",
    "What does the story teach us?",
)


@dataclass(frozen=True)
class Library:
    """Stories by others that chats may quote."""

    tiny_stories: list[str]
    picture_books: list[str]


def render(turns: list[Turn], system: str = "") -> str:
    """Turns in Gemma's format; a system prompt stands before the first user message."""
    parts = []
    for index, (question, answer) in enumerate(turns):
        prefix = f"{system}\n\n" if system and index == 0 else ""
        parts.append(f"<start_of_turn>user\n{prefix}{question}<end_of_turn>\n")
        parts.append(f"<start_of_turn>model\n{answer}<end_of_turn>\n")
    return "".join(parts)


def subject_of(story: Story, draw: random.Random) -> str:
    """What a request for this story could name."""
    hero, friend = story.hero, story.friend
    bare = hero.form("bare", draw)
    options = [hero.form("a", draw)] * 5 + [bare] * 2 + [draw.choice(story.themes)] * 3
    if hero.name:
        options += [f"a {hero.kind} {joint} {hero.name}" for joint in ("named", "called")]
        options += [f"{bare} named {hero.name}"]
    options += [f"a {hero.kind} and a {friend.kind}", f"a {hero.kind} and {draw.choice(story.themes)}"]
    plain = Scene(draw).say(draw.choice(options))
    return lower(plain)


def request(story: Story, draw: random.Random) -> str:
    """A user's request for the story."""
    return draw.choice(REQUESTS).replace("{x}", subject_of(story, draw))


def questions_about(story: Story, draw: random.Random) -> Turn:
    """A question about a story just told, with its answer."""
    hero = story.hero
    name = hero.name or f"the {hero.kind}"
    them = hero.form("them", draw)
    options = [
        (
            draw.choice(
                [
                    f"What happened to the {hero.kind}?",
                    f"What happened to {name} in the end?",
                    f"How did it end for {name}?",
                ]
            ),
            story.outcome,
        ),
        (
            draw.choice(
                [f"What did {name} want?", f"What did the {hero.kind} want?", "What was the story about?"]
            ),
            story.wish,
        ),
        (
            draw.choice([f"Where did {name} live?", f"Where does the {hero.kind} live?"]),
            f"{capital(name)} lived {lower(story.where)}.",
        ),
        (draw.choice(LESSONS), story.lesson),
        (
            draw.choice([f"Who did {name} meet?", "Who else was in the story?", f"Who helped {them}?"]),
            friend_answer(story),
        ),
    ]
    ask_name = draw.choice(
        [
            f"What was the {hero.kind}'s name?",
            f"What was the {hero.kind} called?",
            f"What is the name of the {hero.kind}?",
        ]
    )
    if hero.name:
        options.append((ask_name, f"The {hero.kind}'s name was {hero.name}."))
    else:
        options.append((ask_name, f"The {hero.kind} in the story had no name."))
    options.append(("Who is the story about?", f"It is about {hero.form('introduced', draw)}."))
    question, answer = draw.choice(options)
    return question, polish(answer)


def friend_answer(story: Story) -> str:
    """Who the second character was."""
    friend = story.friend
    described = f"a {friend.adjective} {friend.kind}".replace("  ", " ")
    hero = story.hero.name or f"the {story.hero.kind}"
    named = f" named {friend.name}" if friend.name else ""
    return f"{capital(hero)} met {described}{named}."


class ChatMaker:
    """Makes chats; the library's stories are the only state."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.makers = small_talk_makers(tuple(GIRL_NAMES + BOY_NAMES + CREATURE_NAMES))

    def small_talk(self, draw: random.Random) -> Turn:
        """One question and answer."""
        weights = [weight for weight, _ in self.makers]
        maker = draw.choices([make for _, make in self.makers], weights)[0]
        question, answer = maker(draw)
        if draw.random() < 0.12:
            question = question.lower().rstrip(".!?")
        return question, answer

    def told_story(self, draw: random.Random, open_request: bool = False) -> tuple[Story, Turn]:
        """A request and a story from the grammar."""
        kind = random_kind(draw)
        friend_kind = ""
        if kind not in OBJECTS and draw.random() < 0.15:
            friend_kind = draw.choice(list(draw.choice((ANIMALS, ANIMALS, PEOPLE, FANTASY))))
        story = make_story(draw, kind, friend_kind if friend_kind != kind else "")
        question = draw.choice(OPEN_REQUESTS) if open_request else request(story, draw)
        return story, (question, draw.choice(PREFACES) + story.text)

    def story_chat(self, draw: random.Random) -> list[Turn]:
        """A story and what may follow it."""
        story, first = self.told_story(draw, draw.random() < 0.12)
        turns = [self.small_talk(draw)] if draw.random() < 0.12 else []
        turns.append(first)
        while draw.random() < 0.42 and len(turns) < 5:
            roll = draw.random()
            if roll < 0.5:
                turns.append(questions_about(story, draw))
            elif roll < 0.68:
                turns.append((draw.choice(SHORTER), story.short))
            elif roll < 0.84:
                story, turn = self.told_story(draw)
                turns.append((draw.choice(ANOTHER), turn[1]) if draw.random() < 0.7 else turn)
            else:
                turns.append(self.small_talk(draw))
        return turns

    def quoted_story(self, draw: random.Random) -> list[Turn]:
        """A story from the library, asked for by what is in it or by its title."""
        if draw.random() < 0.25:
            book = draw.choice(self.library.picture_books)
            title, _, text = book.partition("\n")
            ask = draw.choice(
                [
                    'Tell me the story of "{x}".',
                    'Do you know the story "{x}"?',
                    'Write a story called "{x}".',
                    'Tell me a story with the title "{x}".',
                ]
            )
            return [(ask.replace("{x}", title.strip()), shorten(text.strip(), 1100))]
        story = draw.choice(self.library.tiny_stories)
        found = re.search(r"\b(an? (?:\w+ ){0,2}\w+) (?:named|called) ([A-Z]\w+)", story[:300])
        if found:
            subject = found.group(1) if draw.random() < 0.5 else f"{found.group(1)} named {found.group(2)}"
            question = draw.choice(REQUESTS).replace("{x}", subject)
        else:
            question = draw.choice(OPEN_REQUESTS)
        return [(question, shorten(story, 1400))]

    def continued_story(self, draw: random.Random) -> list[Turn]:
        """A beginning by the user, the rest by the model."""
        roll = draw.random()
        if roll < 0.5:
            text = make_story(draw).text
        else:
            text = draw.choice(self.library.tiny_stories)
        sentences = re.split(r"(?<=[.!?]) +|\n\n", text)
        cut = draw.randint(1, min(3, max(1, len(sentences) - 2)))
        beginning = " ".join(sentences[:cut])
        rest = text[len(beginning) :].strip() if text.startswith(beginning) else " ".join(sentences[cut:])
        ask = draw.choice(
            [
                "Continue this story: {x}",
                "Continue the story: {x}",
                "Go on with this story: {x}",
                "{x} What happened next?",
                "How does this story go on? {x}",
                "Finish this story: {x}",
                "Continue: {x}",
            ]
        )
        return [(ask.replace("{x}", beginning), shorten(rest, 1200))]

    def make(self, draw: random.Random) -> str:
        """One chat."""
        kind = draw.choices(("story", "quoted", "continued", "talk"), (0.52, 0.08, 0.1, 0.3))[0]
        if kind == "story":
            turns = self.story_chat(draw)
        elif kind == "quoted":
            turns = self.quoted_story(draw)
        elif kind == "continued":
            turns = self.continued_story(draw)
        else:
            turns = [self.small_talk(draw) for _ in range(draw.choice([1, 1, 2, 2, 3, 4]))]
        system = draw.choice(SYSTEM_PROMPTS) if draw.random() < 0.08 else ""
        return render(turns, system)


def shorten(text: str, limit: int) -> str:
    """The first paragraphs up to about that many characters, ending with a whole paragraph."""
    kept: list[str] = []
    total = 0
    for paragraph in text.split("\n\n"):
        if kept and total + len(paragraph) > limit:
            break
        kept.append(paragraph)
        total += len(paragraph)
    return "\n\n".join(kept)
