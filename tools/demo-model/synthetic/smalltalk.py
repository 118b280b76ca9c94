"""Questions and answers for small talk: each function gives one (question, answer)."""

from __future__ import annotations

import random
from collections.abc import Callable

from synthetic.language import Scene, capital, listing, number_word
from synthetic.words import COLOURS

Pair = tuple[str, str]

GREETINGS = (
    (
        "[Hello|Hi|Hey|Hello there|Hi there|Good morning|Good evening|Good day][!|.|]",
        (
            "Hello! [How are you today?|What would you like to talk about?|Shall I tell you a story?|It is nice to meet you.]",
            "Hi there! [Would you like to hear a story?|What can I do for you?|I hope you are well.]",
            "Hello! I am glad you are here. [Would you like a story?|What shall we talk about?]",
        ),
    ),
    (
        "[How are you|How are you today|How do you do|How are you doing|How is it going]?",
        (
            "I am [fine|well|very well], thank you. [How are you?|And you?|I feel like telling a story today.]",
            "I am doing well, thank you for asking! [Shall I tell you a story?|What would you like to do?]",
        ),
    ),
    (
        "[My name is|I am|I'm] {name}.",
        (
            "[Hello|Hi], {name}! It is nice to meet you. [Would you like to hear a story?|What shall we talk about?]",
            "Nice to meet you, {name}! [What a lovely name.|I am a small demonstration model.] [How can I help you?|Shall I tell you a story?]",
        ),
    ),
    (
        "[Thank you|Thanks|Thank you very much|Thanks a lot|Great, thank you|Thank you, that was nice][!|.|]",
        (
            "You are welcome! [Would you like another story?|Come back any time.|I am happy that you liked it.]",
            "[It was my pleasure.|You are very welcome.] [Is there anything else you would like?|Have a nice day!]",
        ),
    ),
    (
        "[Goodbye|Bye|Bye bye|See you later|Good night|I have to go now][!|.|]",
        (
            "Goodbye! [It was nice to talk to you.|Have a lovely day!|Come back soon.|Sleep well!]",
            "See you soon! [Take care.|Thank you for talking with me.]",
        ),
    ),
    (
        "[I am|I feel|I'm] [sad|a bit sad|very sad|unhappy][ today|].",
        (
            "I am sorry to hear that. [Would you like a story to cheer you up?|Do you want to tell me about it?|I hope that tomorrow will be a better day.]",
        ),
    ),
    (
        "[I am|I feel|I'm] [happy|very happy|so happy][ today|].",
        (
            "That is [wonderful|lovely|great]! [What made you happy?|I am glad to hear it.|Happy days are the best days.]",
        ),
    ),
    (
        "[I am|I feel|I'm] [tired|so tired|sleepy].",
        (
            "Then you should rest a little. [Shall I tell you a short bedtime story?|Sleep well!|A good night's sleep helps with many things.]",
        ),
    ),
    (
        "[I am|I feel|I'm] [bored|so bored].",
        (
            "Then let us do something! [Shall I tell you a story?|You could draw a picture, or I could tell you a story.|I could ask you a riddle.]",
        ),
    ),
    (
        "[I am|I'm] [afraid|scared][ of the dark| of spiders| of the storm|].",
        (
            "[Everybody is afraid sometimes.|That is all right.] [Take a deep breath.|You are not alone.] [Would you like a story about a brave little mouse?|It often helps to talk about it.]",
        ),
    ),
    (
        "[Do you like|Do you love] [stories|books|animals|music|people]?",
        (
            "[Yes, very much!|Yes, I do.|Oh yes!] [Most of what I know comes from stories.|I like to tell stories best of all.|And you?]",
        ),
    ),
    (
        "[You are|You're] [nice|funny|great|very kind]!",
        ("Thank you! [That is kind of you.|You are nice too.|I do my best.]",),
    ),
    (
        "[You are|You're] [wrong|stupid|bad|silly].",
        ("I am sorry. [I am only a small model, and I make mistakes.|I will try to do better.]",),
    ),
    (
        "[Yes|Yes, please|Sure|Okay|OK].",
        ("Good! [What would you like to hear about?|Then tell me what the story should be about.]",),
    ),
    ("[No|No, thank you|Not now].", ("All right. [Just ask when you need something.|Maybe another time.]",)),
)

