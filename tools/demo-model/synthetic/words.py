"""The lexicon: who can be in a story, where it can happen, and what can be lost, made or wished for."""

from __future__ import annotations

#: kind: (habitat, home, food)
ANIMALS: dict[str, tuple[str, str, str]] = {
    row.split(":")[0]: tuple(row.split(":")[1].split(", "))  # type: ignore[misc]
    for row in """
fox:forest, den, blackberries
rabbit:meadow, burrow, clover
hare:meadow, nest of grass, clover
bear:forest, cave, honey
wolf:forest, den, stew
deer:forest, clearing, fresh leaves
squirrel:forest, hollow tree, acorns
hedgehog:garden, pile of leaves, apples
badger:forest, sett, mushrooms
mole:meadow, tunnel, roots
mouse:farm, hole in the wall, cheese
rat:town, cellar, crumbs
owl:forest, hollow oak, seeds
crow:farm, nest, corn
raven:mountain, nest, bread
sparrow:town, nest, crumbs
robin:garden, nest, berries
swallow:farm, nest under the roof, seeds
eagle:mountain, nest on the cliff, fish
hawk:mountain, nest, fish
duck:river, nest in the reeds, water plants
duckling:river, nest in the reeds, water plants
goose:farm, barn, grain
swan:river, island of reeds, water plants
hen:farm, henhouse, corn
chick:farm, henhouse, corn
rooster:farm, henhouse, corn
turkey:farm, yard, corn
peacock:garden, tree, seeds
pigeon:town, roof, crumbs
parrot:jungle, tall tree, nuts
stork:village, nest on the chimney, fish
heron:river, nest, fish
woodpecker:forest, hole in a tree, seeds
hummingbird:garden, tiny nest, nectar
penguin:ice, hut of snow, fish
seal:ice, rock, fish
walrus:ice, rock, fish
polar bear:ice, snow cave, fish
whale:sea, bay, sea plants
dolphin:sea, bay, fish
shark:sea, reef, fish
octopus:sea, cave under the rocks, shells
crab:sea, hole in the sand, seaweed
turtle:sea, quiet beach, seaweed
starfish:sea, tide pool, seaweed
fish:river, stone house, water plants
goldfish:pond, glass bowl, crumbs
sea horse:sea, coral garden, sea plants
lobster:sea, cave, seaweed
seagull:sea, nest on the rocks, fish
pelican:sea, pier, fish
frog:pond, lily pad, soup
toad:garden, stone, soup
tadpole:pond, lily pad, water plants
snail:garden, shell, lettuce
worm:garden, tunnel, leaves
caterpillar:garden, leaf, leaves
butterfly:garden, flower, nectar
bee:garden, hive, honey
ladybug:garden, leaf, dew
ant:garden, anthill, crumbs
spider:house, web, crumbs
cricket:meadow, grass house, grass
grasshopper:meadow, grass house, grass
firefly:meadow, hollow reed, dew
dragonfly:pond, reed, dew
beetle:forest, log, leaves
bat:mountain, cave, fruit
cat:house, basket, fish
kitten:house, basket, milk
dog:house, kennel, bones
puppy:house, kennel, biscuits
hamster:house, cage, seeds
guinea pig:house, hutch, carrots
cow:farm, barn, hay
calf:farm, barn, milk
bull:farm, barn, hay
horse:farm, stable, oats
pony:farm, stable, oats
donkey:farm, stable, carrots
goat:mountain, shed, grass
sheep:farm, fold, grass
lamb:farm, fold, grass
pig:farm, sty, apples
piglet:farm, sty, apples
camel:desert, tent, dates
lizard:desert, rock, dates
snake:desert, hole, eggs
elephant:jungle, clearing, bananas
lion:savanna, cave, soup
lioness:savanna, cave, soup
tiger:jungle, cave, soup
leopard:jungle, tree, soup
monkey:jungle, tall tree, bananas
gorilla:jungle, nest, fruit
giraffe:savanna, grove, leaves
zebra:savanna, plain, grass
hippo:river, mud bank, grass
rhino:savanna, plain, grass
crocodile:river, mud bank, fish
kangaroo:desert, camp, grass
koala:forest, tall tree, leaves
panda:forest, bamboo grove, bamboo
sloth:jungle, branch, leaves
otter:river, bank, fish
beaver:river, lodge, bark
raccoon:forest, hollow log, fruit
skunk:forest, burrow, berries
moose:forest, clearing, leaves
reindeer:ice, stable, moss
porcupine:forest, cave, bark
chipmunk:forest, burrow, nuts
ostrich:savanna, nest, seeds
flamingo:pond, nest of mud, shrimps
chameleon:jungle, branch, fruit
""".strip().split("\n")
}

