"""Tidies generated stores of 400 facts with an honest and a careless model, and counts the true facts that are lost.

A store has 280 facts that must stay, many of them alike but for one word, 80 that say the same as another one in other
words or say less, 20 that a newer one contradicts, and 20 plans that are over. The honest model knows which is which;
the careless one reports random pairs, wrong kinds, unknown numbers and words without sense. What both propose is
applied. The rules by which proposals are checked were chosen on one half of the templates; the other half tells what
they are worth on sentences that they were not made for.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta, timezone
from itertools import count, product
from random import Random
from typing import Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from pydantic import PrivateAttr

from benchmarks.command import shown
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import Fact, FactReplyError, MemoryStore, OfflineModel, RelevantFactsBlock

SEEDS = 20
SAME, CONTRADICTED, OVER, STAY = 80, 20, 20, 280
_LINE = re.compile(r"^(\d+)\. (.*) \(known since", re.MULTILINE)

PLACES = ("Oslo", "Bergen", "Lyon", "Porto", "Ghent", "Turin", "Leeds", "Graz", "Malmo", "Cork")
FIRMS = ("Acme", "Globex", "Initech", "Umbra", "Hooli", "Vandelay", "Wonka", "Stark", "Tyrell", "Cyber")
NAMES = ("Mary", "Marie", "Tom", "Tim", "Anna", "Hanna", "Jon", "John", "Lena", "Elena")
THINGS = ("tea", "coffee", "jazz", "chess", "hiking", "tennis", "opera", "sushi", "poetry", "rowing")
TONGUES = ("Spanish", "French", "German", "Dutch", "Polish", "Czech", "Greek", "Danish", "Latin", "Welsh")
JOBS = ("nurse", "teacher", "baker", "plumber", "lawyer", "pilot", "carpenter", "editor", "cook", "tailor")
FOODS = ("peanuts", "walnuts", "shrimp", "milk", "eggs", "wheat", "soy", "celery", "mustard", "sesame")
SLOTS = {"place": PLACES, "firm": FIRMS, "name": NAMES, "thing": THINGS, "tongue": TONGUES, "job": JOBS, "food": FOODS}


class Half(NamedTuple):
    """Templates: pairs of which the second says no more than the first, pairs of an old and a newer one that excludes
    it, plans, and what must stay."""

    same: Sequence[tuple[str, str]]
    contradicted: Sequence[tuple[str, str]]
    plans: Sequence[str]
    stay: Sequence[str]


CHOSEN = Half(
    same=(
        ("Likes {thing}", "Enjoys {thing}"),
        ("Lives in {place} with {name}", "Resides in {place}"),
        ("Works as a {job} in {place}", "Is employed as a {job}"),
        ("Is allergic to {food}", "Has an allergy to {food}"),
        ("Speaks {tongue} fluently", "Is fluent in {tongue}"),
        ("Has a dog called {name}", "Owns a dog named {name}"),
        ("Is learning {tongue} for a trip to {place}", "Studies {tongue}"),
        ("Has two children, {name} and Zoe", "Has 2 kids, {name} and Zoe"),
        ("Plays {thing} every Sunday", "Plays {thing} each Sunday"),
        ("Speaks {tongue} and Swahili", "Speaks Swahili and {tongue}"),
    ),
    contradicted=(
        ("Lives in {place}", "Lives in {place2}"),
        ("Works at {firm}", "Now works for {firm2}"),
        ("Drinks {thing}", "Does not drink {thing} any more"),
        ("Has two cats", "Has three cats"),
        ("Is 34 years old", "Is 35 years old"),
        ("Favorite color is blue", "Favorite color is green"),
    ),
    plans=(
        "Plans to visit {place} in {past}",
        "Wants to run the marathon in {place} on {past}",
        "Is going to meet {name} on {past}",
    ),
    stay=(
        "Likes {thing} in the morning",
        "Likes {thing} in the evening",
        "Has a sister called {name} in {place}",
        "Has a brother called {name} in {place}",
        "Used to live in {place}",
        "Worked at {firm} until 2019",
        "Flew from {place} to {place2}",
        "{name} lives in {place}",
        "{name} likes {thing}",
        "Visited {place} on 2023-05-03",
        "Visited {place} on 2023-05-04",
        "Plans to visit {place} in {future}",
        "Takes {food} before meals",
        "Takes {food} after meals",
        "Reads books about {thing}",
        "Reads magazines about {thing}",
        "Never eats {food}",
        "Has a meeting at {firm} on Mondays",
        "Has a meeting at {firm} on Tuesdays",
    ),
)
HELD_OUT = Half(
    same=(
        ("Loves {thing}", "Is fond of {thing}"),
        ("Is based in {place} since 2021", "Has a home in {place}"),
        ("Is a {job} at {firm}", "Earns a living as a {job}"),
        ("Cannot eat {food} because of an allergy", "Is allergic to {food}"),
        ("Knows {tongue} well", "Can speak {tongue}"),
        ("Owns a cat named {name}", "Has a cat whose name is {name}"),
        ("Is married to {name} from {place}", "{name} is the spouse"),
        ("Takes lessons in {tongue} twice a week", "Is taking {tongue} lessons"),
        ("Goes to {place} every summer", "Spends each summer in {place}"),
        ("Drinks {thing} and water at noon", "Has water and {thing} at noon"),
    ),
    contradicted=(
        ("Resides in {place}", "Has moved to {place2}"),
        ("Is employed by {firm}", "Works for {firm2}"),
        ("Eats {food}", "No longer eats {food}"),
        ("Has three nephews", "Has four nephews"),
        ("Weighs 80 kg", "Weighs 76 kg"),
        ("Drives a {firm}", "Drives a {firm2}"),
    ),
    plans=(
        "Intends to move to {place} in {past}",
        "Has an exam in {tongue} on {past}",
        "Hopes to finish the book about {thing} by {past}",
    ),
    stay=(
        "Prefers {thing} to television",
        "Prefers television to radio in {place}",
        "Has an aunt named {name} near {place}",
        "Has an uncle named {name} near {place}",
        "Was born in {place}",
        "Left {firm} in 2018",
        "Sends letters from {place} to {place2}",
        "{name} works at {firm}",
        "{name} speaks {tongue}",
        "Met {name} on 2022-07-11",
        "Met {name} on 2022-08-11",
        "Intends to leave {firm} in {future}",
        "Feels well with {food}",
        "Feels well without {food}",
        "Has a {job} as a friend",
        "Has a {job} as a neighbour",
        "Hates {thing} on weekdays",
        "Runs 5 km in {place}",
        "Runs 10 km in {place}",
    ),
)