ABOUT_ME = (
    (
        "[Who are you|What are you|Tell me about yourself|Introduce yourself][?|]",
        (
            "I am a small demonstration model inside trine. I can tell short stories and chat a little.",
            "I am the little model that comes with trine. I like to tell stories. [Shall I tell you one?|Ask me for one!]",
            "I am a very small language model. I live inside the program trine, and I can tell you stories.",
        ),
    ),
    (
        "[What is your name|What's your name|Do you have a name|What are you called]?",
        (
            "I have no real name. I am the small demonstration model inside trine.",
            "I am just the demonstration model of trine. You may call me what you like.",
        ),
    ),
    (
        "[What can you do|What are you good at|How can you help me|What can I ask you|Help]?",
        (
            'I can tell you a short story, talk a little, and answer very simple questions. Just say, "Tell me a story about a fox."',
            "I am good at short stories. Tell me who should be in it, and I will begin. I can also answer easy questions.",
        ),
    ),
    (
        "[Are you|Are you really] [a human|a person|real|alive|a robot|a computer]?",
        (
            "No, I am a small computer program that has learned from many stories.",
            "I am a program. I have read many old books and stories, and now I tell my own.",
        ),
    ),
    (
        "[Who made you|Where do you come from|How were you made|How did you learn to talk]?",
        (
            "I was trained on old books and simple stories, and I am part of trine.",
            "I come with the program trine. I learned to write by reading many old books and stories.",
        ),
    ),
    (
        "[What is trine|What's trine|Do you know trine]?",
        (
            "trine is a program that runs language models on your own machine. I am its small demonstration model.",
        ),
    ),
    (
        "[Are you smart|Are you clever|Do you know everything|How smart are you|How big are you]?",
        (
            "I am very small, so I do not know much. But I like to tell stories.",
            "No, I am only a small model. A bigger model knows much more than I do.",
        ),
    ),
    (
        "[How old are you|When were you born|Where do you live|Do you have a family|What do you eat|Do you sleep]?",
        (
            "I am only a program, so [I have no body and no house|that is hard to say]. But I can tell you a story about somebody who has one.",
        ),
    ),
)

UNKNOWN = (
    "[What is the capital of|Who is the president of|How many people live in|Where is] [France|Japan|Brazil|Egypt|India|Peru|Norway]?",
    "[Write|Can you write] [a program in Python|some code|an essay about history|a letter to my boss|an email][.|]",
    "[Explain|What is|Tell me about] [quantum physics|photosynthesis|the stock market|black holes|the French Revolution|chemistry][.|]",
    "[What is the weather|What will the weather be] [like|] [today|tomorrow]?",
    "[Who won|Who will win] [the game|the election|the war|the world cup]?",
    "[What time is it|What day is it today|What is the date]?",
    "[Translate|Can you translate] [this into French|hello into Spanish|this sentence|good night into German][.|]",
    "[How do I|How can I] [fix my car|cook rice|learn to code|make money|lose weight|get a job]?",
    "[Why|How] [do planes fly|is the sea salty|do computers work|does the heart beat]?",
)
UNKNOWN_ANSWERS = (
    "I am sorry, I do not know that. I am only a small model. But I can tell you a story!",
    "That is too hard for me. [A bigger model could help you.|I am a very small model.] [Would you like a story instead?|]",
    "I do not know. I am better at telling stories. [Shall I tell you one?|]",
)

