"""More plots for heroes that can walk and talk; slots and branches as in `plots`."""

from __future__ import annotations

from synthetic.plots import Plot

#: Kinds that a wolf would eat, and kinds that can sleep in a hat.
SMALL = tuple(
    "rabbit hare squirrel hedgehog mole mouse duck duckling goose hen chick rooster frog lamb goat pig piglet "
    "kitten cat puppy girl boy child shepherd chipmunk donkey fairy elf gnome dwarf".split()
)
TINY = tuple(
    "mouse hedgehog sparrow robin frog cricket mole chick kitten squirrel duckling chipmunk hamster".split()
)

BIRTHDAY = Plot(
    themes=("a birthday", "a present", "a {h.kind} who looked for a present", "giving", "a surprise"),
    beats=(
        (
            'Tomorrow was the birthday of {h.their} best friend, {f.along}. "What can I give {f.them}?" thought {h}. {h.They} had no money at all.',
            "{h.Name} had a friend, {f.along}, and {f.their} birthday was coming soon. Everybody had a fine present for {f.them}. Only {h} had none.",
        ),
        (
            "c: {h.They} looked {p1} and found an old {o}. It was dirty and bent. {h.They} took it home, washed it, and rubbed it until it shone. It took the whole [night|evening].",
            "a: So {h} decided to make something. {h.They} tried to bake a cake, but it burned. {h.They} tried to paint a picture, but the paint ran. In the end {h.they} picked a few wild flowers {p2} and tied them together with grass.",
            "b: So {h} thought and thought. Then {h.they} remembered a song that {f} loved. {h.They} practiced it {p2} until {h.they} knew every note.",
        ),
        (
            "At the party there were [big boxes|big presents] with ribbons. {h.Name} felt shy. {h.Their} present looked so small. {h.They} almost went home again.",
            "The next day everybody came. One brought a {food}, and another brought a silver cup. {h.Name} stood [in the corner|at the very back] and said nothing.",
        ),
        (
            'But {f} came to {h.them} at once. When {f.they} got {h.their} present, {f.their} eyes grew big. "You made this just for me," {f.they} said. "It is the best present of all." And {h} smiled [from ear to ear|all day long].',
            '"And what do you have for me?" asked {f}. {h.Name} gave what {h.they} had. It was very quiet for a moment. Then {f} hugged {h.them}. "The others bought their presents," {f.they} said, "but yours came from the heart."',
        ),
    ),
    short=(
        "{h.Introduced} had no money for a birthday present, so {h.they} made one for {f.bare}. It was the best present of all.",
    ),
    outcome=("{h.Name} gave {f} a present that came from the heart, and {f} liked it best of all.",),
    wish=("{h.Name} wanted to give {f} a good birthday present.",),
    lesson=("The best presents come from the heart.",),
)

THREE_WISHES = Plot(
    themes=("three wishes", "a wish", "magic", "a {h.kind} and a magic {o}", "a {h.kind} who had a wish"),
    beats=(
        (
            'One day {h} found an old {o} {p1}. When {h.they} touched it, a small voice spoke. "You have set me free," it said. "Now you have three wishes. Choose them well!"',
            'One evening, {h} helped {f.along} to carry some wood. "You are kind," said {f}. "I know a little magic. Tell me three wishes, and they will come true."',
        ),
        (
            '"I wish for a mountain of {h.food}!" cried {h}. And there it was. {h.Name} ate and ate, until {h.their} belly hurt. Then {h.they} said, "I wish I had a house of gold." And there it stood, big and shining.',
            "First {h} wished for a {food} that would never end. It was good on the first day, but on the third day {h.they} could not look at it any more. Then {h.they} wished for a great palace.",
        ),
        (
            "But the golden house was cold and empty. {h.Their} steps echoed in it, and no friend came to visit, because everybody was afraid of the great door. {h.Name} sat in the biggest room and felt [small|lonely].",
            "But in the great rooms {h} felt lost. At night it was so quiet that {h.they} could not sleep. {h.They} missed {h.their} old {h.home} and the friends who used to come by.",
        ),
        (
            '{h.Name} had only one wish left. {h.They} thought for a long time. "I wish that everything were as it was before," {h.they} said at last. And so it was. {h.They} had never been so happy in {h.their} small {h.home}.',
            'So {h} used the last wish. "I want to have my old life back," {h.they} said. The wind blew once, and {h.they} was at home. {h.Their} friends came for supper, and they laughed until late at night.',
        ),
    ),
    short=(
        "{h.Introduced} had three wishes. {h.They} wished for great things, but they did not make {h.them} happy, and with the last wish {h.they} went back to {h.their} old life.",
    ),
    outcome=("{h.Name} used the last wish to get {h.their} old life back, and {h.they} was happy.",),
    wish=("{h.Name} first wished for food and a grand house, and then for {h.their} old life.",),
    lesson=("Great riches do not make us happy.", "Home is better than a palace."),
)

