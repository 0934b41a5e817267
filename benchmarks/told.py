"""Makes tasks whose facts are told over several turns, and whose answer is one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from llama_index.core.base.llms.types import ChatMessage

_NAMES = (
    "Nora Caroline Elias Priya Tomas Wendy Ibrahim Lucia Anders Mei Oscar Farah".split()
)
_RELATIONS = (
    "cousin sister neighbour uncle colleague friend aunt nephew brother boss".split()
)
# How a fact is told, asked for, given as an answer, and with what.
_TOPICS = (
    (
        "My {relation} {name} keeps {value} behind the house.",
        "What does {name} keep behind the house?",
        "{name} keeps {value}",
        "alpacas goats parrots rabbits turtles horses ducks bees peacocks".split(),
    ),
    (
        "By the way, my {relation} {name} has moved to {value}.",
        "Where has {name} moved to?",
        "{name} has moved to {value}",
        "Lisbon Oslo Vienna Dublin Prague Athens Madrid Warsaw Rome".split(),
    ),
    (
        "My {relation} {name} works as a {value} now.",
        "What does {name} work as?",
        "{name} works as a {value}",
        "baker nurse plumber pilot teacher gardener lawyer farmer dentist".split(),
    ),
    (
        "I think that {value} would be the right present for my {relation} {name}.",
        "What did I want to give {name}?",
        "You wanted to give {name} {value}",
        "books gloves flowers tickets earrings chocolates headphones boots candles".split(),
    ),
)
_REPLIES = (
    "How nice!",
    "I see.",
    "Thanks for telling me.",
    "Noted.",
    "That is good to know.",
    "Interesting!",
)
_SMALL_TALK = (
    ("The weather is awful today.", "I hope that it clears up soon."),
    ("I slept badly again.", "Sorry to hear that. Try to rest a little."),
    ("Work was long today.", "That sounds tiring."),
    ("What is 17 plus 25?", "17 plus 25 is 42."),
    ("I finally cleaned the kitchen.", "Well done!"),
    ("The train was late again.", "How annoying."),
    ("Can you recommend a film?", "A classic like Casablanca is always worth it."),
)
_KNOWN = (
    ("What is the capital of France?", "The capital of France is Paris"),
    ("Which day comes after Monday?", "The day after Monday is Tuesday"),
    ("What colour is the sky on a clear day?", "The sky is blue"),
    ("Which planet is the largest?", "The largest planet is Jupiter"),
    ("What is water made of?", "Water is made of hydrogen and oxygen"),
    (
        "Who wrote Romeo and Juliet?",
        "Romeo and Juliet was written by William Shakespeare",
    ),
    ("What is the opposite of hot?", "The opposite of hot is cold"),
    ("In which country is Tokyo?", "Tokyo is in Japan"),
)


@dataclass(frozen=True)
class Task:
    """A conversation, oldest message first, the message that comes next, and how the right answer begins."""

    said: list[ChatMessage]
    question: str
    answer: str


@dataclass(frozen=True)
class Told:
    """A fact: what is told, the question about it and the right answer, of one name."""

    name: str
    told: str
    question: str
    answer: str


Ending = Callable[[list[Told], Random], Task]


def asked(facts: list[Told], random: Random) -> Task:
    """A task that ends with a question about one of the facts."""
    one = random.choice(facts)
    return Task(_conversation(facts, random), one.question, one.answer)


def asked_again(facts: list[Told], random: Random) -> Task:
    """A task that ends with a question that only the one before explains."""
    before, one = random.sample(facts, 2)
    turn = [
        ChatMessage(before.question),
        ChatMessage(f"{before.answer}.", role="assistant"),
    ]
    return Task([*_conversation(facts, random), *turn], f"And {one.name}?", one.answer)


def told_to_write(facts: list[Told], random: Random) -> Task:
    """A task that ends with an instruction."""
    one = random.choice(facts)
    return Task(
        _conversation(facts, random),
        f"Write down in one sentence what I told you of {one.name}.",
        one.answer,
    )


def told_to_go_on(facts: list[Told], random: Random) -> Task:
    """A task that ends with text that the answer continues."""
    first, one = random.sample(facts, 2)
    text = f"I make notes. First: {first.answer}. Please go on with {one.name}."
    return Task(_conversation(facts, random), text, one.answer)


def asked_something_else(facts: list[Told], random: Random) -> Task:
    """A task that ends with a question for which nothing that was told is needed."""
    return Task(_conversation(facts, random), *random.choice(_KNOWN))


def asked_for_a_sum(facts: list[Told], random: Random) -> Task:
    """A task that ends with a question whose answer is worked out from two things that were told."""
    first, second = random.sample(facts, 2)
    prices = {one.name: random.randint(2, 9) for one in facts}
    paid = [
        Told(name, f"{name} paid {price} euros for the ticket.", "", "")
        for name, price in prices.items()
    ]
    total = prices[first.name] + prices[second.name]
    question = f"How much did {first.name} and {second.name} pay together?"
    return Task(
        _conversation([*facts, *paid], random), question, f"They paid {total} euros"
    )


OTHERS: dict[str, Ending] = {
    "follow-up": asked_again,
    "instruction": told_to_write,
    "continuation": told_to_go_on,
    "unrelated": asked_something_else,
    "sum": asked_for_a_sum,
}


def tasks(count: int, seed: int, ending: Ending = asked) -> list[Task]:
    """So many tasks of 3 to 8 facts. The same seed gives the same tasks."""
    return [
        ending(_facts(random), random)
        for random in (Random(seed * 10_000 + i) for i in range(count))
    ]


def _facts(random: Random) -> list[Told]:
    """Facts of two topics, each about another person, so that each has others that are like it."""
    count = random.randint(3, 8)
    topics = random.sample(_TOPICS, 2)
    values = [iter(random.sample(topic[3], len(topic[3]))) for topic in topics]
    people = zip(
        random.sample(_NAMES, count), random.sample(_RELATIONS, count), strict=True
    )
    facts = []
    for i, (name, relation) in enumerate(people):
        words = {"name": name, "relation": relation, "value": next(values[i % 2])}
        facts.append(Told(name, *(text.format(**words) for text in topics[i % 2][:3])))
    random.shuffle(facts)
    return facts


def _conversation(facts: list[Told], random: Random) -> list[ChatMessage]:
    turns = [(fact.told, random.choice(_REPLIES)) for fact in facts]
    for small in random.sample(_SMALL_TALK, random.randint(2, 4)):
        turns.insert(random.randint(0, len(turns)), small)
    return [
        message
        for said, reply in turns
        for message in (ChatMessage(said), ChatMessage(reply, role="assistant"))
    ]