#: Animals that are always she or always he.
GENDERS = {"hen": "she", "cow": "she", "lioness": "she", "rooster": "he", "bull": "he", "peacock": "he"}

#: kind: (gender or "any", habitat, home, food)
PEOPLE: dict[str, tuple[str, str, str, str]] = {
    row.split(":")[0]: tuple(row.split(":")[1].split(", "))  # type: ignore[misc]
    for row in """
girl:she, village, house, bread
boy:he, village, house, bread
child:any, village, house, bread
princess:she, castle, tower, cake
prince:he, castle, tower, cake
king:he, castle, palace, cake
queen:she, castle, palace, cake
knight:any, castle, castle, bread
farmer:any, farm, farmhouse, soup
baker:any, village, bakery, bread
miller:any, village, mill, bread
fisherman:he, sea, hut, fish
sailor:any, sea, ship, fish
captain:any, sea, ship, fish
pirate:any, sea, ship, fish
lighthouse keeper:any, sea, lighthouse, fish
shepherd:any, mountain, cottage, cheese
shepherd boy:he, mountain, cottage, cheese
woodcutter:any, forest, cabin, soup
gardener:any, garden, cottage, apples
tailor:any, town, shop, soup
cobbler:any, town, shop, soup
clockmaker:any, town, shop, soup
toymaker:any, town, workshop, soup
carpenter:any, town, workshop, bread
blacksmith:any, village, forge, bread
painter:any, town, attic, bread
musician:any, town, attic, bread
singer:any, town, house, soup
dancer:any, town, house, fruit
cook:any, castle, kitchen, soup
doctor:any, town, house, soup
teacher:any, village, school, apples
nurse:any, town, house, soup
postman:he, village, cottage, bread
mail carrier:any, village, cottage, bread
firefighter:any, town, fire station, soup
train driver:any, town, little house, bread
bus driver:any, town, little house, bread
astronaut:any, sky, rocket, biscuits
inventor:any, town, workshop, biscuits
old man:he, village, cottage, soup
old woman:she, village, cottage, soup
grandmother:she, village, cottage, cake
grandfather:he, village, cottage, cake
beggar:any, town, bench, bread
merchant:any, town, house, dates
soldier:any, castle, camp, bread
hunter:any, forest, cabin, stew
beekeeper:any, garden, cottage, honey
librarian:any, town, library, biscuits
juggler:any, town, wagon, bread
clown:any, town, wagon, cake
magician:any, town, wagon, cake
""".strip().split("\n")
}

#: kind: (habitat, home, food)
FANTASY: dict[str, tuple[str, str, str]] = {
    row.split(":")[0]: tuple(row.split(":")[1].split(", "))  # type: ignore[misc]
    for row in """
dragon:mountain, cave, roasted nuts
unicorn:forest, clearing, clover
giant:mountain, stone house, bread
fairy:garden, flower, honey
elf:forest, tree house, berries
dwarf:mountain, cave, soup
gnome:garden, mushroom house, berries
wizard:castle, tower, soup
witch:forest, crooked house, soup
mermaid:sea, coral cave, sea plants
ghost:castle, attic, biscuits
monster:mountain, cave, pancakes
troll:river, bridge, soup
goblin:forest, burrow, mushrooms
robot:town, workshop, oil
snowman:village, snowy garden, snow
scarecrow:farm, field, straw
dinosaur:jungle, valley, leaves
alien:sky, silver ship, star dust
phoenix:mountain, nest of gold, seeds
""".strip().split("\n")
}