CLEVER = Plot(
    themes=(
        "a clever {h.kind}",
        "a trick",
        "a clever {h.kind} and a hungry wolf",
        "a {h.kind} and a wolf",
        "being clever",
    ),
    beats=(
        (
            'One day a big, hungry wolf stood in front of {h.them}. "I am going to eat you," said the wolf and showed his teeth. {h.Name}\'s knees shook, but {h.they} thought fast.',
            'One evening, on the way home, {h} met a big wolf. "What a nice supper," said the wolf. There was no time to run away.',
        ),
        (
            'a: "Oh, Mr. Wolf," said {h}, "I am so small. {p1.Capital} there is a big cheese. Would you not rather have that?" The wolf licked his lips. "Show me," he said.',
            'b: "Of course you may eat me," said {h}, "but do you not want to dance first? They say that you are the best dancer far and wide." The wolf was very proud. "That is true," he said.',
        ),
        (
            'a: {h.Name} led him to a deep well. The round yellow moon shone in the water. "There it is," said {h}. "You only have to jump." The wolf did not wait. Splash! He jumped right in.',
            "b: So {h} sang, and the wolf danced. {h.They} sang faster and faster. The wolf turned and turned until he was so dizzy that he fell into the mud. Everybody {p2} laughed at him.",
        ),
        (
            "a: It took him a long time to climb out, and there was no cheese at all. By then {h} was safe at home and had locked the door. The wet wolf [sneezed|shivered] and went away. He never came back.",
            "b: {h.Name} did not stay to watch. {h.They} ran home as fast as {h.they} could. That night {h.they} told the story to {f.along}, and they laughed until they had tears in their eyes. The wolf never danced again.",
        ),
    ),
    short=(
        "A wolf wanted to eat {h.bare}. But {h} was clever and played a trick on him, and so {h.they} got away.",
    ),
    outcome=("{h.Name} played a trick on the wolf and got home safely.",),
    wish=("{h.Name} wanted to get away from the wolf.",),
    lesson=("A clever head is better than big teeth.",),
    heroes=SMALL,
)

FIRST_SNOW = Plot(
    themes=("winter", "snow", "the first snow", "a {h.kind} in the snow", "a cold day"),
    beats=(
        (
            'One morning, {h} opened {h.their} eyes, and everything was white. "What is this?" {h.they} cried. {h.They} had never seen snow before.',
            "All night it had been strangely quiet. When {h} looked out in the morning, the whole world was white and soft. It was the first snow of the year.",
        ),
        (
            "{h.They} touched it. It was cold! {h.They} tasted it. It tasted like [nothing at all|water]. Then {h.they} ran and jumped and rolled about {p1}, until {h.they} was white from head to toe.",
            "{h.Name} ran outside. The snow [crunched|squeaked] at every step. {h.They} made a big snowball, and then a bigger one, and put one on top of the other.",
        ),
        (
            'But then {h.they} saw {f.along} {p2}. {f.They} looked sad. "What is the matter?" asked {h}. "I cannot find anything to eat under all this snow," said {f}, "and I am so cold."',
            'Then {h.they} heard a small sneeze. {f.Along} sat {p2} and shivered. "I do not like the snow," said {f}. "It has covered the door of my house."',
        ),
        (
            '"Come with me," said {h}. At home they warmed themselves and ate {h.food} and hot soup. In the afternoon they went out again and played together. "With you," said {f}, "even the snow is warm."',
            "{h.Name} took {f.them} home and gave {f.them} a scarf and something hot to drink. Then they built a snowman together, with a [carrot|stick] for a nose. It stood {p3} until the spring came.",
        ),
    ),
    short=(
        "{h.Introduced} saw snow for the first time. {h.They} played in it, and then {h.they} helped {f.bare} that was cold.",
    ),
    outcome=("{h.Name} helped {f}, who was cold, and they played in the snow together.",),
    wish=("{h.Name} wanted to play in the snow.",),
    lesson=("A warm heart is the best thing in winter.",),
)

