"""Plots for things as heroes: a boat, a lamp, a cloud. Slots as in `plots`, and `work`, what it is for."""

from __future__ import annotations

from synthetic.plots import Plot

OBJECT_WORK = {
    "boat": "carry people across the bay",
    "ship": "carry boxes over the sea",
    "paper boat": "float down the stream",
    "train": "bring people home",
    "car": "take people to the market",
    "bus": "take children to school",
    "truck": "carry heavy stones",
    "tractor": "pull the plow",
    "fire truck": "help when there is a fire",
    "bicycle": "roll down the hill",
    "airplane": "fly over the hills",
    "balloon": "make children laugh",
    "kite": "dance in the wind",
    "rocket": "fly to the stars",
    "teapot": "pour hot tea",
    "cup": "hold warm milk",
    "spoon": "stir the soup",
    "lamp": "light up the room",
    "candle": "shine in the dark",
    "clock": "tell the time",
    "chair": "give tired people a rest",
    "broom": "keep the floor clean",
    "pencil": "draw and write",
    "book": "tell its story",
    "teddy bear": "keep children company at night",
    "doll": "play with the children",
    "toy soldier": "guard the toys",
    "ball": "bounce and roll",
    "shoe": "go for long walks",
    "hat": "keep a head warm",
    "umbrella": "keep people dry",
    "key": "open the old door",
    "bell": "ring every morning",
    "drum": "make music",
    "violin": "make music",
    "coin": "buy something good",
    "lantern": "show people the way",
    "windmill": "grind the corn",
    "bridge": "bring people across the water",
    "cloud": "bring rain to the fields",
    "star": "shine at night",
    "moon": "light up the night",
    "raindrop": "water the flowers",
    "snowflake": "make the world white",
    "tree": "give shade in summer",
    "pine tree": "give the birds a home",
    "acorn": "become a tree",
    "leaf": "dance in the wind",
    "seed": "become a flower",
    "flower": "feed the bees",
    "rose": "smell sweet",
    "sunflower": "look at the sun",
    "pumpkin": "grow big and round",
    "apple": "grow red and sweet",
    "mushroom": "be a roof for the ants",
    "stone": "lie in the sun",
    "pebble": "shine in the water",
    "shell": "sing the song of the sea",
    "snowball": "roll down the hill",
    "scarf": "keep a neck warm",
    "mitten": "keep a hand warm",
    "pillow": "give sweet dreams",
    "button": "hold a coat together",
    "crayon": "draw colorful pictures",
}

TOO_SMALL = Plot(
    themes=("a {h.kind} that felt useless", "{h.bare}", "being useful", "a {h.kind}", "a {h.kind} and {f.a}"),
    beats=(
        (
            'All it wanted was to {work}. But there was a bigger and newer {h.kind} nearby, and everybody used that one. "[Nobody needs me|I am good for nothing]," thought {h}.',
            '{h.Name} was made to {work}. But one day people [forgot|stopped caring] about it, and dust fell on it. "Have I become useless?" it thought sadly.',
        ),
        (
            'One day {f.along} came and [sat down beside it|looked at it]. "Why are you so quiet?" asked {f}. "Because nobody needs me," said {h}. "Wait," said {f}. "Your day will come."',
            'Only {f.along} came to visit. "I like you just as you are," said {f}. That was kind, but {h} was still sad. It dreamed of the day when it could {work} again.',
        ),
        (
            'Then there came a night of wind and rain. The big new {h.kind} [broke|was nowhere to be found|could not help]. People ran here and there and did not know what to do. "What about the old one?" somebody called.',
            'Then, one [cold|dark|gray] morning, everything went wrong. {f.Name} came in a hurry. "We need you!" {f.they} cried. "There is nobody else who can do it!"',
        ),
        (
            'So at last {h} could {work}, and it did it better than anybody had thought. "How could we forget you?" the people said. {f.Name} smiled. "I told you that your day would come," {f.they} said.',
            "{h.Name} was afraid for a moment. Then it did what it was made for. It was [hard|not easy], but it did not stop until everything was well. From that day on, nobody ever forgot it again.",
        ),
    ),
    short=(
        "{h.Introduced} felt useless, because nobody needed it. But one day it was able to help, and everybody was glad to have it.",
    ),
    outcome=("{h.Name} was forgotten at first, but in the end it helped everybody.",),
    wish=("{h.Name} wanted to {work}.",),
    lesson=("Everybody is good for something.", "Small things can do great work."),
)

