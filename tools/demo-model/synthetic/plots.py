"""Plots for heroes that can walk and talk: animals, people, creatures of fancy.

Slots: `h` the hero, `f` a second character (of another gender, so that pronouns stay clear),
`o` a thing, `food` something to eat, `place` where it is, `p1` `p2` `p3` places nearby, `mark` the
landmark, `colour`. Every list holds alternatives for one paragraph; those that begin with a letter
and a colon belong to one branch of the plot and only go with others of that letter.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    """A story in templates: paragraphs, a two-sentence version, and answers about it.

    `heroes` and `friends`, where given, are the only kinds that fit.
    """

    themes: tuple[str, ...]
    beats: tuple[tuple[str, ...], ...]
    short: tuple[str, ...]
    outcome: tuple[str, ...]
    wish: tuple[str, ...]
    lesson: tuple[str, ...]
    heroes: tuple[str, ...] = ()
    friends: tuple[str, ...] = ()

    def suits(self, hero: str, friend: str) -> bool:
        """Whether these kinds fit; an empty friend has not been chosen yet."""
        return (not self.heroes or hero in self.heroes) and (
            not friend or not self.friends or friend in self.friends
        )

    def branches(self) -> list[str]:
        """Letters of the branches, or one empty string."""
        found = {text[0] for beat in self.beats for text in beat if text[1:3] == ": "}
        return sorted(found) or [""]

    def choices(self, beat: int, branch: str) -> list[str]:
        """Alternatives for one paragraph that fit the branch, without their letters."""
        texts = [(t[0], t[3:]) if t[1:3] == ": " else (branch, t) for t in self.beats[beat]]
        return [text for letter, text in texts if letter == branch]


LOST_THING = Plot(
    themes=(
        "a lost {o}",
        "a {h.kind} who lost {h.their} {o}",
        "a {h.kind} and a {o}",
        "looking for something",
    ),
    beats=(
        (
            "{h.They} had a {o}, and {h.they} loved it more than anything else. [Every morning|Every evening|All day long] {h.they} [carried it about|kept it close|played with it]. But one [cold|windy|bright|rainy|gray] morning, the {o} was gone.",
            'One [morning|day|evening], {h} woke up and looked for {h.their} {o}. It was not [in its place|where it should be|beside the bed]. "[Oh no|Oh dear]! My {o} is gone!" {h.they} cried.',
            "{h.Name} had only one treasure: a {o}. One day {h.they} came home, and the {o} was not there. {h.They} felt [very sad|cold inside|like crying].",
        ),
        (
            "First {h} looked {p1}. There was nothing but [dust|a dry leaf|an old stick|a cold stone]. Then {h.they} looked {p2}. There was nothing there either. {h.Their} heart grew heavy.",
            '{h.They} looked {p1}. No {o}. {h.They} looked {p2}. Still no {o}. "[Where can it be|Where did I leave it]?" {h.they} [whispered|asked|said].',
            "{h.They} searched {p1} and {p2}. {h.They} searched until the sun was [low|red|almost gone]. But the {o} was nowhere to be found.",
        ),
        (
            'Then {h.they} met {f.along}. "Why do you look so sad?" asked {f}. "I have lost my {o}," said {h}. "[Two can look better than one|I will help you look|Let us look together]," said {f}.',
            'Just then, {f.along} came by. "What are you looking for?" {f.they} asked. {h} told {f.them} about the {o}. "[I think I saw it|I saw something like that] {p3}," said {f}.',
            'At last {h.they} sat down and cried. {f.Along} heard {h.them}. "Do not cry," said {f}. "When I lose something, I think of where I was happy. Where were you happy yesterday?"',
        ),
        (
            'Together they went and looked {p3}. There it was! The {o} lay there, [a little wet|a little dusty|quite safe]. {h} [laughed with joy|jumped for joy|hugged it tightly]. "Thank you," {h.they} said to {f}. "[You are a true friend|I could not have found it alone]."',
            "{h} ran and looked {p3}. Something [shone|lay|was hiding] there. It was the {o}! {h.They} picked it up and danced. Then {h.they} [gave {f} a big hug|shared {h.their} supper with {f}], and they [became|were] good friends from that day on.",
            '{h} thought for a moment. Then {h.they} remembered, and ran to look {p3}. The {o} was right there! "I found it! I found it!" {h.they} shouted. {f.Name} was just as happy as {h}.',
        ),
    ),
    short=(
        "{h.Introduced} lost {h.their} {o} and looked for it everywhere. With the help of {f.bare}, {h.they} found it {p3}.",
    ),
    outcome=("{h.Name} lost {h.their} {o}, but {f} helped {h.them}, and in the end {h.they} found it {p3}.",),
    wish=("{h.Name} wanted to find {h.their} {o}.",),
    lesson=("Two can look better than one.", "It is good to ask for help."),
)

HELP_RETURNED = Plot(
    themes=(
        "kindness",
        "helping others",
        "a {h.kind} who helped {f.a}",
        "a {h.kind} and {f.a}",
        "friendship",
    ),
    beats=(
        (
            'One [cold|hot|windy|sunny] day, {h} heard a [small|weak|sad] voice. "Help! Please help me!" It came from somewhere {p1}. {h} went to look and found {f.along}. {f.They} was caught [under a heavy branch|between two stones|in an old net].',
            'One [morning|afternoon], {h} saw {f.along} {p1}. {f.They} was [shivering and hungry|tired and hungry|lost and afraid]. "Can you help me?" {f.they} asked. "I have not eaten for two days."',
        ),
        (
            'Others had gone by and had not stopped. But {h} [could not do that|did not think twice]. {h.They} did all {h.they} could, and then gave {f.them} [some water|some food|a warm place to rest]. "Thank you," said {f}. "I will not forget this."',
            '{h.Name} was a little afraid, but {h.they} helped {f.them} all the same. {h.They} brought {f.them} to {h.their} {h.home} and gave {f.them} [something warm to drink|half of {h.their} supper]. "One day I will help you too," said {f}. {h.Name} smiled. "[You do not have to|That is what friends are for]," {h.they} said.',
        ),
        (
            "a: [Many days later|That winter|A week later], a great storm came. [The wind howled and the rain fell hard.|The water rose and rose.] {h} was on the way home and could not see the path. {h.They} [called out|shouted], but the wind was too loud.",
            "b: [Some time later|The next spring|Not long after], {h} fell into [a deep hole|an old trap|the cold water]. {h.They} tried to get out, but it was too [deep|hard|slippery]. {h.They} called and called. Nobody came.",
        ),
        (
            'a: Then {h.they} heard a voice {h.they} knew. It was {f}! "Hold on to me," said {f}. Step by step, {f.they} brought {h} safely home. That night they sat together {p2} and [told stories|shared a warm meal|laughed about it].',
            'b: But {f} heard. {f.They} came as fast as {f.they} could and [pulled {h} out|held out a long branch]. "You helped me when I was alone," {f.they} said. "Now it is my turn." From then on, the two were the best of friends.',
        ),
    ),
    short=(
        "{h.Introduced} helped {f.bare} that was in trouble. Later, when {h} was in danger, {f.they} came and saved {h.them}.",
    ),
    outcome=(
        "{h.Name} helped {f.thelong}, and later {f.they} saved {h.them} in return. They became good friends.",
    ),
    wish=("{h.Name} wanted to help {f.thelong}.",),
    lesson=("Kindness comes back to those who give it.", "A kind heart is never alone."),
)

SHARING = Plot(
    themes=(
        "sharing",
        "a {food}",
        "a {h.kind} who learned to share",
        "a greedy {h.kind}",
        "a {h.kind} and a {food}",
    ),
    beats=(
        (
            'One day {h} found a {food} {p1}. It smelled [wonderful|sweet|so good]. "This is all for me," {h.they} thought, and {h.they} [hid it|carried it away] so that nobody would see it.',
            'One [fine|cold|sunny] morning, {h} got a {food} as a present. It was [big|very big|the biggest {h.they} had ever seen]. "I will eat it all by myself," {h.they} said, and [sat down|hid] {p1}.',
        ),
        (
            'Soon {f.along} came by. "What do you have there?" {f.they} asked. "Nothing," said {h}. {f.Name} looked hungry, but {f.they} only [nodded|smiled|said good day] and went away. {h.Name} began to eat. But [somehow it did not taste good|the food did not taste as sweet as before].',
            '{f.Along} saw {h.them} and stopped. "May I have a little bit?" asked {f}. "I am very hungry." "No," said {h}. "It is mine." {f.Name} went away [with a sad face|slowly]. {h.Name} ate and ate, but {h.they} felt [lonely|strange|heavy] inside.',
        ),
        (
            '{h} thought about it for a while. It was [quiet|too quiet] {p1}, and there was nobody to talk to. Then {h.they} got up and ran after {f}. "Wait!" {h.they} called. "I was not kind. Please come and eat with me."',
            '"What is the use of a {food} if I must eat it alone?" {h.they} thought. So {h.they} [went to find|looked for] {f}. "I am sorry," {h.they} said. "There is enough for two."',
        ),
        (
            'They sat down together and shared the {food}. They talked and laughed until the [stars came out|sun went down]. "You know," said {h}, "it tastes much better now."',
            "{f.Name} was so happy that {f.they} [sang a little song|danced around {h.them}]. They ate until they were full, and there was even some left for the next day. After that, {h} always shared {h.their} food.",
        ),
    ),
    short=(
        "{h.Introduced} wanted to keep a {food} for {h.self}, but eating alone made {h.them} sad. So {h.they} shared it with {f.bare}, and it tasted much better.",
    ),
    outcome=("{h.Name} learned to share. {h.They} ate the {food} together with {f}, and both were happy.",),
    wish=("At first {h} wanted to keep the {food} all for {h.self}.",),
    lesson=("Food tastes better when it is shared.", "Sharing makes two people happy."),
)

AFRAID = Plot(
    themes=(
        "courage",
        "being brave",
        "a {h.kind} who was afraid of the dark",
        "a brave {h.kind}",
        "a {h.kind} who was afraid",
    ),
    beats=(
        (
            "But {h} had a secret. {h.They} was afraid of the dark. When the sun went down, {h.they} [hid in {h.their} {h.home}|closed {h.their} eyes tightly|would not go out], and {h.their} heart beat fast.",
            '{h.Name} was good at many things, but {h.they} was afraid of [the night|the dark]. Every shadow looked like a [monster|giant] to {h.them}. "I wish I were brave," {h.they} said.',
        ),
        (
            'a: One night, {h.they} heard somebody crying outside. It was {f.along}. "I cannot find my way home," {f.they} said. "It is so dark, and I am all alone." {h.Name} looked at the black night and [trembled|shivered].',
            'b: One evening, {h.their} friend {f} did not come home. Everybody was worried. "Somebody has to look for {f.them}," they said. {h.Name} felt [cold with fear|very small]. But {f} was {h.their} friend.',
        ),
        (
            'a: "[I am afraid too|I do not like the dark either]," said {h}, "but we can go together." {h.They} took [a small lantern|a deep breath] and stepped outside. An owl called. A branch cracked. [With every step|Little by little], {h.they} felt a bit braver.',
            'b: So {h} took a [small lantern|long, deep breath] and went out into the night. The wind moaned {p1}. Something moved {p2}. "It is only [a leaf|the wind|an old branch]," {h.they} told {h.self}, and went on.',
        ),
        (
            'a: At last they came to the right place, safe and sound. "You are the bravest {h.kind} I know," said {f}. {h.Name} looked up. The sky was full of stars. {h.They} had never seen anything so beautiful. "The night is not so bad," {h.they} said softly.',
            'b: {p3.Capital} {h.they} found {f}, and together they went home. "Were you not afraid?" asked {f}. "I was," said {h}. "But I went anyway." And that, everyone agreed, is what it means to be brave.',
        ),
    ),
    short=(
        "{h.Introduced} was afraid of the dark. But when {f.bare} needed help one night, {h.they} went out all the same and found that {h.they} was brave.",
    ),
    outcome=("{h.Name} went out into the dark to help {f}, and {h.they} found out that {h.they} was brave.",),
    wish=("{h.Name} wanted to be brave.",),
    lesson=("Being brave means that you are afraid and go on anyway.",),
)

LOST_WAY = Plot(
    themes=(
        "a {h.kind} who got lost",
        "getting lost",
        "finding the way home",
        "a {h.kind} who was far from home",
        "an adventure",
    ),
    beats=(
        (
            "One day {h} saw a [yellow|blue|golden] butterfly and followed it. It flew {p1}, and then further and further. When {h} stopped at last, {h.they} did not know where {h.they} was. Everything looked [strange|new|different].",
            "One [bright|fine] morning, {h} wanted to see what was on the other side of the [hill|water|woods]. {h.They} went on and on. But when {h.they} wanted to go home, all the paths looked the same.",
            "One afternoon a thick fog came down. {h.Name} could not even see {h.their} own shadow. {h.They} went left, and then right, and soon {h.they} was lost.",
        ),
        (
            '"Do not be afraid," {h} said to {h.self}. {h.They} looked {p2}, but there was nothing {h.they} knew. The sun went down, and it grew cold. {h.Name} thought of {h.their} warm {h.home} and felt a tear [in the corner of {h.their} eye|on {h.their} cheek].',
            '{h.They} called, "[Hello|Is anybody there]?" Only an echo answered. {h.They} sat down {p2}. {h.They} was [tired|cold] and hungry, and {h.they} wished {h.they} had stayed at home.',
        ),
        (
            'Then {f.along} [came out of the shadows|came along the path]. "Are you lost?" {f.they} asked. "Yes," said {h}. "I want to go home." "[Listen|Be very quiet]," said {f}. "Can you hear the [water|bells|wind in the trees]? Follow that sound. I will go with you."',
            '"Why are you sitting here?" said a voice. It was {f.along}. {h} told {f.them} everything. {f.Name} pointed to the sky. "Do you see that bright star? It stands right above {mark}. If we follow it, we will find your home."',
        ),
        (
            'They walked side by side. Soon {h} saw {mark}. "I know this place!" {h.they} cried. "My {h.home} is just over there!" {h.They} thanked {f} again and again. That night {h.they} slept [very well|better than ever].',
            'So they went together through the night. And there it was: {mark}, and behind it {h.their} own {h.home}. "Come in and have some {h.food}," said {h}. {f.Name} was glad to. After that they visited each other every week.',
        ),
    ),
    short=(
        "{h.Introduced} got lost far from home. {f.Bare} showed {h.them} the way back, and they became friends.",
    ),
    outcome=("{h.Name} got lost, but {f} helped {h.them} to find the way home.",),
    wish=("{h.Name} wanted to find the way home.",),
    lesson=("Even when you are lost, do not give up hope.",),
)

LEARNING = Plot(
    themes=(
        "learning something new",
        "a {h.kind} who wanted to {skill}",
        "never giving up",
        "a {h.kind} who could not {skill}",
    ),
    beats=(
        (
            '{h.Name} had one big wish. {h.They} wanted to {skill}. [Every day|Each morning] {h.they} watched the others and thought, "If only I could do that too."',
            'All {h.their} friends could {skill}. Only {h} could not. "[You are too small|You will never learn it]," some of them said. But {h} [wanted to try|did not listen].',
        ),
        (
            "The first time, it went wrong, and {h.they} [fell down|landed in the mud]. The second time was [not much better|even worse]. The others laughed. {h.Name} went and hid {p1}.",
            '{h.They} tried on Monday, and it did not work. {h.They} tried on Tuesday, and it did not work. On Wednesday {h.they} wanted to stop. "It is too hard," {h.they} said with tears in {h.their} eyes.',
        ),
        (
            'There {f.along} found {h.them}. "Do you know how I learned it?" said {f}. "I tried a hundred times. You have tried only a few times." {h.Name} [dried {h.their} eyes|looked up]. "A hundred times?" {h.they} asked. "Then I will try again."',
            'But {f.along} had seen everything. "Do not give up," {f.they} said. "Come here every evening, and I will help you." So every evening they met {p2}, and {h} practiced. {h.They} got a little better each day.',
        ),
        (
            'And one [fine|sunny] day, it worked! {h.Name} could {skill}. The others stopped laughing and [clapped|cheered]. "How did you do it?" they asked. {h.Name} smiled at {f}. "[I just did not stop|I tried one more time]," {h.they} said.',
            'After many days, {h} took a deep breath and tried again. This time everything went right. "I can do it!" {h.they} shouted. "I can really {skill}!" {f.Name} was very proud of {h.them}.',
        ),
    ),
    short=(
        "{h.Introduced} wanted to {skill}, but it was very hard. {h.They} practiced with {f.bare} every day, and in the end {h.they} could do it.",
    ),
    outcome=("{h.Name} practiced every day and in the end learned to {skill}.",),
    wish=("{h.Name} wanted to {skill}.",),
    lesson=("If you keep trying, you will learn.", "Nobody can do everything at once."),
)

NEW_FRIEND = Plot(
    themes=(
        "a lonely {h.kind}",
        "making a new friend",
        "friendship",
        "a {h.kind} without friends",
        "two friends",
    ),
    beats=(
        (
            "But {h} was lonely. {h.They} had a [warm|nice|cozy] {h.home} and enough {h.food}, but nobody to [talk to|play with|laugh with]. In the evening {h.they} sat {p1} and [watched the sun go down|counted the stars|hummed a sad song].",
            '{h.Name} had nobody to play with. The others [were too busy|played their own games|lived far away]. "I wish I had a friend," {h.they} said to the [moon|wind|evening star].',
        ),
        (
            "One day {h.they} heard [a soft song|somebody singing|a strange sound]. It came from {mark}. {h.Name} went closer and saw {f.along}. But {h.they} was too shy to speak, so {h.they} went home again.",
            "One day {h.they} saw {f.along} {p2}. {f.They} was [new here|new in this place] and looked shy. {h.Name} wanted to say hello, but the words [would not come|got stuck]. So {h.they} hurried away.",
        ),
        (
            "a: The next morning {h} had an idea. {h.They} put [some {h.food}|a flower|a note] {p2} and hid. {f.Name} came and found it. {f.They} looked around and smiled. The next day there was [a small gift|a pretty stone|a round shell] in the same place, just for {h}.",
            'b: At home {h} [made a small gift|drew a picture|picked some flowers]. "Tomorrow I will say hello," {h.they} promised {h.self}. And the next day {h.they} did. "Hello," said {h} in a very small voice. "This is for you."',
        ),
        (
            'a: At last they met. "So it was you!" said {f}. They both laughed. From then on they met every day and [played|told each other stories|looked for treasures]. {h.Name} was never lonely again.',
            'b: {f.Name}\'s [face lit up|eyes shone]. "Nobody ever gave me anything," {f.they} said. "Will you be my friend?" "Yes!" said {h}. And they played together until [it was dark|the moon came up].',
        ),
    ),
    short=(
        "{h.Introduced} was lonely and too shy to speak to {f.bare}. A small gift helped, and the two became friends.",
    ),
    outcome=("{h.Name} found a friend. {h.They} and {f} met every day after that.",),
    wish=("{h.Name} wanted to have a friend.",),
    lesson=("A small gift can begin a great friendship.", "Somebody has to say hello first."),
)

TRUTH = Plot(
    themes=("telling the truth", "honesty", "a {h.kind} who broke a {o}", "a mistake", "saying sorry"),
    beats=(
        (
            'One day {h} visited {h.their} friend {f}. {f.Name} had a beautiful {o}. "You may look at it," said {f}, "but please be careful." Then {f.they} went out to [get some {h.food}|fetch some water].',
            "{h.Name} had a friend, {f.along}. {f.Name} owned a {o} and was very proud of it. One afternoon, when {f} was away, {h} picked the {o} up to look at it.",
        ),
        (
            "{h.Name} held the {o} in the light. How it shone! But then it slipped and fell. Crack! It was [broken|in two pieces]. {h.Name} went cold. {h.They} quickly hid it {p1} and ran home.",
            'Suddenly there was a loud noise, and {h} [jumped|turned around]. The {o} fell to the ground and broke. "Oh no!" {h.they} whispered. "What will {f} say?" {h.They} hid the pieces {p1} and told nobody.',
        ),
        (
            'That night {h} could not sleep. {h.They} turned to the left and to the right. {h.Their} secret felt [as heavy as a stone|like a cold stone]. In the morning {h.they} went to {f}. "I broke your {o}," {h.they} said, "and I hid it. I am very sorry."',
            'The next day {f} looked for the {o} everywhere. {f.They} was so sad that {h} could not bear it. "It was me," {h} said at last. "I broke it. I was afraid to tell you." And {h.they} began to cry.',
        ),
        (
            '{f.Name} was quiet for a moment. Then {f.they} said, "I am sad about the {o}, but I am glad that you told me the truth." They got some glue and mended it together. It was not as good as new, but {f} liked it even more.',
            '"Thank you for telling me," said {f}. "A {o} can be mended. A friend is worth more." Together they put the pieces back, one by one. {h.Name} felt as light as a feather.',
        ),
    ),
    short=(
        "{h.Introduced} broke a {o} that belonged to {f.bare} and hid it. Then {h.they} told the truth, and the two friends mended it together.",
    ),
    outcome=("{h.Name} broke the {o}, but {h.they} told the truth, and {f} forgave {h.them}.",),
    wish=("{h.Name} wanted to hide {h.their} mistake at first, but then {h.they} told the truth.",),
    lesson=("The truth makes the heart light.", "It is never too late to say sorry."),
)

BUILDING = Plot(
    themes=("building a {built}", "a {h.kind} who built a {built}", "working together", "a {built}"),
    beats=(
        (
            'One day {h} had an idea. "I will build a {built}," {h.they} said. {h.They} looked for [wood and rope|sticks and string|boards and nails] {p1} and {p2}. Soon there was a big pile.',
            '{h.Name} dreamed of having a {built}. "If I want one, I must build it," {h.they} thought. So {h.they} got up early and went to work [with a song|with a smile].',
        ),
        (
            "{h.They} worked all day without a rest. In the evening the {built} was ready. It looked [a little crooked|rather funny], but {h} was proud. Then the wind blew, and crash! The whole thing fell down.",
            '{h.They} worked fast, much too fast. "It is done!" {h.they} called. But when {h.they} tried it, there was a loud crack, and the {built} broke into [two|three|many] pieces.',
        ),
        (
            '{f.Along} had watched from {mark}. "You work very hard," said {f}, "but the bottom must be strong first. May I show you?" {h.Name} wanted to say no. But then {h.they} [nodded|said yes].',
            '{h.Name} sat down among the pieces. "I will never do it," {h.they} said. Then {f.along} came along. "Why do you work alone?" {f.they} asked. "I am good at [tying knots|sawing|measuring]. Let me help you."',
        ),
        (
            "So they started again. {f.Name} held the wood, and {h} tied it tight. They did not hurry. After three days the {built} stood there, strong and straight. The wind blew, and it did not move at all. They named it after both of them.",
            'The second {built} took much longer. But it was strong, and there was room in it for two. "Alone I was fast," said {h}. "Together we are good." And they [laughed|had a party] until night came.',
        ),
    ),
    short=(
        "{h.Introduced} built a {built}, but it fell apart. Then {h.they} built another one together with {f.bare}, and that one was strong.",
    ),
    outcome=("The first {built} broke, but then {h} and {f} built a strong one together.",),
    wish=("{h.Name} wanted to build a {built}.",),
    lesson=("Good work needs time and a friend.", "Together we are stronger."),
)

SEED = Plot(
    themes=("a seed", "a garden", "waiting", "a {h.kind} with a garden", "patience"),
    beats=(
        (
            'One spring day, {f.along} gave {h} a small [brown|black|round] seed. "Take good care of it," said {f}, "and you will see something wonderful." {h.Name} put it into the ground {p1} and gave it some water.',
            'One day {h} found a small seed {p1}. "What will you be?" {h.they} asked it. {h.They} made a hole in the earth, put the seed in, and covered it up [gently|with care].',
        ),
        (
            'The next day {h} looked, but there was nothing. On the second day there was nothing. On the third day {h.they} wanted to dig the seed up again. "It is not working," {h.they} told {f.along}. "[Wait|You must wait]," said {f}. "The best things are slow."',
            'Every morning {h.they} ran to look. Every morning there was only [brown earth|mud]. "Grow!" {h.they} said. {h.They} sang to it, and told it stories. {f.Along} laughed. "It needs sun, water, and time," {f.they} said.',
        ),
        (
            "So {h} waited. It rained, and the sun came out again. Then, one morning, there was a tiny green leaf. {h.Name} was so happy that {h.they} ran to tell everybody.",
            "So {h} watered it every evening and waited. One week went by, and then another. And then something green came out of the earth, no bigger than a [fingernail|tooth|grain of rice].",
        ),
        (
            'All summer long it grew, higher and higher. In the end it was [a tall sunflower|a small apple tree|a big rose bush], the most beautiful one far and wide. "You were right," {h} said to {f}. "It was worth the wait."',
            'By the end of the summer it had become [a sunflower as high as the roof|a vine full of sweet beans|a plant with ten fat pumpkins]. {h.Name} gave some of its seeds to all {h.their} friends. "Be patient," {h.they} told them.',
        ),
    ),
    short=(
        "{h.Introduced} planted a seed and could hardly wait. After many days it grew into something wonderful, just as {f.bare} had promised.",
    ),
    outcome=("{h.Name} waited and took care of the seed, and it grew into a beautiful plant.",),
    wish=("{h.Name} wanted the seed to grow.",),
    lesson=("The best things need time.",),
)

MOON = Plot(
    themes=("the moon", "a {h.kind} who wanted the moon", "the stars", "a dream", "a {h.kind} and the moon"),
    beats=(
        (
            'Every night {h} looked at the moon. It was so round and so bright. "I want to have the moon," {h.they} said. "I would put it in my {h.home}, and it would never be dark."',
            '{h.Name} loved the moon. "If I could only touch it once," {h.they} thought. {h.They} could not think of anything else.',
        ),
        (
            "First {h.they} climbed up on {mark} and reached out. But the moon was too high. Then {h.they} jumped as high as {h.they} could. But the moon only [smiled|looked down] and did not come closer.",
            "{h.They} called it, but it did not come. {h.They} threw a rope at it, but the rope fell down again. {h.They} went up the highest hill. The moon was still far, far away.",
        ),
        (
            'Then {h.they} met {f.along}. "I know where the moon is," said {f}, and showed {h.them} a [quiet pool|bucket of water|little pond]. There it was, right in the water! {h.Name} reached out and touched it, but the moon broke into a hundred pieces. "Oh!" cried {h}. "Now I have broken it!"',
            'Tired and sad, {h.they} sat down by the water. And there was the moon, right in front of {h.them}! {h.They} touched it, and it broke into silver rings. Behind {h.them}, {f.along} laughed softly. "Wait," {f.they} said. "It will come back."',
        ),
        (
            '"Look up," said {f}. The moon was still in the sky. "It belongs to everybody. That is why nobody can take it home." {h.Name} thought about that. Then they sat down side by side and looked at it together. And that was even better than having it.',
            'They waited. The water grew still, and the moon was whole again. "You can come here and see it every night," said {f}. "And I can come with you." So {h} did not get the moon, but {h.they} got a friend.',
        ),
    ),
    short=(
        "{h.Introduced} wanted to have the moon. {h.They} could not reach it, but {f.bare} showed {h.them} how to enjoy it from below.",
    ),
    outcome=("{h.Name} did not get the moon, but {h.they} found a friend to look at it with.",),
    wish=("{h.Name} wanted to have the moon.",),
    lesson=("Beautiful things belong to everybody.",),
)

RACE = Plot(
    themes=("a race", "a {h.kind} who ran a race", "winning", "a race between {h.a} and {f.a}", "a contest"),
    beats=(
        (
            'One day there was a big race. The prize was a {food}. "I will win," said {f.along}, who was very proud. "Nobody is as fast as I am." {h.Name} wanted to race too, even though {h.they} was not [very fast|very big|very strong].',
            '"I am the fastest of all," said {f.along}, [in a loud voice|who liked to boast]. {h.Name} was tired of hearing it. "Then let us have a race," {h.they} said, "from here to {mark}." Everybody came to watch.',
        ),
        (
            'a: One, two, three, go! {f.Name} was far ahead at once. {f.They} looked back and laughed. "I have time for a little rest," said {f}, and lay down {p1}. Soon {f.they} was asleep.',
            "b: They started, and {f} was soon out of sight. {h.Name} went on, step by step, and did not stop. Then {h.they} heard somebody call for help {p1}. {f.Name} had fallen and was hurt.",
        ),
        (
            'a: {h.Name} came by and saw it. "Should I go past and win?" {h.they} thought. Then {h.they} [shook {h.their} head|made up {h.their} mind]. "Wake up," {h.they} said. "It is getting late." {f.Name} was very surprised.',
            'b: {h.Name} could have gone on and won. But {h.they} stopped. "Lean on me," {h.they} said. So they went on together, slowly, side by side.',
        ),
        (
            'a: They went on together and crossed the line at the same time. Everybody cheered. "You could have won," said {f} quietly. "Why did you stop?" "Because a prize is gone in a day," said {h}, "but a friend stays." And they shared the prize.',
            'b: All the others were waiting at the end. "Who has won?" they asked. {f.Name} pointed to {h}. "{h.They} has," said {f}. "I was fast, but {h.they} was kind." And {f} never [bragged|boasted] again.',
        ),
    ),
    short=(
        "{h.Introduced} had a race with {f.bare}, who was very proud. {h.Name} stopped to help {f.them}, and so both of them won something.",
    ),
    outcome=("{h.Name} stopped in the middle of the race to help {f}, and they finished it together.",),
    wish=("{h.Name} wanted to win the race.",),
    lesson=("A friend is worth more than a prize.",),
)

STRANGE_SOUND = Plot(
    themes=(
        "a strange sound",
        "a mystery",
        "a {h.kind} who heard a strange noise",
        "a secret",
        "something in the night",
    ),
    beats=(
        (
            'One night {h} heard a strange sound. [Tap, tap, tap.|Knock, knock, knock.|Scratch, scratch, scratch.] "What is that?" {h.they} whispered. {h.They} pulled the blanket up to {h.their} nose.',
            "For three nights {h} had heard something odd. It went [tap, tap, tap|hum, hum, hum|bump, bump, bump], and it came from somewhere {p1}.",
        ),
        (
            '"Perhaps it is a ghost," {h.they} thought. "Perhaps it is a robber." But {h} was too curious to stay where {h.they} was. {h.They} took a [candle|lamp|lantern] and went out on tiptoe.',
            'The others did not want to hear about it. "You were dreaming," they said. But {h} knew what {h.they} had heard. So the next night {h.they} stayed awake and waited.',
        ),
        (
            "{h.They} looked {p1}. Nothing. {h.They} looked {p2}. Nothing. The sound grew louder. {h.Name} looked {p3}, and there sat {f.along}, holding a [little hammer|small drum|wooden box]. {f.They} jumped when {f.they} saw {h}.",
            'There it was again! {h.Name} followed the sound, slowly and quietly. It led {h.them} {p2}. And there was {f.along}, busy with something. "Oh!" said {f}. "You have found me."',
        ),
        (
            '"Please do not be angry," said {f}. "I am making a present for your birthday, and it was meant to be a surprise." It was a {o}. {h.Name} laughed until {h.their} sides hurt. "That is the best surprise I ever had," {h.they} said.',
            '"I did not want to wake anybody," said {f}. "I am new here, and I am making a [bed|chair|little house] for myself." "Then let me help you," said {h}. Now there were two who made that sound, and nobody was afraid of it any more.',
        ),
    ),
    short=(
        "{h.Introduced} heard a strange sound at night and went to look. It was only {f.bare}, and {h.they} had been afraid for nothing.",
    ),
    outcome=("{h.Name} found out that the strange sound was made by {f}.",),
    wish=("{h.Name} wanted to know where the strange sound came from.",),
    lesson=("Things are less frightening when we look at them closely.",),
)

STORM = Plot(
    themes=(
        "a storm",
        "a {h.kind} in a storm",
        "bad weather",
        "a stormy night",
        "a {h.kind} who gave shelter to {f.a}",
    ),
    beats=(
        (
            "One evening the sky turned [black|dark gray|green and gray]. The wind began to [howl|roar], and the first drops fell. {h.Name} hurried to {h.their} {h.home} and shut [everything|it] tight.",
            'It had been hot all day. Then dark clouds came over {mark}, and thunder rolled. "A storm is coming," said {h}, and {h.they} ran home as fast as {h.they} could.',
        ),
        (
            'Then somebody knocked. It was {f.along}, wet from head to toe. "Please let me in," said {f}. "My home has blown away." {h.Name} looked at {h.their} small {h.home}. There was hardly room for one.',
            'In the middle of the storm, {h} heard a voice outside. "Please help me! I have nowhere to go!" It was {f.along}. {f.They} was so cold that {f.they} [trembled|shivered].',
        ),
        (
            '"Come in," said {h}. "If we sit close, there will be room." They shared a blanket and some {h.food}. The thunder boomed, and {h} told a funny story, so that {f} would not be afraid.',
            '"Quick, come inside!" said {h}. {h.They} gave {f.them} a dry blanket and something warm to drink. All night long the storm raged, but inside it was [warm|dry and warm].',
        ),
        (
            'In the morning the storm was over. A rainbow stood above {mark}. "Now I must build a new home," said {f}. "We will build it right next to mine," said {h}. And so they became neighbors.',
            'When the sun came up, everything was quiet and clean. {f.Name} smiled at {h}. "You had little room," {f.they} said, "but a big heart." They stayed friends all their lives.',
        ),
    ),
    short=(
        "In a storm, {h.introduced} took in {f.bare} that had lost {f.their} home. They became good friends and neighbors.",
    ),
    outcome=("{h.Name} let {f} in during the storm, and they became good friends.",),
    wish=("{h.Name} wanted to be safe and dry in the storm.",),
    lesson=("There is always room for a friend.",),
)

PLOTS: tuple[Plot, ...] = (
    LOST_THING,
    HELP_RETURNED,
    SHARING,
    AFRAID,
    LOST_WAY,
    LEARNING,
    NEW_FRIEND,
    TRUTH,
    BUILDING,
    SEED,
    MOON,
    RACE,
    STRANGE_SOUND,
    STORM,
)

SKILLS = (
    "whistle|swim|dance|sing|juggle|play the drum|ride a bicycle|paint pictures|read|skate|climb|"
    "do a somersault|stand on one leg|tell good stories|catch a ball|row a boat|write letters"
)
BUILT = "tree house|raft|bridge|boat|hut|swing|wagon|bench|little house|tower|sled|bird house|water wheel"