TREASURE_MAP = Plot(
    themes=("a treasure", "a treasure map", "a {h.kind} who found a map", "treasure hunting", "an adventure"),
    beats=(
        (
            'One day {h} found an old piece of paper {p1}. It was a map! A red cross was painted on it. "That must be a treasure!" {h.they} cried. {h.They} showed it to {f.along}, and they set off at once.',
            'A strong wind had blown something {p1}. {h.Name} picked it up. It was an old, yellow map with a red cross. "We must find out what is there," {h.they} told {f.along}.',
        ),
        (
            "First the map led them to {mark}. From there they had to take a hundred steps. {f.Name} counted aloud. At seventy {f.they} lost count, and they had to begin again. How they laughed!",
            'The way was long. They crossed [a narrow bridge|a dark tunnel|a cold stream]. "I am tired," said {f}. "Only a little further," said {h}, and {h.they} waited until {f.they} had rested.',
        ),
        (
            "At last they stood at the right place. They dug and dug, until there was a bang. A box! Their hearts beat fast. {h.Name} lifted the lid. But there was no gold in it, only a {o} and a letter.",
            "There was the place with the cross, {p3}. They dug a deep hole and found an iron box. Inside there was no gold and no silver. There was only a {o}, and a small letter.",
        ),
        (
            'The letter said, "You have come so far together. That is the real treasure." They looked at each other and smiled. {h.Name} put the {o} on the shelf, and every time they saw it, they remembered that day.',
            '"To the one who finds this," said the letter, "I hope that you had a friend with you." "I had," said {h} softly. {f.Name} hugged {h.them}. Then they put the box back, with a new letter in it, for the next one.',
        ),
    ),
    short=(
        "{h.Introduced} found a treasure map and followed it with {f.bare}. There was no gold, but they understood that their friendship was the treasure.",
    ),
    outcome=("{h.Name} and {f} found no gold, but they found out how much they liked each other.",),
    wish=("{h.Name} wanted to find the treasure.",),
    lesson=("A friend is the best treasure.",),
)

SEE_THE_SEA = Plot(
    themes=(
        "a journey",
        "a {h.kind} who wanted to travel",
        "a long way",
        "a {h.kind} who wanted to see the world",
        "traveling",
    ),
    beats=(
        (
            "An old traveler had told {h.them} about a lake so blue that the sky was jealous of it. Since then {h} could think of nothing else. One morning {h.they} packed some {h.food}, shut the door, and went off.",
            '{h.Name} had never been far from {mark}. "What is behind the hills?" {h.they} often asked, but nobody knew. So one day {h.they} took a small bag and set out to see for {h.self}.',
        ),
        (
            'On the first day {h.they} met {f.along}. "Where are you going?" asked {f}. "Behind the hills," said {h}. "May I come too?" asked {f}. "Gladly," said {h}. "The way is shorter for two."',
            'The first night was cold, and {h} wanted to turn back. But then {f.along} came along the road, singing. "I am on a journey too," said {f}. "Shall we go together?"',
        ),
        (
            "They traveled for many days. They slept under the stars and washed in the streams. Once it rained so hard that they had to hide under a bridge. {f.Name} told stories, and {h} shared {h.their} {h.food}.",
            "They saw a town with a hundred towers, and a forest where the trees touched the clouds. Once they took the wrong road and had to go all the way back. But they never quarreled.",
        ),
        (
            'And then, on a clear morning, they stood on the last hill. Below them lay the water, wide and blue. They said nothing for a long time. "Was it worth it?" asked {f}. "Every step," said {h}.',
            'At last they reached the top of the last hill. In front of them the whole world lay in the evening sun. "I thought that it would be bigger," said {f}. "I did not know that it would be so beautiful," said {h}.',
        ),
    ),
    short=(
        "{h.Introduced} wanted to see what was behind the hills. {h.They} made a long journey with {f.bare}, and every step was worth it.",
    ),
    outcome=("{h.Name} and {f} reached the last hill together and saw how beautiful the world is.",),
    wish=("{h.Name} wanted to see what was behind the hills.",),
    lesson=("The way is shorter with a friend.",),
)