#: kind: habitat
OBJECTS: dict[str, str] = {
    row.split(":")[0]: row.split(":")[1]
    for row in """
boat:sea
ship:sea
paper boat:river
train:town
car:town
bus:town
truck:town
tractor:farm
fire truck:town
bicycle:town
airplane:sky
balloon:town
kite:meadow
rocket:sky
teapot:house
cup:house
spoon:house
lamp:house
candle:house
clock:house
chair:house
broom:house
pencil:house
book:house
teddy bear:house
doll:house
toy soldier:house
ball:garden
shoe:house
hat:town
umbrella:town
key:house
bell:village
drum:town
violin:town
coin:town
lantern:village
windmill:village
bridge:river
cloud:sky
star:sky
moon:sky
raindrop:sky
snowflake:sky
tree:forest
pine tree:forest
acorn:forest
leaf:forest
seed:garden
flower:garden
rose:garden
sunflower:garden
pumpkin:farm
apple:garden
mushroom:forest
stone:river
pebble:river
shell:sea
snowball:village
scarf:house
mitten:village
pillow:house
button:house
crayon:house
""".strip().split("\n")
}

#: habitat: (where phrase, search places, landmark, neighbours)
HABITATS: dict[str, tuple[str, list[str], str, list[str]]] = {
    "forest": (
        "in [a quiet|a green|a deep|an old|a big] forest|at the edge of [the|a] forest|deep in the woods",
        [
            "under the old oak",
            "behind the mossy rock",
            "beside the stream",
            "inside a hollow log",
            "among the ferns",
            "under the fallen leaves",
            "near the blackberry bushes",
        ],
        "the old oak",
        ["squirrel", "owl", "hedgehog", "badger", "deer", "woodpecker", "fox", "bear", "raccoon"],
    ),
    "meadow": (
        "in [a wide|a sunny|a green] meadow|in a field full of flowers",
        [
            "in the tall grass",
            "among the daisies",
            "under the hawthorn bush",
            "by the wooden fence",
            "behind the haystack",
            "near the molehill",
        ],
        "the hawthorn bush",
        ["rabbit", "mole", "cricket", "hare", "grasshopper", "bee"],
    ),
    "farm": (
        "on [a small|a busy|an old] farm|on a farm [by the river|near the hills]",
        [
            "in the barn",
            "behind the henhouse",
            "under the cart",
            "beside the well",
            "in the hay",
            "near the pond",
            "by the garden gate",
        ],
        "the red barn",
        ["hen", "goose", "cow", "donkey", "pig", "sheep", "horse", "dog", "cat"],
    ),
    "garden": (
        "in [a small|a sunny|a quiet|an old] garden|in a garden [behind a white house|full of flowers]",
        [
            "under the rose bush",
            "behind the watering can",
            "in the vegetable patch",
            "beside the fence",
            "under the apple tree",
            "between the flower pots",
        ],
        "the apple tree",
        ["snail", "bee", "ladybug", "robin", "butterfly", "toad", "hedgehog"],
    ),
    "river": (
        "by [a slow|a wide|a shining|a clear] river|on the bank of a [river|stream]",
        [
            "in the reeds",
            "under the bridge",
            "behind the big stone",
            "beside the willow",
            "in the soft mud",
            "near the waterfall",
        ],
        "the willow",
        ["otter", "duck", "frog", "beaver", "heron", "fish", "swan"],
    ),
    "pond": (
        "in [a small|a quiet|a green] pond|at the edge of a [small|quiet] pond",
        [
            "under the lily pads",
            "in the reeds",
            "behind the smooth stone",
            "beside the sunken branch",
            "in the soft mud",
        ],
        "the smooth stone",
        ["frog", "duck", "dragonfly", "fish", "turtle"],
    ),
    "sea": (
        "by the sea|near the [blue|wide|cold] sea|on [a small|a windy] island in the sea",
        [
            "among the rocks",
            "in the tide pools",
            "under the seaweed",
            "behind the old anchor",
            "on the white sand",
            "beside the wooden pier",
        ],
        "the old pier",
        ["crab", "seagull", "turtle", "seal", "dolphin", "octopus", "pelican"],
    ),
    "ice": (
        "in the land of ice and snow|on a big piece of ice|in the cold, white north",
        [
            "behind the snow hill",
            "in the ice cave",
            "near the fishing hole",
            "under the soft snow",
            "beside the frozen lake",
        ],
        "the snow hill",
        ["penguin", "seal", "walrus", "polar bear", "reindeer"],
    ),
    "mountain": (
        "[high|far] up in the mountains|on the side of a [tall|steep] mountain",
        [
            "in the dark cave",
            "behind the gray boulder",
            "beside the waterfall",
            "under the pine tree",
            "along the narrow path",
            "near the cliff",
        ],
        "the gray boulder",
        ["goat", "eagle", "raven", "bear", "bat"],
    ),
    "desert": (
        "in [a hot|a wide|a golden] desert|at the edge of the desert",
        [
            "behind the sand hill",
            "under the palm tree",
            "beside the well",
            "near the red rocks",
            "in the shade of a cactus",
        ],
        "the palm tree",
        ["camel", "lizard", "snake", "kangaroo"],
    ),
    "jungle": (
        "in [a green|a hot|a noisy|a thick] jungle|deep in the jungle",
        [
            "behind the big leaves",
            "under the banana tree",
            "beside the brown river",
            "among the vines",
            "near the waterfall",
            "inside a hollow tree",
        ],
        "the banana tree",
        ["monkey", "parrot", "elephant", "tiger", "sloth", "chameleon"],
    ),
    "savanna": (
        "on the [wide|dry|golden] plain|in the land of tall yellow grass",
        [
            "in the yellow grass",
            "under the thorn tree",
            "beside the water hole",
            "behind the red rock",
            "near the termite hill",
        ],
        "the thorn tree",
        ["lion", "zebra", "giraffe", "rhino", "ostrich", "elephant"],
    ),
    "village": (
        "in [a small|a quiet|a little] village|in a village [near the forest|by the river|at the foot of a hill]",
        [
            "behind the bakery",
            "beside the well",
            "under the stone bridge",
            "in the market square",
            "near the mill",
            "by the church",
        ],
        "the well",
        ["dog", "cat", "goose", "stork", "donkey"],
    ),
    "town": (
        "in [a busy|a small|an old|a noisy] town|in a town [by the sea|with many bridges]",
        [
            "behind the station",
            "in the park",
            "under the bench",
            "near the fountain",
            "beside the toy shop",
            "at the corner of the street",
        ],
        "the fountain",
        ["pigeon", "cat", "dog", "sparrow", "rat"],
    ),
    "castle": (
        "in [a tall|an old|a gray|a grand] castle|in a castle [on a hill|by the sea]",
        [
            "in the great hall",
            "at the top of the tower",
            "behind the throne",
            "in the kitchen",
            "in the rose garden",
            "under the long table",
        ],
        "the tall tower",
        ["cat", "dog", "mouse", "raven", "horse"],
    ),
    "house": (
        "in [a small|a cozy|a tall|a yellow] house|in a house [at the end of the street|near the park]",
        [
            "under the bed",
            "behind the door",
            "on the kitchen shelf",
            "in the wooden box",
            "beside the stove",
            "under the blue blanket",
        ],
        "the kitchen window",
        ["cat", "dog", "mouse", "hamster", "spider"],
    ),
    "sky": (
        "high up in the sky|far above the [clouds|hills]|in the wide blue sky",
        [
            "behind a gray cloud",
            "above the mountain",
            "over the church tower",
            "beside the moon",
            "at the end of the rainbow",
        ],
        "the highest cloud",
        ["swallow", "eagle", "pigeon", "stork"],
    ),
}

