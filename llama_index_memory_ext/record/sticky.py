"""Sticky messages: the messages that were recalled most stand in front of the record from a cut on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_memory_ext.text.entries import Entry

# A message with less heat was recalled long ago, and is forgotten.
_LEAST_HEAT = 0.05
# The most messages that are read at a cut.
_MOST_MESSAGES = 200


class Heat(NamedTuple):
    """How often messages of a session were recalled, and how similar they were.

    ``place``: the epoch and the cursor of the record.
    ``by_row``: the sum of the similarities by the row of the message; each cut halves
    it.
    """

    place: tuple[int, int]
    by_row: Mapping[int, float]


def heat_at(
    place: tuple[int, int], last: Heat | None, stored: Mapping[int, float]
) -> Heat:
    """Return the heat for the record at a place, from the last heat in this process and the stored heat.

    A cut halves the last heat. After a deletion only the stored heat counts, because
    other messages may have the rows.
    """
    if last is None or last.place[0] != place[0]:
        return Heat(place, stored)
    if last.place != place:
        return Heat(place, {**halve(last.by_row), **stored})
    return last


def halve(heat: Mapping[int, float]) -> dict[int, float]:
    """Return half of the heat of the 200 hottest messages, the hottest first, without cold messages."""
    halved = {}
    for row_id in sorted(heat, key=heat.__getitem__, reverse=True)[:_MOST_MESSAGES]:
        if heat[row_id] > 2 * _LEAST_HEAT:
            halved[row_id] = round(heat[row_id] / 2, 3)
    return halved


def choose_sticky(
    heat: Mapping[int, float], entries: Sequence[Entry], limit: int, day_tokens: int
) -> list[Entry]:
    """Return the hottest messages that fit ``limit`` tokens with the headings of their days, oldest first."""
    days = set()
    chosen = []
    for entry in sorted(entries, key=lambda entry: heat[entry.row_id], reverse=True):
        tokens = entry.tokens
        if entry.day not in days:
            tokens += day_tokens
        if tokens <= limit:
            limit -= tokens
            days.add(entry.day)
            chosen.append(entry)
    return sorted(chosen, key=lambda entry: entry.row_id)
