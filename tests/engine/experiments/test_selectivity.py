"""Selective branches: what they compute, that each trains, and the contest at toy size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.checkpoint.calibration import Calibration
from engine.errors import InsufficientMemory, InvalidInput
from engine.evaluation.bootstrap import Answers, interval
from engine.evaluation.corpora import SOURCES, CorpusSource
from engine.evaluation.reading_documents import DocumentLimits
from engine.experiments.contest import ContestPlan, run_contest
from engine.experiments.document_intervals import by_document, minus_by_document
from engine.experiments.selectivity.attention import parts_of_document
from engine.experiments.selectivity.contest import SelectivityContest
from engine.experiments.selectivity.upper_layers import Readers, UpperLayers
from engine.experiments.selectivity.variants import (
    BY_DISTANCE,
    VARIANTS,
    Tensors,
    attention_of,
    first_tensors,
)
from engine.experiments.training import TrainingBudget
from engine.experiments.trials import RESULT_FILE, TRIALS_FILE, Trial
from engine.model.embedding_model import EmbeddingModel
from engine.training.data import Document
from kernels.attention import PackedSequences, reference
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

BLOCK, SINKS = 16, (1, 1)
HEADS, DIM = 2, 16
LENGTH = 3 * BLOCK + 5  # four blocks, the last of them short
CHECKED = [*range(0, LENGTH, 7), LENGTH - 1]  # tokens of every block
Rows: TypeAlias = tuple[Tensor, Tensor, Tensor]
TRAINED = [name for name, variant in VARIANTS.items() if variant.trained]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture
def rows() -> Rows:
    torch.manual_seed(0)
    q, k, v = (random(LENGTH, HEADS, DIM) for _ in range(3))
    return q, k, v


@pytest.fixture
def calibration() -> Calibration:
    torch.manual_seed(1)
    return Calibration(
        alpha=random(1, HEADS).abs() + 0.5,
        beta=random(1, HEADS).abs() + 0.5,
        mix=torch.full((1, HEADS), 0.3, dtype=torch.float64),
        key_shift=random(1, HEADS, DIM),
        query_map=random(1, HEADS, DIM, DIM) / 4,
        key_map=random(1, HEADS, DIM, DIM) / 4,
        gate=random(1, HEADS, DIM) / 4,
        block_size=BLOCK,
        num_sinks=SINKS,
        weights_sha256="",
    )


def moved(name: str, calibration: Calibration) -> Tensors:
    """A variant's tensors somewhere else than at their beginning, each by itself."""
    torch.manual_seed(2)
    found = first_tensors(VARIANTS[name], calibration, 0)
    return {key: one + 0.3 * random(*one.shape) for key, one in found.items()}


def attended(name: str, tensors: Tensors, rows: Rows) -> Tensor:
    attention = attention_of(VARIANTS[name], tensors, block=BLOCK, num_sinks=SINKS)
    return attention(*rows, PackedSequences.of([0, len(rows[0])], torch.device("cpu")))


def dense_truth(name: str, tensors: Tensors, rows: Rows) -> Tensor:
    """Token by token: what each branch reads, its logit, and the softmax of all with Diag."""
    q, k, v = rows
    diag = reference.block_diagonal_attention(q, k, v, block_size=BLOCK, num_sinks=SINKS)
    out = torch.empty_like(v[CHECKED])
    for head in range(HEADS):
        for at, token in enumerate(CHECKED):
            reads, logits = [diag[token, head]], [torch.zeros((), dtype=torch.float64)]
            for read, logit in _branches(name, tensors, q, k, v, head, token):
                reads.append(read)
                logits.append(logit)
            shares = torch.stack(logits).softmax(0) * (1 - BLOCK / LENGTH)
            shares[0] = 1 - shares[1:].sum()
            out[at, head] = (shares[:, None] * torch.stack(reads)).sum(0)
    return out


def _branches(
    name: str, tensors: Tensors, q: Tensor, k: Tensor, v: Tensor, head: int, token: int
) -> Iterator[tuple[Tensor, Tensor]]:
    own = q[token, head]
    if VARIANTS[name].parts:
        scaled_q = tensors["alpha"][head] * (own @ tensors["query_map"][head])
        shifted = k[:, head] @ tensors["key_map"][head] + tensors["key_shift"][head]
        kernel = (scaled_q + tensors["beta"][head] * shifted).exp().sum(1)  # [N]
        for at, part in enumerate(VARIANTS[name].parts):
            is_inside = torch.tensor([_is_in(part, token, other) for other in range(LENGTH)])
            weights = kernel * is_inside
            gate = tensors["gate"][at, head] @ own if "gate" in tensors else 0.0
            logit = gate + tensors["bias"][at, head] + (weights.sum() / kernel.sum()).log()
            yield (weights / weights.sum().clamp_min(1e-300)) @ v[:, head], logit
    if VARIANTS[name].summary:
        keys, values = [], []
        for start in range(0, LENGTH, BLOCK):
            inside = slice(start, min(start + BLOCK, LENGTH))
            if token not in range(LENGTH)[inside]:
                weights = (k[inside, head] @ tensors["pick"][head]).softmax(0)
                keys.append(weights @ k[inside, head])
                values.append(weights @ v[inside, head])
        scores = torch.stack(keys) @ own * tensors["log_sharpness"][head].exp() / DIM**0.5
        logit = tensors["summary_gate"][head] @ own + tensors["summary_bias"][head]
        yield scores.softmax(0) @ torch.stack(values), logit


