"""Load by Locust: short queries, batches, documents, and now and then a diagnosis.

    pip install locust
    locust -f deploy/load/locustfile.py --host http://localhost:8000
    locust -f deploy/load/locustfile.py --host http://localhost:8000 \
        --headless --users 20 --spawn-rate 5 --run-time 1m

Where the server asks for a key, LOAD_API_KEY names one. (It does not begin with LLN_: a server
refuses to start with names of its own that it does not know.)

Locust is a closed loop: users wait for their answers. For latencies by offered load see
`python -m benchmarks load`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping

from locust import HttpUser, constant_throughput, task

WORDS = ("time", "year", "people", "way", "day", "thing", "world", "school", "state", "country")
API_KEY = os.environ.get("LOAD_API_KEY")


def text(tokens: int) -> str:
    return " ".join(random.choices(WORDS, k=tokens))


class Reader(HttpUser):
    wait_time = constant_throughput(2)

    def on_start(self) -> None:
        if API_KEY:
            self.client.headers["authorization"] = f"Bearer {API_KEY}"

    @task(20)
    def query(self) -> None:
        self.ask("/v1/embeddings", {"input": text(16)}, name="a query")

    @task(5)
    def batch(self) -> None:
        texts = [text(random.randint(20, 200)) for _ in range(8)]
        self.ask("/v1/embeddings", {"input": texts, "encoding_format": "base64"}, name="a batch")

    @task(1)
    def document(self) -> None:
        body = {"text": text(4000), "chunking": {"type": "fixed", "tokens": 256}}
        self.ask("/v1/documents", body, name="a document")

    @task(1)
    def diagnosis(self) -> None:
        body = {"text": text(50), "layers": [0], "instruments": ["entropy"]}
        self.ask("/v1/diagnostics", body, name="a diagnosis")

    def ask(self, path: str, body: Mapping[str, object], *, name: str) -> None:
        """A refusal with Retry-After is the server keeping its promises, not a failure."""
        with self.client.post(path, json=body, name=name, catch_response=True) as answer:
            if answer.status_code == 429 and "retry-after" in answer.headers:
                answer.success()
