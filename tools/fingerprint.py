"""What a checkout answers, as hashes: vectors to the last bit, diagnoses, routes, messages.

    cd CHECKOUT && python /path/to/tools/fingerprint.py [--out FILE] [--against FILE]

Made with one commit and compared in another (`--against`), on one machine: bits depend on the
processor. It uses names only that both have: `Engine`, the plans of `engine.types`, the settings
and the application.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

sys.path.insert(0, str(Path.cwd()))  # the checkout that is asked, whatever is installed

import numpy as np

from engine import Engine
from engine.attention_types import Diagnosis
from engine.types import Chunking, ChunkPlan, DocumentEmbedding, HeadingPlan, SentencePlan

MODELS = ("default", "documents", "sentence-transformers/all-MiniLM-L6-v2")
PASSAGES = list(topics.topics.values())
TEXT = "\n\n".join(PASSAGES)
SWEPT_CHARACTERS = 300_000  # more than 65,536 tokens, from which a text is read tile by tile
PLANS: dict[str, Chunking] = {
    "fixed": ChunkPlan(tokens=256, overlap=32, alone=0, opening=0),
    "sentences": SentencePlan(max_tokens=96, alone=0.5, opening=0.3),
    "headings": HeadingPlan(max_tokens=200, alone=0, opening=0.3),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    found = dict(fingerprints())
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not arguments.against:
        print(json.dumps(found, indent=1))
        return 0
    expected = json.loads(arguments.against.read_text(encoding="utf-8"))
    differing = [name for name in expected | found if expected.get(name) != found.get(name)]
    for name in differing:
        print(f"{name}: {expected.get(name)} before, {found.get(name)} now")
    print(f"{len(found) - len(differing)} of {len(found)} the same")
    return 1 if differing else 0


def fingerprints() -> Iterator[tuple[str, str]]:
    for name in MODELS:
        with Engine.load(name) as engine:
            for what, value in of_engine(engine):
                yield f"{name}, {what}", value
    yield from of_contracts()


def of_engine(engine: Engine) -> Iterator[tuple[str, str]]:
    yield "short texts", hash_of(engine.embed([text[:1000] for text in PASSAGES[:48]]))
    for characters in (900, 9000):
        yield f"document of {characters}", of_document(engine.embed_document(TEXT[:characters]))
    if engine.info.name == "documents":
        return  # the rest would only repeat what the default model shows
    for name, plan in PLANS.items():
        yield f"chunks, {name}", of_document(engine.embed_document(TEXT[:8000], chunks=plan))
    if engine.info.attention[0] != "softmax":
        swept = engine.embed_document(TEXT[:SWEPT_CHARACTERS], chunks=PLANS["fixed"])
        yield f"swept, {swept.accounting.tokens} tokens", of_document(swept)
    for characters in (900, 3500):
        read = engine.diagnose(TEXT[:characters], layers=[3])
        yield f"diagnosis of {characters}", of_diagnosis(read)


def of_document(document: DocumentEmbedding) -> str:
    spans = [(*chunk.tokens, *chunk.characters, *chunk.headings) for chunk in document.chunks]
    return hash_of(document.vector, *(chunk.vector for chunk in document.chunks), spans)


def of_diagnosis(diagnosis: Diagnosis) -> str:
    read = [
        (one.instrument, one.unit, one.method, one.values, one.error)
        for one in diagnosis.instruments
    ]
    return hash_of(read)


def of_contracts() -> Iterator[tuple[str, str]]:
    from service import pb
    from service.app import create_app
    from service.environment import load_settings

    described = create_app(load_settings()).openapi()
    yield "routes", ", ".join(sorted(described["paths"]))
    yield "OpenAPI", hash_of(json.dumps(described, sort_keys=True))
    folder = Path(next(iter(pb.__path__)))
    generated = sorted(folder.rglob("*_pb2*.py"))
    yield "gRPC descriptors", hash_of(*(path.read_text(encoding="utf-8") for path in generated))


def hash_of(*parts: object) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()[:20]


if __name__ == "__main__":
    sys.exit(main())