def _is_in(part: str, token: int, other: int) -> bool:
    apart = abs(token // BLOCK - other // BLOCK)
    return {
        "everything": True,
        "own_block": apart == 0,
        "neighbours": apart == 1,
        "farther": apart > 1,
    }[part]


@pytest.mark.parametrize("name", TRAINED)
def test_each_variant_is_its_dense_truth(name: str, calibration: Calibration, rows: Rows) -> None:
    tensors = moved(name, calibration)
    found = attended(name, tensors, rows)[CHECKED]
    torch.testing.assert_close(found, dense_truth(name, tensors, rows), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["lln_diag", "lln_in_upper_layers", "lln_by_distance"])
def test_some_begin_as_the_calibrated_model(
    name: str, calibration: Calibration, rows: Rows
) -> None:
    gate, query_map, key_map = calibration.gate, calibration.query_map, calibration.key_map
    assert gate is not None
    assert query_map is not None
    assert key_map is not None
    shares = torch.sigmoid((rows[0] * gate[0]).sum(-1) + torch.logit(calibration.mix[0]))
    expected = reference.lln_diag_attention(
        *rows,
        alpha=calibration.alpha[0],
        beta=calibration.beta[0],
        mix=shares * (1 - BLOCK / LENGTH),
        block_size=BLOCK,
        num_sinks=SINKS,
        q_map=(query_map[0], torch.zeros(HEADS, DIM, dtype=torch.float64)),
        k_map=(key_map[0], calibration.key_shift[0]),
    )
    found = attended(name, first_tensors(VARIANTS[name], calibration, 0), rows)
    torch.testing.assert_close(found, expected)


def test_parts_by_distance_are_the_whole_document() -> None:
    parts = parts_of_document(BY_DISTANCE, 5)
    assert parts.sum(0).eq(1).all()
    assert parts[1, 0].tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("name", TRAINED)
def test_documents_of_a_batch_do_not_see_each_other(
    name: str, calibration: Calibration, rows: Rows
) -> None:
    tensors = moved(name, calibration)
    q, k, v = (torch.cat([x[:20], x]) for x in rows)
    attention = attention_of(VARIANTS[name], tensors, block=BLOCK, num_sinks=SINKS)
    packed = PackedSequences.of([0, 20, 20 + LENGTH], torch.device("cpu"))
    torch.testing.assert_close(attention(q, k, v, packed)[20:], attended(name, tensors, rows))


@pytest.fixture
def model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=32, num_sinks=SINKS)


@cache
def documents(seed: int) -> tuple[Document, ...]:
    generator = np.random.default_rng(seed)

    def paragraph() -> str:
        return " ".join("".join(generator.choice(list("abcdefg"), 4)) for _ in range(50))

    bodies = [
        "\n\n".join(f"## xx{n}\n\n{paragraph()}\n\n{paragraph()}" for n in range(4))
        for _ in range(12)
    ]
    return tuple(Document(f"{at}", f"t{at}", body, f"t{at}") for at, body in enumerate(bodies))


@pytest.fixture
def contest(model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch) -> SelectivityContest:
    for seed, name in enumerate(("learned from", "chosen on", "judged on")):
        source = CorpusSource("toy", partial(_read, seed))
        monkeypatch.setitem(SOURCES, name, source)
    monkeypatch.setattr(
        f"{SelectivityContest.__module__}.load_model", lambda name, *, attention, config: model
    )
    return SelectivityContest(
        model=model.name,
        block=BLOCK,
        length=80,
        trained_layers=1,
        documents=6,
        corpora=("learned from",),
        validation=("chosen on",),
        test=("judged on",),
        limits=DocumentLimits(shortest=50, tokens=4000),
        budget=TrainingBudget(steps=2, batch=2, warm_up=1, weight_decay=0.0, clip=1.0, examples=2),
        rates=(1e-3,),
        tuning_seeds=0,
    )


def _read(seed: int) -> Iterator[Document]:
    yield from documents(seed)


def ignore(*told: object) -> None:
    pass