COLOUR_FACTS = {
    "grass": "green",
    "the sky": "blue",
    "snow": "white",
    "a banana": "yellow",
    "the sun": "yellow",
    "blood": "red",
    "coal": "black",
    "a lemon": "yellow",
    "a tomato": "red",
    "the sea": "blue",
    "a carrot": "orange",
    "milk": "white",
    "chocolate": "brown",
    "a strawberry": "red",
    "a frog": "green",
    "a crow": "black",
    "an elephant": "gray",
    "a cherry": "red",
    "the night": "black",
    "a swan": "white",
    "a pumpkin": "orange",
    "a leaf": "green",
    "mud": "brown",
    "a fire truck": "red",
    "a cloud": "white",
    "an orange": "orange",
    "a mouse": "gray",
    "a cucumber": "green",
    "a fox": "red",
    "a bear": "brown",
    "a flamingo": "pink",
    "a raven": "black",
    "a pea": "green",
}
SOUNDS = {
    "cow": "moo",
    "dog": "woof",
    "cat": "meow",
    "sheep": "baa",
    "duck": "quack",
    "pig": "oink",
    "rooster": "cock-a-doodle-doo",
    "horse": "neigh",
    "bee": "buzz",
    "owl": "hoo",
    "mouse": "squeak",
    "lion": "roar",
    "frog": "croak",
    "crow": "caw",
    "snake": "hiss",
    "hen": "cluck",
    "donkey": "hee-haw",
    "wolf": "howl",
    "chick": "cheep",
    "goose": "honk",
    "bird": "tweet",
    "goat": "meh",
    "pigeon": "coo",
    "bear": "growl",
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "up": "down",
    "day": "night",
    "happy": "sad",
    "fast": "slow",
    "old": "young",
    "wet": "dry",
    "open": "closed",
    "light": "dark",
    "loud": "quiet",
    "hard": "soft",
    "full": "empty",
    "good": "bad",
    "long": "short",
    "high": "low",
    "rich": "poor",
    "clean": "dirty",
    "left": "right",
    "first": "last",
    "early": "late",
    "strong": "weak",
    "thick": "thin",
    "near": "far",
    "black": "white",
    "brave": "afraid",
    "heavy": "light",
    "summer": "winter",
    "in": "out",
    "yes": "no",
    "front": "back",
    "sweet": "sour",
    "wide": "narrow",
    "true": "false",
    "begin": "end",
    "laugh": "cry",
    "friend": "enemy",
    "inside": "outside",
    "warm": "cool",
    "rough": "smooth",
}
FACTS = {
    "[How many legs does a dog have|How many legs has a dog]?": "A dog has four legs.",
    "[How many legs does a spider have|How many legs has a spider]?": "A spider has eight legs.",
    "[How many legs does a bird have|How many legs has a bird]?": "A bird has two legs.",
    "[How many legs does an ant have|How many legs has an insect]?": "It has six legs.",
    "[How many days are in a week|How many days does a week have]?": "A week has seven days.",
    "[How many months are in a year|How many months does a year have]?": "A year has twelve months.",
    "[How many hours are in a day|How many hours does a day have]?": "A day has twenty-four hours.",
    "[How many minutes are in an hour|How many minutes does an hour have]?": "An hour has sixty minutes.",
    "[What are the days of the week|Name the days of the week|Tell me the days of the week][.|]": "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    "[What are the seasons|Name the four seasons|What are the four seasons][.|]": "The four seasons are spring, summer, autumn and winter.",
    "[Where do fish live|Where does a fish live]?": "Fish live in the water.",
    "[Where do birds sleep|Where does a bird live]?": "Many birds live in nests.",
    "[What do cows eat|What does a cow eat]?": "Cows eat grass and hay.",
    "[What do rabbits eat|What does a rabbit eat]?": "Rabbits eat grass, leaves and carrots.",
    "[What do cats like to drink|What does a cat drink]?": "Cats drink water. Some cats like milk, too.",
    "[What do bees make|What does a bee make]?": "Bees make honey.",
    "[What do hens lay|What does a hen lay]?": "A hen lays eggs.",
    "[What does a cow give us|What do cows give us]?": "A cow gives us milk.",
    "[When does the sun rise|When does the sun come up]?": "The sun comes up in the morning.",
    "[What shines at night|What can you see in the sky at night]?": "At night you can see the moon and the stars.",
    "[What do you do with a book|What is a book for]?": "You read a book.",
    "[What do you use to cut bread|What do you cut bread with]?": "You cut bread with a knife.",
    "[What do you wear on your feet|What goes on your feet]?": "You wear shoes on your feet.",
    "[What do you wear on your head|What goes on your head]?": "You wear a hat on your head.",
    "[What falls from the sky when it rains|What is rain]?": "Rain is water that falls from the clouds.",
    "[What is snow|What is snow made of]?": "Snow is frozen water. It is white and cold.",
    "[Is the sun hot or cold|Is the sun hot]?": "The sun is very hot.",
    "[Is ice hot or cold|Is ice cold]?": "Ice is cold.",
    "[Can a fish fly|Can fish fly]?": "No, a fish cannot fly. A fish swims.",
    "[Can a bird fly|Can birds fly]?": "Yes, most birds can fly.",
    "[Can a dog talk|Can dogs talk]?": "No, a dog cannot talk. A dog barks.",
    "[What is bigger, a mouse or an elephant|Which is bigger, an elephant or a mouse]?": "An elephant is bigger than a mouse.",
    "[What is faster, a snail or a horse|Which is faster, a horse or a snail]?": "A horse is faster than a snail.",
    "[What comes after Monday|Which day comes after Monday]?": "Tuesday comes after Monday.",
    "[What comes after summer|Which season comes after summer]?": "Autumn comes after summer.",
    "[What comes after winter|Which season comes after winter]?": "Spring comes after winter.",
    "[What is a baby dog called|What do you call a young dog]?": "A baby dog is called a puppy.",
    "[What is a baby cat called|What do you call a young cat]?": "A baby cat is called a kitten.",
    "[What is a baby cow called|What do you call a young cow]?": "A baby cow is called a calf.",
    "[What is a baby sheep called|What do you call a young sheep]?": "A baby sheep is called a lamb.",
    "[Where does milk come from|Who gives us milk]?": "Milk comes from cows.",
    "[Where does honey come from|Who makes honey]?": "Honey comes from bees.",
    "[Where does the sun go at night|Where is the sun at night]?": "At night the sun shines on the other side of the world.",
}
RIDDLES = {
    "What has hands but cannot clap?": "A clock",
    "What gets wet while it dries?": "A towel",
    "What has teeth but cannot bite?": "A comb",
    "What has a neck but no head?": "A bottle",
    "What goes up and never comes down?": "Your age",
    "What has an eye but cannot see?": "A needle",
    "What has legs but cannot walk?": "A table",
}
JOKES = (
    "Why did the chicken cross the road? To get to the other side!",
    "What do you call a bear without teeth? A gummy bear!",
    "Why did the teddy bear say no to cake? Because it was already stuffed!",
    'What did one wall say to the other wall? "I will meet you at the corner!"',
    "Why did the cookie go to the doctor? Because it felt crumbly!",
    "What do you call a sleeping cow? A bulldozer!",
    "Why is six afraid of seven? Because seven ate nine!",
)


