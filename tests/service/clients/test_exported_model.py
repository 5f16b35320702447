"""A model that `lln export` wrote, in sentence-transformers, beside the server."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import lln
from engine.training.export import export_model
from tests.service.outside import vectors_of

pytestmark = pytest.mark.long

TEXTS = ["a query", "naïve 北京 🦊", "\n\n".join(topics.values())[:20_000]]
"""The last has some 4,900 tokens: it has small blocks and is read tile by tile."""


def test_the_vectors_are_the_servers(http: httpx.Client, tmp_path: Path) -> None:
    folder = export_model("default", tmp_path / "exported")
    model = SentenceTransformer(str(folder), device="cpu")
    assert isinstance(model.transformers_model, lln.LLNModel)
    served = np.array(vectors_of(http, input=TEXTS, model="default"))
    assert np.abs(model.encode(TEXTS) - served).max() <= 1e-6