def test_the_same_bytes_twice_and_after_an_interruption(
    contest: SelectivityContest, tmp_path: Path
) -> None:
    methods = ("block_diagonal", "lln_share_by_head", "untrained_lln_diag")
    plan = ContestPlan(contest=contest, methods=methods, seeds=2, threads=1)
    found = run_contest(plan, tmp_path / "whole", {}, ignore)
    lines = (tmp_path / "whole" / TRIALS_FILE).read_text().splitlines(keepends=True)
    assert len(lines) == 2 * len(methods)
    run_contest(plan, tmp_path / "parts", {}, ignore)
    (tmp_path / "parts" / TRIALS_FILE).write_text("".join(lines[:4]))
    fresh = replace(contest)  # has kept no states
    run_contest(replace(plan, contest=fresh), tmp_path / "parts", {}, ignore)
    one, other = ((tmp_path / run / RESULT_FILE).read_bytes() for run in ("whole", "parts"))
    assert one == other
    for method in found["methods"].values():
        for figure, by_seed in method["minus_reference"].items():
            if figure not in ("score", "last_training_loss"):
                by_documents = method["minus_reference_by_document"][figure]
                assert by_documents["mean"] == pytest.approx(by_seed["mean"], abs=1e-5)
    reference_ = found["methods"]["block_diagonal"]["minus_reference_by_document"]
    assert reference_["passages"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_a_seed_draws_the_same_documents_for_all(contest: SelectivityContest) -> None:
    trials = [
        Trial(method=name, rate=0.0, seed=3, part="test")
        for name in ("lln_diag", "lln_by_distance")
    ]
    one, other = (contest.measure(trial).figures["last_training_loss"] for trial in trials)
    assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("name", TRAINED)
def test_all_that_a_variant_trains_gets_gradients(name: str, model: EmbeddingModel) -> None:
    readers = Readers(model, block=BLOCK, trained_layers=1)
    variant = VARIANTS[name]
    shares = None if variant.has_gate else [torch.full((4,), 0.2)]
    layers = UpperLayers(readers, variant, shares)
    ids = torch.arange(3 * BLOCK) % 20 + 5
    weights = torch.randn(len(ids), 64)
    (layers(readers.states_below(ids, variant.below), [0, len(ids)]) * weights).sum().backward()
    parameters = list(layers.parameters())
    assert all(one.grad is not None and bool(one.grad.abs().sum() > 0) for one in parameters)
    grouped = layers.groups({"encoder": 1.0, "maps": 20.0, "scalars": 50.0})
    assert sum(len(group["params"]) for group in grouped) == len(parameters)


def test_untrained_layers_are_the_model(model: EmbeddingModel) -> None:
    readers = Readers(model, block=BLOCK, trained_layers=2)
    ids = torch.arange(3 * BLOCK + 7) % 20 + 5
    for name, kind in (("untrained_lln_diag", "lln_diag"), ("untrained_blocks", "block_diagonal")):
        variant = VARIANTS[name]
        with torch.no_grad():
            found = UpperLayers(readers, variant)(
                readers.states_below(ids, variant.below), [0, len(ids)]
            )
            expected = readers.model.with_attention(kind).encoder(ids, [0, len(ids)])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_intervals_by_documents() -> None:
    values, places = np.array([1.0, 0.0, 0.5, 0.5]), np.array([0, 0, 2, 2])
    own = by_document({"one": Answers(values, places)})
    none = by_document({"one": Answers(np.zeros(4), places)})
    assert own == {"one": [[1.0, 2], [1.0, 2]]}
    found = minus_by_document([{"found": own}, {"found": none}], [{"found": none}] * 2)
    expected = interval(Answers(np.full(4, 0.25), places))
    assert expected is not None
    assert found["found"]["mean"] == expected.mean == 0.25
    assert minus_by_document([{}], [{}]) == {}


def test_what_cannot_run_is_told_before_anything_runs(
    contest: SelectivityContest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(changed: SelectivityContest) -> None:
        plan = ContestPlan(contest=changed, methods=changed.methods, seeds=2, threads=1)
        run_contest(plan, tmp_path / "out", {}, ignore)

    with pytest.raises(InvalidInput, match="has 2 layers; 3 cannot be trained"):
        run(replace(contest, trained_layers=3))
    with pytest.raises(InvalidInput, match="no document has 4000 tokens"):
        run(replace(contest, length=4000))
    with pytest.raises(InvalidInput, match="unknown corpus 'judged'"):
        run(replace(contest, test=("judged",)))
    with pytest.raises(InvalidInput, match="no passage to ask for in documents of 5000 to 6000"):
        run(replace(contest, limits=DocumentLimits(shortest=5000, longest=6000)))
    monkeypatch.setattr("engine.experiments.training_memory.free_bytes", lambda device: 1000)
    with pytest.raises(InsufficientMemory, match="selectivity needs about"):
        run(contest)
    assert not (tmp_path / "out").exists()