SEE_THE_WORLD = Plot(
    themes=(
        "a {h.kind} that wanted to see the world",
        "a journey",
        "a {h.kind} far from home",
        "a {h.kind}",
        "{h.bare}",
    ),
    beats=(
        (
            'Day after day it saw the same things. "There must be more than this," thought {h}. "I want to see the world."',
            '{h.Name} had heard of far-away lands, and it wanted to see them all. "But how can I get there?" it asked.',
        ),
        (
            '"I can help you," said {f.along}. "Come with me." And before {h} could say anything, they were on their way. They went over hills and rivers. They saw [cities with a thousand lights|mountains with white tops|fields as yellow as gold].',
            "One windy day, {f.along} passed by and took it along. How big the world was! They saw [a lake as blue as the sky|a city full of towers|a forest without end]. {h.Name} could hardly believe it.",
        ),
        (
            'But in the evening {h} grew quiet. It thought of its old place, where somebody was surely missing it. "What is the matter?" asked {f}. "The world is beautiful," said {h}, "but it is so big, and I am so small."',
            'They traveled for many days. But after a while {h} felt a small pain inside. "What is this?" it asked. "You are homesick," said {f} gently.',
        ),
        (
            "So {f} brought it home again. Everything was just as before. But {h} was not the same. Every evening it told the others about the wide world, and they listened [with open mouths|without a sound].",
            'And so they turned around. When {h} was back in its old place, it was happier than ever. "It is good to go," it said, "and it is good to come home."',
        ),
    ),
    short=(
        "{h.Introduced} wanted to see the world. It went on a long journey with {f.bare}, and in the end it was happy to be home again.",
    ),
    outcome=("{h.Name} saw the world together with {f} and then came home happily.",),
    wish=("{h.Name} wanted to see the world.",),
    lesson=("It is good to go, and it is good to come home.",),
)

FOUND_AGAIN = Plot(
    themes=(
        "a lost {h.kind}",
        "a {h.kind} that got lost",
        "a child and a {h.kind}",
        "a {h.kind}",
        "{h.bare}",
    ),
    beats=(
        (
            "It belonged to a [little girl|little boy] who took it everywhere. They were always together. But one [windy|busy|cold] day, the child [dropped it|left it behind], and {h} was all alone.",
            "The children of the house loved it. But one day it [fell|was carried off by the wind|was left outside], and nobody noticed. Night came, and {h} waited and waited.",
        ),
        (
            'It lay {p1}. It rained, and the wind blew. "Nobody will ever find me here," thought {h}. Then {f.along} came and looked at it with [big|round|curious] eyes. "You do not belong here," said {f}.',
            'Now {h} lay {p1}, cold and dirty. A few people went by, but they did not look down. Only {f.along} stopped. "You look sad," said {f}. "Where do you come from?"',
        ),
        (
            'a: {h.Name} told {f.them} about its home. "I know that house!" said {f}. "It is not far." It was hard work, but {f} pulled and pushed, and did not give up.',
            'b: "I want to go home," said {h}. {f.Name} thought for a while. "I cannot carry you," {f.they} said, "but I can make so much noise that somebody will come." And that is what {f.they} did.',
        ),
        (
            'a: The next morning there was a happy cry. "There you are! I looked for you everywhere!" {h.Name} was home again. And {f}? From then on, {f.they} got something good to eat at that house every day.',
            "b: And somebody came. It was the child! {h.Name} was washed and [mended|dried], and that night it had the best place in the room. It never forgot {f}.",
        ),
    ),
    short=("{h.Introduced} got lost and lay alone in the cold. {f.Bare} helped it to get home again.",),
    outcome=("{h.Name} was lost, but with the help of {f} it came home again.",),
    wish=("{h.Name} wanted to go home.",),
    lesson=("A good friend helps you to find the way home.",),
)

OBJECT_PLOTS: tuple[Plot, ...] = (TOO_SMALL, SEE_THE_WORLD, FOUND_AGAIN)
