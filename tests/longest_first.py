"""The order in which pytest's workers take test files: long ones first, so that all end together.

Left to itself, xdist begins with the files of the most tests. A file of few tests that take long
would come last, and keep one worker busy while the others have nothing to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

LONG_FILES = (
    "tests/service/page/test_page.py",
    "tests/service/page/test_page_failures.py",
    "tests/service/page/test_page_stop.py",
    "tests/service/page/test_page_long.py",
    "tests/service/page/test_page_looks.py",
    "tests/service/page/test_page_tabs.py",
    "tests/service/page/test_page_focus.py",
    "tests/service/page/test_page_keys.py",
    "tests/service/page/test_page_links.py",
    "tests/service/page/test_page_models.py",
    "tests/service/replicas/test_replicas.py",
    "tests/service/replicas/test_ray_ranks.py",
    "tests/service/bulk/test_bulk_ray.py",
    "tests/service/test_docs.py",
    "tests/service/limits/test_limits.py",
    "tests/engine/calls/test_embedding.py",
    "tests/service/http/test_http_diagnostics.py",
    "tests/service/http/test_json_request.py",
    "tests/service/documents/test_living_documents.py",
    "tests/engine/evaluation/test_readings.py",
    "tests/kernels/test_triton_forward.py",
    "tests/service/test_prometheus.py",
    "tests/engine/training/test_training.py",
    "tests/kernels/test_triton_backward.py",
    "tests/engine/diagnostics/test_instruments_dense.py",
    "tests/service/clients/test_embedders.py",
    "tests/service/documents/test_chunks_alone.py",
    "tests/engine/claims/test_claims.py",
    "tests/engine/ranks/test_fleet.py",
    "tests/kernels/test_groups.py",
    "tests/engine/living/test_updates.py",
    "tests/engine/analysis/test_document_states.py",
    "tests/service/dialects/test_no_route_breaks.py",
    "tests/service/index/test_index_records.py",
    "tests/service/grpc/test_grpc_document.py",
    "tests/engine/execution/test_documents.py",
    "tests/service/test_tls.py",
    "tests/kernels/test_kernel_bench.py",
    "tests/engine/diagnostics/test_instruments_sampled.py",
    "tests/engine/execution/test_context.py",
    "tests/engine/benchmarks/test_engine_benchmarks.py",
    "tests/engine/execution/test_tiled_run.py",
    "tests/engine/analysis/test_odd_texts.py",
    "tests/service/dialects/test_voyage.py",
    "tests/service/test_ranking.py",
    "tests/service/index/test_unreadable.py",
    "tests/engine/analysis/test_diagnosis.py",
    "tests/service/index/test_index_changes.py",
    "tests/engine/training/test_questions.py",
    "tests/service/test_ranks.py",
    "tests/kernels/test_instructions.py",
    "tests/engine/training/test_distill.py",
    "tests/engine/scheduling/test_scheduler_simulated.py",
    "tests/service/dialects/test_litellm.py",
    "tests/engine/execution/test_planner.py",
    "tests/service/index/test_index_files.py",
    "tests/engine/platform/test_process.py",
    "tests/service/http/test_http_benchmarks.py",
    "tests/engine/calls/test_engine.py",
    "tests/engine/calls/test_engine_pressure.py",
    "tests/service/bulk/test_bulk.py",
    "tests/service/test_tei.py",
    "tests/engine/claims/test_figures.py",
    "tests/engine/living/test_folded.py",
    "tests/engine/platform/test_float_products.py",
    "tests/engine/text/test_streaming.py",
    "tests/engine/execution/test_linked_context.py",
    "tests/service/batches/test_batches.py",
    "tests/kernels/test_custom_op.py",
    "tests/benchmarks/test_simulated_replicas.py",
    "tests/service/grpc/test_grpc_embed_stream.py",
    "tests/engine/platform/test_byte_products.py",
    "tests/engine/calls/test_draining_calls.py",
    "tests/engine/evaluation/test_evaluation_report.py",
    "tests/engine/model/test_block_runs.py",
    "tests/service/benchmarks/test_http_load.py",
    "tests/kernels/test_launches.py",
    "tests/engine/execution/test_tokenizer_pool.py",
)
"""Those of the page, those on Ray, and files that take over 5 seconds and more than a fifth of a
second a test: the longest first."""


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests of a file stay together, in their order."""
    files = [item.nodeid.partition("::")[0] for item in items]
    num_tests = Counter(files)
    known = {file: place for place, file in enumerate(LONG_FILES)}

    def place(index: int) -> tuple[int, int, str]:
        file = files[index]
        return known.get(file, len(known)), -num_tests[file], file

    return [items[index] for index in sorted(range(len(items)), key=place)]