GIRL_NAMES = (
    "Lily Mia Anna Rosa Nora Ella Ruby Ivy Clara Maya Lucy Emma Sara Tess Wren Hazel Molly June Ada Greta "
    "Zoe Nina Lena Olive Pia Tara Kira Dora Elsie Fern Bella Daisy Poppy Sophie Amy Jane Kate Sue Mary Alice "
    "Rose Mina Luna Stella Willa Edith Flora Greta Hanna Iris Josie Kitty Lola Mabel Nell Penny Tilly Una "
    "Vera Amina Leila Priya Asha Yuki Mei Zara Ines Carla Marta Freya Astrid Saskia Oona Thea Lotte"
).split()
BOY_NAMES = (
    "Tom Ben Sam Max Leo Jack Tim Finn Theo Oscar Hugo Milo Otto Felix Noah Luke Peter Henry Will George "
    "Charlie Billy Fred Toby Joe Dan Eli Ned Gus Jasper Rufus Barnaby Oliver Arthur Anton Emil Karl Lars "
    "Nils Paul Rob Simon Ted Victor Walter Amir Omar Ravi Kofi Juma Kenji Hiro Luca Marco Pablo Diego Ivan "
    "Boris Sven Erik Jonas Alfie Archie Caleb Dexter Edgar Frank Harry Jim Kit Lenny Monty Nico"
).split()
CREATURE_NAMES = (
    "Pip Fenn Bramble Hazel Clover Moss Pepper Biscuit Button Thistle Nutmeg Rusty Sandy Coco Bubbles Splash "
    "Ripple Pebble Sunny Misty Flick Dot Tock Tumble Hop Skip Whiskers Patch Socks Shadow Snowy Ginger Honey "
    "Maple Acorn Willow Rowan Ash Berry Plum Peach Olive Sage Basil Ziggy Zuzu Momo Kiko Tiki Lulu Bobo "
    "Nibbles Scout Comet Star Twig Fern Juniper Marlo Bruno Tilda Wilbur Percy Mabel Gilbert Hattie Otis Dusty "
    "Fidget Quill Puddle Rumble Tansy Wisp Ember Flint Cricket Sparky Beep Toot Pom Zip"
).split()
SMALL_ADJECTIVES = "little little little small young tiny".split()
ADJECTIVES = (
    "little little little young small brave curious clever shy gentle kind cheerful lonely proud old lazy "
    "quiet friendly sleepy hungry careful playful"
).split()
COLOURS = "red blue green yellow white black brown orange purple pink gray golden silver".split()

TREASURES = (
    "[red|blue|green] ball|[red|blue|yellow] kite|silver bell|golden key|wooden flute|[red|blue|woolen] scarf|"
    "[blue|warm|green] hat|shiny button|small drum|toy boat|tin whistle|glass marble|picture book|"
    "[yellow|red] umbrella|smooth stone|paper star|music box|little lantern|wooden spoon|blue feather|"
    "pocket watch|silver coin|teddy bear|woolen blanket|[red|green] mitten|brass compass|pretty shell"
)
FOODS = (
    "apple pie|loaf of bread|honey cake|bowl of berries|pot of soup|basket of apples|plate of pancakes|"
    "bag of nuts|big pumpkin|jar of honey|chocolate cake|basket of plums|ripe melon|sweet potato|"
    "box of biscuits|bunch of grapes"
)