SICK_FRIEND = Plot(
    themes=(
        "a sick friend",
        "taking care of a friend",
        "a {h.kind} and a sick friend",
        "being kind",
        "a {h.kind} and {f.a}",
    ),
    beats=(
        (
            "Every afternoon {h} played with {f.along} near {mark}. But one day {f} did not come. {h.Name} waited and waited. Then {h.they} went to see where {f.they} was.",
            '{h.Their} best friend was {f.along}. One day {f} stayed in bed. {f.Their} head was hot, and {f.they} did not want to eat. "I feel so weak," {f.they} said in a small voice.',
        ),
        (
            '{f.Name} was ill. "You need tea made of the white flowers," said the old doctor, "but they grow far away, {p1}." "Then I will go and get them," said {h}.',
            '{h.Name} sat down beside {f.them}. "What can I do for you?" {h.they} asked. "I would like some hot soup," said {f}, "but there is nothing left in the house." So {h} went out to look for something {p1}.',
        ),
        (
            "It was a long way, and it [rained|grew dark] soon. {h.Name} fell twice and hurt {h.self}. {h.They} was tired, but {h.they} thought of {f} and went on. At last {h.they} found what {h.they} needed.",
            "{h.They} looked {p2} and then {p3}. It took all day. The wind was cold, and {h} wished {h.they} were at home. But a friend was waiting, and so {h.they} did not give up.",
        ),
        (
            'That night {f} drank it while it was hot. {h.Name} stayed until morning and told one story after another. When the sun came up, {f} sat up and smiled. "I am well again," {f.they} said, "because I have a friend like you."',
            'Soon there was a good smell in the room. {f.Name} ate a little, and then a little more. After three days {f.they} was well. "When you are ill," {f.they} told {h}, "I will do the same for you."',
        ),
    ),
    short=(
        "When {f.bare} was ill, {h.introduced} went a long way to get what {f.they} needed. Soon {f.they} was well again.",
    ),
    outcome=("{h.Name} took care of {f}, and soon {f} was well again.",),
    wish=("{h.Name} wanted to help {h.their} sick friend.",),
    lesson=("A friend in need is a friend indeed.",),
)

WIND_AND_HAT = Plot(
    themes=("the wind", "a hat", "a {h.kind} and the wind", "a windy day", "a {h.kind} with a {colour} hat"),
    beats=(
        (
            '{h.Name} had a {colour} hat and was very proud of it. One windy day, the wind took it and carried it away. "Stop!" cried {h}. "That is my hat!" But the wind only laughed and blew harder.',
            "One day {h} put on {h.their} new {colour} hat and went out. Whoosh! A gust of wind came, and the hat was gone. It flew over {mark} like a bird.",
        ),
        (
            "{h.Name} ran after it. The hat landed {p1}. {h.They} almost had it, but then the wind blew again, and off it flew. Next it landed {p2}. And again the wind was faster.",
            "{h.They} ran until {h.they} was out of breath. Once {h.they} almost touched it. But the hat rolled away {p1}, turned around twice, and flew off again.",
        ),
        (
            'Then the wind lay down, and the hat came down too, {p3}. When {h} got there, {f.along} was sitting in it. "What a fine bed somebody has sent me!" said {f}. "I had no place to sleep, and now I am so warm."',
            'In the evening the wind grew tired. {h.Name} found the hat at last, {p3}. But it was not empty. {f.Along} had crept into it and looked at {h} with big eyes. "Please let me stay," said {f}. "It is so cold outside."',
        ),
        (
            '{h.Name} wanted to be angry, but {h.they} could not. "Keep it," {h.they} said. "You need it more than I do." That winter {f} made {h.them} a warm scarf to say thank you. It was {colour}, just like the hat.',
            '{h.Name} thought for a moment. "You may sleep in it at night," {h.they} said, "and I will wear it by day." {f.Name} nodded happily. And so the hat had two owners, and it was never lonely.',
        ),
    ),
    short=(
        "The wind took the {colour} hat of {h.introduced}. When {h.they} found it, {f.bare} was sleeping in it, and {h.they} let {f.them} stay.",
    ),
    outcome=("{h.Name} found the hat again, and {h.they} shared it with {f}.",),
    wish=("{h.Name} wanted to get {h.their} hat back.",),
    lesson=("We can share even the things we love.",),
    friends=TINY,
)