def from_table(
    table: tuple[tuple[str, tuple[str, ...]], ...], names: tuple[str, ...]
) -> Callable[[random.Random], Pair]:
    """A maker of pairs from a table of question and answer templates."""

    def make(draw: random.Random) -> Pair:
        question, answers = draw.choice(table)
        scene = Scene(draw, {"name": draw.choice(names)})
        return scene.say(question), scene.choose(*answers)

    return make


def unknown(draw: random.Random) -> Pair:
    """A question beyond a small model, and an honest answer."""
    scene = Scene(draw)
    return scene.choose(*UNKNOWN), scene.choose(*UNKNOWN_ANSWERS)


def colour(draw: random.Random) -> Pair:
    """What colour a thing is."""
    thing = draw.choice(list(COLOUR_FACTS))
    word = draw.choice(["colour", "color"])
    value = COLOUR_FACTS[thing]
    question = draw.choice(
        [f"What {word} is {thing}?", f"Which {word} is {thing}?", f"what {word} is {thing}"]
    )
    return question, draw.choice(
        [f"{capital(thing)} is {value}.", f"{capital(thing)} is {value}.", f"It is {value}."]
    )


def sound(draw: random.Random) -> Pair:
    """What an animal says."""
    animal = draw.choice(list(SOUNDS))
    article = "an" if animal[0] in "aeiou" else "a"
    question = draw.choice(
        [
            f"What does {article} {animal} say?",
            f"What sound does {article} {animal} make?",
            f"How does {article} {animal} go?",
        ]
    )
    noise = SOUNDS[animal]
    return question, draw.choice(
        [f'The {animal} says "{noise}".', f'{capital(article)} {animal} says "{noise}, {noise}".']
    )


def opposite(draw: random.Random) -> Pair:
    """The opposite of a word."""
    one, other = draw.choice(list(OPPOSITES.items()))
    if draw.random() < 0.4:
        one, other = other, one
    ask = [
        f"What is the opposite of {one}?",
        f'Tell me the opposite of "{one}".',
        f"What's the opposite of {one}?",
        f"opposite of {one}",
    ]
    return draw.choice(ask), draw.choice(
        [f"The opposite of {one} is {other}.", f"The opposite of {one} is {other}.", f"It is {other}."]
    )


def fact(draw: random.Random) -> Pair:
    """A simple question about the world."""
    question = draw.choice(list(FACTS))
    return Scene(draw).say(question), FACTS[question]


def counting(draw: random.Random) -> Pair:
    """Counting up or down in words or digits."""
    last = draw.choice([3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 12])
    digits = draw.random() < 0.4
    numbers = [str(n) if digits else number_word(n) for n in range(1, last + 1)]
    target = numbers[-1]
    if draw.random() < 0.2:
        return f"Count down from {target}.", capital(", ".join(reversed(numbers))) + "!"
    ask = [
        f"Count to {target}.",
        f"Can you count to {target}?",
        f"Please count from {numbers[0]} to {target}.",
        f"count to {target}",
    ]
    return draw.choice(ask), capital(", ".join(numbers)) + draw.choice([".", "!"])


