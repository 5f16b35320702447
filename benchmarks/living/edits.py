"""Changes that people make to documents, as pairs of a text before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple


class Edited(NamedTuple):
    before: str
    after: str


FRENCH = (
    "Toutes les familles heureuses se ressemblent, mais chaque famille malheureuse l'est à sa "
    "façon. Le conseil s'est réuni mardi pour examiner le budget de la ville, et la séance a duré "
    "jusqu'au soir. Les pluies de printemps ont gonflé la rivière, et le vieux pont est fermé. "
)
"""Prose of ours, in another language than the documents."""


def appended(text: str, other: str, random: Random) -> Edited:
    """A twentieth is added at the end."""
    return Edited(_cut(text, 0.95), text)


def doubled(text: str, other: str, random: Random) -> Edited:
    """The second half is added at the end."""
    return Edited(_cut(text, 0.5), text)


def prepended(text: str, other: str, random: Random) -> Edited:
    """Paragraphs of another document are put before the first."""
    return Edited(text, f"{_paragraphs(other, 1_500)}\n\n{text}")


def changed(text: str, other: str, random: Random) -> Edited:
    """A paragraph is replaced by one of another document."""
    parts = text.split("\n\n")
    at = random.randrange(len(parts) // 5, max(len(parts) * 4 // 5, len(parts) // 5 + 1))
    return Edited(text, "\n\n".join([*parts[:at], _paragraphs(other, 600), *parts[at + 1 :]]))


def deleted(text: str, other: str, random: Random) -> Edited:
    """A tenth is taken out."""
    start = random.uniform(0.2, 0.7)
    return Edited(text, _cut(text, start) + text[len(_cut(text, start + 0.1)) :])


def moved(text: str, other: str, random: Random) -> Edited:
    """A tenth is moved to the end."""
    start = random.uniform(0.2, 0.6)
    a, b = len(_cut(text, start)), len(_cut(text, start + 0.1))
    return Edited(text, f"{text[:a]}{text[b:]}\n\n{text[a:b]}")


def retitled(text: str, other: str, random: Random) -> Edited:
    """The first line is another document's."""
    title = other.strip().splitlines()[0][:80]
    return Edited(text, f"{title}\n\n{text.partition(chr(10))[2]}")


def other_language(text: str, other: str, random: Random) -> Edited:
    """A twentieth in another language is added at the end."""
    return Edited(text, f"{text}\n\n{FRENCH * max(1, len(text) // 20 // len(FRENCH))}")


EDITS: Mapping[str, Callable[[str, str, Random], Edited]] = {
    "append 5 %": appended,
    "append half": doubled,
    "prepend": prepended,
    "change a paragraph": changed,
    "delete a section": deleted,
    "move a section": moved,
    "change the title": retitled,
    "append another language": other_language,
}


def _cut(text: str, share: float) -> str:
    """The text up to the last end of a paragraph before this share of it."""
    upto = text[: int(share * len(text))]
    end = upto.rfind("\n\n")
    return upto if end < 0 else upto[: end + 2]


def _paragraphs(text: str, characters: int) -> str:
    """Whole paragraphs from the middle of a text."""
    middle = text[len(text) // 2 :]
    return middle.partition("\n\n")[2][:characters].rpartition("\n\n")[0] or middle[:characters]
