"""Real texts of many corpora, and the heads that read them.

A text is a window of a document, and each is read by all heads of one layer, the layers in turn. So
that dense truth is cheap, most are short. LLN+Diag reads texts of one block as softmax does; those
are read in shorter blocks, as a long text is in its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch

from engine.analysis.layer_capture import capture_layers, head_view
from engine.analysis.token_kinds import token_kinds
from engine.checkpoint.registry import DEFAULT_MODEL
from engine.config import EngineConfig
from engine.diagnostics import HeadView
from engine.evaluation.corpora import SOURCES
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel, load_models
from engine.steps import finish
from engine.training.data import Document

Part: TypeAlias = Literal["development", "final", "fresh"]
"""Estimators were chosen on texts of the first; faults found on texts of the second were mended;
the table is made from the third, documents that had not been read before."""

SOFTMAX_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MODELS = {"softmax": SOFTMAX_MODEL, "lln_diag": DEFAULT_MODEL}
LENGTHS = (160, 170, 180, 190, 200, 210, 220, 230, 240, 260, 280, 300, 320, 340, 530, 1_200)
FINAL_TEXTS = 400
"""The final part was never read further than this; the fresh one begins here."""
SHORT_BLOCK = 64
NUM_LAYERS = 6
_CHARACTERS_A_TOKEN = 8  # more than there are


@dataclass(frozen=True)
class Text:
    name: str
    body: str  # longer than is read
    tokens: int
    layer: int


@dataclass(frozen=True, eq=False)
class Readers:
    """The models, each loaded once."""

    models: dict[str, EmbeddingModel]

    @classmethod
    def load(cls) -> Readers:
        names = list(MODELS.values())
        loaded = load_models(names, config=EngineConfig(device="cpu"))
        return cls(
            {kind: next(one for one in loaded if one.name == MODELS[kind]) for kind in MODELS}
        )

    @torch.no_grad()
    def view(self, text: Text, attention: str) -> HeadView | None:
        """The heads of the text's layer; None if the text has too few tokens."""
        model = self.models[attention]
        encoded = model.tokenizer.encode_batch([text.body])[0]
        if encoded.num_tokens < text.tokens:
            return None
        ends_at = text.tokens - encoded.num_suffix
        suffix = encoded.ids[len(encoded.ids) - encoded.num_suffix :]
        ids = PreparedText.whole(np.concatenate([encoded.ids[:ends_at], suffix]))
        layers = islice(capture_layers(model, ids), text.layer + 1)
        kinds = token_kinds(model.tokenizer, ids.ids)
        view = [head_view(model, finish(layer)) for layer in layers][-1]
        view = replace(view, token_kinds=kinds)
        if attention == "lln_diag" and view.attention != attention:  # one block: LLN has no share
            view = replace(view, attention="lln_diag", block_size=SHORT_BLOCK)
        return view


def texts(part: Part) -> Iterator[Text]:
    """All texts of the corpora, the corpora in turn."""
    if part == "fresh":
        return islice(_windows("final"), FINAL_TEXTS, None)
    return _windows(part)


def _windows(part: Literal["development", "final"]) -> Iterator[Text]:
    corpora = {name: _documents(name, part) for name in SOURCES}
    index = 0
    while corpora:
        for name in list(corpora):
            length = LENGTHS[(index + index // len(LENGTHS)) % len(LENGTHS)]
            least = _CHARACTERS_A_TOKEN * length
            document = next((one for one in corpora[name] if len(one.body) >= least), None)
            if document is None:
                del corpora[name]
                continue
            start = random.Random(document.name).randrange(len(document.body) - least + 1)
            body = document.body[start : start + least]
            layer = index // len(LENGTHS) % NUM_LAYERS
            yield Text(f"{name}/{document.name}", body, length, layer)
            index += 1


def _documents(name: str, part: Part) -> Iterator[Document]:
    """Every other document of a corpus."""
    first = get_args(Part).index(part)
    return islice(SOURCES[name].read(), first, None, 2)
