"""Which clients the tests run against a server, for the table in docs/clients.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.check_dependencies import pins

ROOT = Path(__file__).resolve().parents[3]
JAVASCRIPT = "openai (npm)"


@dataclass(frozen=True, kw_only=True)
class Client:
    name: str
    package: str
    """Its distribution, which constraints.txt pins."""
    use: str
    works: str
    test: str
    """FILE::FUNCTION, below tests/."""
    is_slow: bool = False

    @property
    def version(self) -> str:
        if self.package == JAVASCRIPT:
            manifest = json.loads((ROOT / "tests/javascript/package.json").read_text("utf-8"))
            return str(manifest["dependencies"]["openai"])
        return pins()[self.package]


CLIENTS = (
    Client(
        name="OpenAI for Python",
        package="openai",
        use='`OpenAI(base_url="http://localhost:8000/v1", api_key="unused")`',
        works="embeddings, the list of models, aliases",
        test="service/test_aliases.py::test_openais_client_with_its_own_names",
    ),
    Client(
        name="OpenAI for Python, batches",
        package="openai",
        use='`client.files.create(file=..., purpose="batch")`, then `client.batches.create(...)`',
        works="upload, list, read, delete; start, follow, cancel; a server killed while it works",
        test="service/batches/test_batches.py::test_openai_client_from_upload_to_answers",
    ),
    Client(
        name="OpenAI for JavaScript",
        package=JAVASCRIPT,
        use='`new OpenAI({baseURL: "http://localhost:8000/v1", apiKey: "unused"})`',
        works="embeddings (base64, its default), usage, errors with code and param",
        test="service/clients/test_clients.py::test_openai_for_javascript",
        is_slow=True,
    ),
    Client(
        name="LangChain",
        package="langchain-openai",
        use='`OpenAIEmbeddings(base_url="http://localhost:8000/v1", api_key="unused", '
        'model="default", check_embedding_ctx_length=False)`',
        works="documents and queries; token ids, its default, are refused with the switch named",
        test="service/clients/test_clients.py::test_langchain",
    ),
    Client(
        name="LlamaIndex",
        package="llama-index-embeddings-openai-like",
        use='`OpenAILikeEmbedding(model_name="default", api_base="http://localhost:8000/v1")`',
        works="texts in batches, queries, a text of 10,000 tokens read whole",
        test="service/clients/test_embedders.py::test_llama_index",
    ),
    Client(
        name="Haystack",
        package="haystack-ai",
        use='`OpenAIDocumentEmbedder(api_base_url="http://localhost:8000/v1", model="default")`',
        works="documents, queries, a text of 10,000 tokens read whole",
        test="service/clients/test_embedders.py::test_haystack",
    ),
    Client(
        name="Qdrant (local mode)",
        package="qdrant-client",
        use="vectors of `/v1/documents` as points: the document's, and its chunks as a multivector",
        works="search by whole documents, and by the best chunk (MaxSim)",
        test="service/clients/test_embedders.py::test_qdrant",
    ),
    Client(
        name="LanceDB, served",
        package="lancedb",
        use='`get_registry().get("openai").create(name="text-embedding-3-small", dim=384, '
        'base_url="http://localhost:8000/v1")`, with that name as an alias',
        works="embedding on insert and on search, a text of 5,000 tokens read whole",
        test="service/clients/test_large_clients.py::test_lancedb",
        is_slow=True,
    ),
    Client(
        name="LanceDB, in-process",
        package="lancedb",
        use='`import lln`, then `get_registry().get("sentence-transformers").create(name=FOLDER)`',
        works="the same, without a server",
        test="service/clients/test_large_clients.py::test_lancedb",
        is_slow=True,
    ),
    Client(
        name="MTEB, served",
        package="mteb",
        use='`mteb.evaluate(lln.mteb.ServedEncoder("http://localhost:8000"), tasks)`',
        works="a retrieval task, documents read whole; the score of the model in-process",
        test="service/clients/test_large_clients.py::test_mteb",
        is_slow=True,
    ),
    Client(
        name="MTEB, in-process",
        package="mteb",
        use="`import lln`, then `mteb.evaluate(SentenceTransformer(FOLDER), tasks)`",
        works="the same, without a server",
        test="service/clients/test_large_clients.py::test_mteb",
        is_slow=True,
    ),
    Client(
        name="sentence-transformers",
        package="sentence-transformers",
        use="`import lln`, then `SentenceTransformer(FOLDER)`",
        works="the server's vectors within 1e-6, documents read whole, saving, no remote code",
        test="service/clients/test_exported_model.py::test_the_vectors_are_the_servers",
    ),
    Client(
        name="transformers",
        package="transformers",
        use="`import lln`, then `AutoModel.from_pretrained(FOLDER)`",
        works='token states; `attn_implementation="lln_diag"` for stock models',
        test="lln/test_export.py::test_token_states",
    ),
    Client(
        name="Hugging Face Hub",
        package="huggingface-hub",
        use='`InferenceClient("http://localhost:8000/embed").feature_extraction(text)`',
        works="text-embeddings-inference's contract: vectors, truncation, errors",
        test="service/test_tei.py::test_huggingface_hubs_client",
    ),
    Client(
        name="Hugging Face Hub, similarity",
        package="huggingface-hub",
        use='`InferenceClient("http://localhost:8000/similarity").sentence_similarity(text, '
        "other_sentences=texts)`",
        works="text-embeddings-inference's contract: the cosines of the vectors",
        test="service/test_ranking.py::test_similarity_of_sentences",
    ),
)


def client_rows() -> Iterator[tuple[str, str, str, str, str]]:
    for client in CLIENTS:
        package = f"{client.package} {client.version}"
        run = "`pytest -m slow`" if client.is_slow else "CI"
        yield client.name, package, client.use, client.works, run
