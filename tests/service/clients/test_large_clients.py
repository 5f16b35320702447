"""LanceDB and MTEB, which take long to install: extra `clients`, run with `pytest -m slow`."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.outside import vectors_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

NAME = "text-embedding-3-small"
TITLES = ["async", "exceptions", "naming", "numbers"]
DOCUMENTS = [topics[title] for title in TITLES]
LONG = "\n\n".join(topics.values())[:20_000]


@pytest.fixture(scope="module")
def aliased(launch_server: Any) -> Any:
    return launch_server(LLN_MODELS="default", LLN_MODEL_ALIASES=f"{NAME}=default")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import lln  # noqa: F401 - it lets the libraries load the folder
    from engine.training.export import export_model

    return export_model("default", tmp_path_factory.mktemp("exported") / "model")


def test_lancedb(
    aliased: Any, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own embedders: OpenAI's, which wants one of OpenAI's names, and a folder in-process."""
    pytest.importorskip("lancedb")
    import lancedb
    from lancedb.embeddings import get_registry
    from lancedb.pydantic import LanceModel, Vector

    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    registry = get_registry()
    address = f"{aliased.http_url}/v1"
    served = registry.get("openai").create(name=NAME, dim=384, base_url=address)
    local = registry.get("sentence-transformers").create(name=str(exported), device="cpu")
    store = lancedb.connect(tmp_path / "store")
    for name, embedder in (("served", served), ("local", local)):

        class Page(LanceModel):  # type: ignore[misc]
            text: str = embedder.SourceField()
            vector: Vector(384) = embedder.VectorField()  # type: ignore[valid-type]

        table = store.create_table(name, schema=Page)
        table.add([{"text": text} for text in [*DOCUMENTS, LONG]])
        [found] = table.search("how do I raise an error").limit(1).to_list()
        assert found["text"] == topics["exceptions"]
    served_rows, local_rows = (store.open_table(name).to_arrow() for name in ("served", "local"))
    with httpx.Client(base_url=aliased.http_url, timeout=60) as http:
        expected = vectors_of(http, input=[*DOCUMENTS, LONG])
    for rows in (served_rows, local_rows):
        assert np.abs(np.array(rows["vector"].to_pylist()) - expected).max() <= 1e-6


def retrieval_task() -> Any:
    """A task of MTEB's kind over Python's reference manual: find a page by its title."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class Manual(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = TaskMetadata(
            name="PythonManual",
            description="Pages of Python's reference manual by their titles.",
            dataset={"path": "python/manual", "revision": "1"},
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            date=("2020-01-01", "2020-12-31"),
            domains=["Programming"],
            task_subtypes=[],
            license="not specified",
            annotations_creators="derived",
            dialect=[],
            sample_creation="found",
            bibtex_citation="",
        )

        def load_data(self, *_: Any, **__: Any) -> None:
            pages = [*zip(TITLES, DOCUMENTS, strict=True), ("long", LONG)]
            corpus = [{"id": title, "text": text, "title": ""} for title, text in pages]
            queries = [{"id": title, "text": f"about {title}"} for title in TITLES]
            split = {
                "corpus": Dataset.from_list(corpus),
                "queries": Dataset.from_list(queries),
                "relevant_docs": {title: {title: 1} for title in TITLES},
                "top_ranked": None,
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Manual()


def test_mteb(aliased: Any, exported: Path) -> None:
    """A served model and the same model in-process score alike, with pages read whole."""
    mteb = pytest.importorskip("mteb")
    from sentence_transformers import SentenceTransformer

    from lln.mteb import ServedEncoder

    scores = []
    for model in (
        ServedEncoder(aliased.http_url),
        SentenceTransformer(str(exported), device="cpu"),
    ):
        results = mteb.evaluate(model, retrieval_task(), cache=None, show_progress_bar=False)
        scores.append(results.task_results[0].get_score())
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert scores[0] > 0.8


def test_mteb_reads_documents_whole(aliased: Any) -> None:
    pytest.importorskip("mteb")
    from lln.mteb import ServedEncoder

    encoder = ServedEncoder(aliased.http_url)
    [whole, start] = encoder.encode([{"text": [LONG]}, {"text": [LONG[:1000]]}])
    with httpx.Client(base_url=aliased.http_url, timeout=60) as http:
        [expected] = vectors_of(http, input=[LONG])
    assert np.abs(whole - expected).max() <= 2e-6
    assert encoder.similarity_pairwise([whole], [start])[0] < 0.99
    assert encoder.similarity([whole, start], [whole])[0, 0] == pytest.approx(1)