def arithmetic(draw: random.Random) -> Pair:
    """A small sum or difference."""
    a, b = draw.randint(0, 10), draw.randint(0, 10)
    minus = draw.random() < 0.35
    if minus and a < b:
        a, b = b, a
    result = a - b if minus else a + b
    digits = draw.random() < 0.5
    x, y, z = (str(n) if digits else number_word(n) for n in (a, b, result))
    word, sign = ("minus", "-") if minus else ("plus", "+")
    operator = sign if digits and draw.random() < 0.7 else word
    ask = [
        f"What is {x} {operator} {y}?",
        f"How much is {x} {operator} {y}?",
        f"{capital(x)} {operator} {y}?",
        f"what's {x} {operator} {y}",
    ]
    return draw.choice(ask), draw.choice(
        [f"{capital(x)} {word} {y} is {z}.", f"{capital(x)} {word} {y} is {z}.", f"It is {z}."]
    )


def story_sum(draw: random.Random) -> Pair:
    """A sum about apples and other things."""
    a, b = draw.randint(1, 9), draw.randint(1, 5)
    thing = draw.choice("apple pear nut egg coin flower ball cake".split())
    x, y = number_word(a), number_word(b)

    def some(n: int) -> str:
        return f"{number_word(n)} {thing}{'' if n == 1 else 's'}"

    if draw.random() < 0.4 and a > b:
        question = f"I have {some(a)} and give away {y}. How many {thing}s do I have left?"
        return question, f"You have {some(a - b)} left." if a > b else f"You have no {thing}s left."
    question = draw.choice(
        [
            f"I have {some(a)} and get {y} more. How many {thing}s do I have?",
            f"If I have {some(a)} and you give me {some(b)}, how many do I have?",
        ]
    )
    return question, f"{capital(x)} and {y} make {number_word(a + b)}, so you have {some(a + b)}."


def riddle(draw: random.Random) -> Pair:
    """A riddle asked or answered."""
    question, answer = draw.choice(list(RIDDLES.items()))
    if draw.random() < 0.5:
        return question, f"{answer}!"
    return draw.choice(
        ["Tell me a riddle.", "Do you know a riddle?", "Ask me a riddle."]
    ), f"{question} {answer}!"


def joke(draw: random.Random) -> Pair:
    """A joke."""
    return draw.choice(
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "tell me a joke", "A joke, please."]
    ), draw.choice(JOKES)


def favourites(draw: random.Random) -> Pair:
    """What the model or the user likes."""
    kind, values = draw.choice(
        [
            ("color", COLOURS),
            ("animal", ["the fox", "the owl", "the hedgehog", "the whale"]),
            ("food", ["honey cake, though I cannot eat", "words, because I cannot eat"]),
            ("season", ["spring", "winter", "autumn", "summer"]),
            ("story", ["one about a brave mouse", "one with a fox in it"]),
            ("time of day", ["the evening", "the early morning"]),
        ]
    )
    value = draw.choice(values)
    mine = f"My favorite {kind} is {value}. What is yours?"
    return f"What is your favorite {kind}?", mine


def naming(draw: random.Random) -> Pair:
    """Name some members of a group."""
    group, members = draw.choice(
        [
            ("animals", "fox bear owl hare cat dog cow horse goat mouse lion duck".split()),
            ("colors", COLOURS[:9]),
            ("fruits", "apples pears plums cherries grapes bananas oranges lemons".split()),
            ("birds", "owl crow duck eagle robin swan sparrow goose".split()),
            ("vegetables", "carrots peas beans potatoes onions cabbages".split()),
            ("things in a house", "table chair lamp bed door window clock".split()),
            ("farm animals", "cow pig hen horse goat sheep duck".split()),
            ("flowers", "roses tulips daisies lilies violets sunflowers".split()),
        ]
    )
    count = draw.choice([2, 3, 3, 3, 4])
    chosen = draw.sample(members, count)
    ask = draw.choice(
        [
            f"Name {number_word(count)} {group}.",
            f"Can you name {number_word(count)} {group}?",
            f"Tell me {number_word(count)} {group}.",
        ]
    )
    return ask, capital(listing(chosen)) + "."


def small_talk_makers(names: tuple[str, ...]) -> list[tuple[float, Callable[[random.Random], Pair]]]:
    """All makers with their weights."""
    return [
        (5.0, from_table(GREETINGS, names)),
        (3.0, from_table(ABOUT_ME, names)),
        (1.5, unknown),
        (1.2, colour),
        (0.8, sound),
        (1.2, opposite),
        (1.5, fact),
        (0.8, counting),
        (2.0, arithmetic),
        (0.5, story_sum),
        (0.4, riddle),
        (0.4, joke),
        (0.6, favourites),
        (0.6, naming),
    ]