SONG = Plot(
    themes=(
        "music",
        "a song",
        "a {h.kind} who liked to sing",
        "a {h.kind} with a strange voice",
        "being different",
    ),
    beats=(
        (
            '{h.Name} loved to sing. But {h.their} voice was deep and rough, and the others shook their heads. "Please stop," they said. "It sounds awful." So {h} sang only when {h.they} was alone, {p1}.',
            "There was a choir in that place, and {h} wanted to sing in it. But when {h.they} opened {h.their} mouth, a very strange sound came out. Everybody laughed. {h.Name} went away with {h.their} head down.",
        ),
        (
            "One evening a thick fog came. {f.Along} had gone out alone and did not come back. Everybody called, but their voices were too thin for the fog.",
            "Some days later, {f.along} got lost in the fog. The whole choir called and sang, but their fine voices did not carry far enough.",
        ),
        (
            '"Let me try," said {h}. {h.They} took a deep breath and sang as loudly as {h.they} could. The deep, rough song rolled through the fog like thunder. It could be heard far away, {p2} and beyond.',
            "Then {h} climbed up to {mark} and began to sing. {h.Their} song was so strong that the leaves shook. {h.They} sang for an hour without a rest.",
        ),
        (
            'And out of the fog came {f}. "I heard you!" {f.they} cried. "I followed your song all the way home." From that day on, nobody laughed at {h} any more. And whenever there was fog, they asked {h.them} to sing.',
            'Far away, {f} heard it and followed the sound, step by step, until {f.they} was home. "That was the most beautiful song I ever heard," said {f}. Now {h} sings in the choir, in the first row.',
        ),
    ),
    short=(
        "Everybody laughed at the rough voice of {h.introduced}. But when {f.bare} got lost in the fog, only that voice was strong enough to call {f.them} home.",
    ),
    outcome=("{h.Name}'s strong voice led {f} home through the fog, and nobody laughed at it any more.",),
    wish=("{h.Name} wanted to sing.",),
    lesson=("What makes you different can be your strength.",),
)

QUARREL = Plot(
    themes=("two friends who quarreled", "a quarrel", "making peace", "a {h.kind} and {f.a}", "saying sorry"),
    beats=(
        (
            '{h.Name} and {f.along} were good friends and did everything together. But one day they found a {food}, and both of them wanted it. "I saw it first!" said {h}. "No, I did!" said {f}.',
            '{h.Name} lived next door to {f.along}, and they were the best of friends. But one day they had a quarrel about a {o}. "It is mine!" said {h}. "You are mean!" said {f}.',
        ),
        (
            'They shouted so loudly that [the birds flew away|everybody looked out of the window]. Then {f} went home and shut the door with a bang. "I do not need {f.them}," said {h}. But {h.their} voice was not quite steady.',
            "They did not speak for three days. {h.Name} sat {p1}, and {f} sat {p2}, and both of them looked the other way. The days were very long.",
        ),
        (
            'On the fourth day {h} saw a rainbow above {mark}. "Look!" {h.they} wanted to say. But nobody was there. Then {h.they} knew that it is no fun to see a rainbow alone.',
            'In the night {h} could not sleep. {h.They} remembered how {f} had once [shared {f.their} last bread with {h.them}|carried {h.them} home in the rain]. "What a fool I am," {h.they} thought.',
        ),
        (
            '{h.They} ran to {f}\'s door. It opened before {h.they} could knock. "I am sorry," both of them said at the same moment. Then they laughed, and everything was good again.',
            'The next morning {h} went to {f}. "I would rather have you than be right," {h.they} said. {f.Name} swallowed hard. "So would I," {f.they} said. And they went off to play.',
        ),
    ),
    short=(
        "{h.Introduced} and {f.bare} had a quarrel and did not speak for days. Then both of them said that they were sorry, and they were friends again.",
    ),
    outcome=("{h.Name} and {f} said sorry to each other and were friends again.",),
    wish=("{h.Name} wanted to be friends with {f} again.",),
    lesson=("A friend is more important than being right.",),
)

MORE_PLOTS: tuple[Plot, ...] = (
    BIRTHDAY,
    THREE_WISHES,
    CLEVER,
    FIRST_SNOW,
    TREASURE_MAP,
    SEE_THE_SEA,
    SICK_FRIEND,
    WIND_AND_HAT,
    SONG,
    QUARREL,
)
