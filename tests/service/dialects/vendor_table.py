"""What the tests ask of each vendor's clients, for the second table in docs/clients.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.service.clients.client_table import ROOT
from tools.check_dependencies import pins

APART = ROOT / "tests" / "clients"
"""Pins of the clients that tools/install_clients.py installs apart."""


@dataclass(frozen=True, kw_only=True)
class VendorClient:
    dialect: str
    vendor: str
    routes: str
    package: str
    """Its distribution, which constraints.txt or a file of tests/clients/ pins."""
    line: str
    """The line that changes, with the server's address as URL and its key as KEY."""
    works: str
    refused: str
    test: str
    """FILE::FUNCTION, below tests/service/dialects/."""

    @property
    def version(self) -> str:
        pinned = pins_apart() | pins()
        return pinned[self.package]


def pins_apart() -> dict[str, str]:
    lines = [line for file in APART.glob("*.txt") for line in file.read_text().splitlines()]
    found = (re.fullmatch(r"([a-z0-9_.-]+)==(\S+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match is not None}


VENDOR_CLIENTS = (
    VendorClient(
        dialect="voyage",
        vendor="Voyage",
        routes="`/v1/contextualizedembeddings`, `/v1/embeddings`, `/v1/rerank`",
        package="voyageai",
        line='`voyageai.Client(base_url="URL/v1", api_key="KEY")`',
        works="chunks that are given or cut here, queries, plain texts; vectors equal to "
        "`/v1/documents` to the bit; errors with our message",
        refused="chunks without tokens: they have no vector",
        test="test_voyage.py::test_contextual_chunks_are_those_of_our_own_route",
    ),
    VendorClient(
        dialect="voyage",
        vendor="Voyage, in LangChain",
        routes="the same",
        package="langchain-voyageai",
        line='`VoyageAIEmbeddings(base_url="URL/v1", api_key="KEY", model="voyage-context-4")`',
        works="documents cut here at 32,000 tokens, queries, plain texts; it fetches Voyage's "
        "tokenizer from the Hugging Face Hub",
        refused="",
        test="test_voyage_embedders.py::test_langchain",
    ),
    VendorClient(
        dialect="voyage",
        vendor="Voyage, in Haystack",
        routes="the same",
        package="voyage-embedders-haystack",
        line='`embedder._client = voyageai.Client(base_url="URL/v1", api_key="KEY")`: it has no '
        "address of its own",
        works="chunks by the document that they are from, documents, queries",
        refused="",
        test="test_voyage_embedders.py::test_haystack",
    ),
    VendorClient(
        dialect="voyage",
        vendor="Voyage, in LlamaIndex",
        routes="the same",
        package="llama-index-embeddings-voyageai",
        line='`embedder._client = voyageai.Client(base_url="URL/v1", api_key="KEY")`: it has no '
        "address of its own",
        works="documents and queries, with the older client that it needs",
        refused="",
        test="test_voyage_embedders.py::test_llama_index",
    ),
    VendorClient(
        dialect="jina",
        vendor="Jina, in LlamaIndex",
        routes="`/v1/embeddings`, `/v1/segment`",
        package="llama-index-embeddings-jinaai",
        line='`embedder._api.api_url = "URL/v1/embeddings"`: it has no address of its own',
        works="texts, `late_chunking`, `task`; errors with our message",
        refused="images: the models read text alone",
        test="test_jina.py::test_llama_index",
    ),
    VendorClient(
        dialect="jina",
        vendor="Jina, in Haystack",
        routes="`/v1/embeddings`",
        package="jina-haystack",
        line='`JinaDocumentEmbedder(base_url="URL/v1/embeddings")`',
        works="documents with `late_chunking`, queries with `task`, reranking",
        refused="`return_multivector`: see `/pooling`",
        test="test_jina.py::test_haystack",
    ),
    VendorClient(
        dialect="cohere",
        vendor="Cohere",
        routes="`/v2/embed`, `/v1/embed`, `/v2/rerank`, `/v1/rerank`",
        package="cohere",
        line='`cohere.ClientV2(base_url="URL", api_key="KEY")`',
        works="both versions, all `embedding_types`, `truncate`, `max_tokens`, "
        "`output_dimension`, mixed inputs of texts",
        refused="images: the models read text alone",
        test="test_cohere.py::test_version_2",
    ),
    VendorClient(
        dialect="cohere",
        vendor="Cohere, in LangChain",
        routes="`/v1/embed`",
        package="langchain-cohere",
        line='`CohereEmbeddings(base_url="URL", cohere_api_key="KEY", model="embed-v4.0")`',
        works="documents and queries, with the older client that it needs",
        refused="",
        test="test_cohere.py::test_langchain",
    ),
    VendorClient(
        dialect="ollama",
        vendor="Ollama",
        routes="`/api/embed`, `/api/embeddings`, `/api/tags`, `/api/ps`, `/api/show`, "
        "`/api/version`",
        package="ollama",
        line='`ollama.Client(host="URL", headers={"Authorization": "Bearer KEY"})`',
        works="texts, dimensions, lists of models, names with `:latest`",
        refused="generation, and `pull` and the like: models are chosen at start",
        test="test_ollama.py::test_embeddings",
    ),
    VendorClient(
        dialect="ollama",
        vendor="Ollama, in LangChain",
        routes="`/api/embed`",
        package="langchain-ollama",
        line='`OllamaEmbeddings(base_url="URL", model="nomic-embed-text")`',
        works="documents and queries",
        refused="",
        test="test_ollama.py::test_langchain",
    ),
    VendorClient(
        dialect="vllm",
        vendor="vLLM",
        routes="`/v1/embeddings`, `/pooling`, `/score`, `/v1/score`, `/rerank`, `/v1/rerank`, "
        "`/v2/rerank`, `/tokenize`, `/detokenize`, `/version`",
        package="httpx",
        line="`URL` in any request over HTTP",
        works="`truncate_prompt_tokens`, `truncation_side`, `embed_dtype`, `endianness`, "
        "`encoding_format` `bytes` and `bytes_only`, states of tokens, scores of pairs",
        refused="`add_special_tokens: false` for vectors, padding, fp8, chats: these models were "
        "not trained for them",
        test="test_vllm.py::test_bytes",
    ),
    VendorClient(
        dialect="infinity",
        vendor="infinity",
        routes="`/embeddings`, `/models`, `/rerank`",
        package="httpx",
        line="`URL` in any request over HTTP",
        works="as `/v1/embeddings` and `/v1/models`; ranked documents as strings",
        refused="a `modality` other than text",
        test="test_platforms.py::test_infinity",
    ),
    VendorClient(
        dialect="sagemaker",
        vendor="SageMaker",
        routes="`/ping`, `/invocations`",
        package="httpx",
        line="the container's port",
        works="`/invocations` takes the body of any other request for vectors, rankings, scores or "
        "the tokens of a prompt, told by its fields",
        refused="",
        test="test_platforms.py::test_invocations",
    ),
    VendorClient(
        dialect="voyage",
        vendor="LiteLLM",
        routes="those of Voyage, Jina, Cohere, Ollama, infinity and vLLM",
        package="litellm",
        line='`litellm.embedding(api_base="URL/v1", api_key="KEY", model="voyage/voyage-3.5")`; '
        '`api_base="URL/v2/embed"` for Cohere, `"URL"` for Ollama and infinity',
        works="the providers `voyage`, `jina_ai`, `cohere`, `ollama`, `infinity`, `hosted_vllm`, "
        "for vectors and for reranking",
        refused="`litellm.rerank` of `voyage` without `top_n`: its body is then not Voyage's alone",
        test="test_litellm.py::test_providers",
    ),
)


def vendor_rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    for client in VENDOR_CLIENTS:
        package = f"{client.package} {client.version}"
        yield client.vendor, client.routes, package, client.line, client.works, client.refused
