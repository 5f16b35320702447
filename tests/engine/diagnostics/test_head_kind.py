"""What kind a head is: made-up heads of one kind each, and all heads that read a real text."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.analysis.layer_capture import capture_layers, head_view
from engine.analysis.token_kinds import is_delimiter, token_kinds
from engine.diagnostics import Effort, HeadView, Reading
from engine.diagnostics.head_kind import (
    DELIMITER,
    KINDS,
    LOCAL_TOKENS,
    MIXED,
    NAMED_SHARE,
    SPECIAL,
    WORD,
)
from engine.diagnostics.sampling import choose_rows
from engine.execution.documents import prepare_document
from engine.model.embedding_model import EmbeddingModel
from engine.steps import finish
from engine.types import EmbedOptions
from tests.engine.dense import kind_shares, read

pytestmark = pytest.mark.usefixtures("one_thread")

NAME = "head_kind"
LENGTH = 60
SHARPNESS = 40.0


def head_with(wanted: Tensor, kinds: Tensor) -> HeadView:
    """One head whose row i attends to the keys marked in wanted[i], evenly: [N, N]."""
    places = torch.eye(LENGTH, dtype=torch.float64)
    queries = SHARPNESS * wanted.double() * LENGTH**0.5
    return HeadView(
        q=queries.unsqueeze(1), k=places.unsqueeze(1), attention="softmax", token_kinds=kinds
    )


def cases() -> dict[str, Tensor]:
    offset = torch.arange(LENGTH) - torch.arange(LENGTH).unsqueeze(1)
    kinds = made_up_kinds()
    everywhere = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    return {
        "diffuse": everywhere,
        "sinks": everywhere & (kinds == SPECIAL),
        "delimiters": everywhere & (kinds == DELIMITER),
        "previous": offset == -1,
        "next": offset == 1,
        "self": offset == 0,
        "local": (offset.abs() > 1) & (offset.abs() <= LOCAL_TOKENS) & (kinds == WORD),
        "content": (offset % 30 == 20) & (kinds == WORD),
    }


def made_up_kinds() -> Tensor:
    kinds = torch.full((LENGTH,), WORD)
    kinds[5::9] = DELIMITER
    kinds[[0, -1]] = SPECIAL
    return kinds


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_one_kind_is_named_after_it(kind: str) -> None:
    found = read(head_with(cases()[kind], made_up_kinds()), NAME)
    assert found.labels == (kind,)
    assert found.values[0] == found.beside[kind].values[0] > 0.6


def test_a_head_of_many_kinds_is_mixed() -> None:
    offset = torch.arange(LENGTH) - torch.arange(LENGTH).unsqueeze(1)
    wanted = (offset.abs() <= 1) | (torch.arange(LENGTH) == 0)  # four of them, a quarter each
    found = read(head_with(wanted, made_up_kinds()), NAME)
    assert found.labels == (MIXED,)
    assert found.values[0] < NAMED_SHARE


def test_rows_that_a_sample_missed_are_within_its_error() -> None:
    """All rows attend to the token before, but for one that no sample here reads."""
    offset = torch.arange(LENGTH) - torch.arange(LENGTH).unsqueeze(1)
    wanted, words = offset == -1, torch.full((LENGTH,), WORD)
    effort = Effort(mode="sampled", sampled_rows=20)
    read_rows = choose_rows(head_with(wanted, words), effort.sampled_rows, effort.seed)
    odd = next(row for row in range(20, LENGTH) if row not in read_rows)
    wanted[odd] = offset[odd] == 0
    view = head_with(wanted, words)
    sampled, whole = read(view, NAME, effort), read(view, NAME)
    for kind in ("previous", "self"):
        found, truth = sampled.beside[kind], whole.beside[kind].values
        assert found.error is not None
        assert truth != pytest.approx(found.values, abs=0.01)
        assert (abs(found.values - truth) <= 3 * found.error).all()


@pytest.mark.parametrize("name", ["default", "published"])
def test_all_heads_of_a_real_text(
    name: str, long_text: str, request: pytest.FixtureRequest
) -> None:
    """Longer than a block, so that LLN has its share; a quarter of the heads, others in each layer,
    against the dense matrix."""
    model: EmbeddingModel = request.getfixturevalue(f"{name}_model")
    text = prepare_document(long_text[:2_350], model, EmbedOptions(), None)
    kinds = token_kinds(model.tokenizer, text.ids)
    assert text.num_embedded > 512
    labels: Counter[str] = Counter()
    for layer, steps in enumerate(capture_layers(model, text)):
        view = replace(head_view(model, finish(steps)), token_kinds=kinds)
        found = read(view, NAME)
        some = range(layer % 4, view.num_heads, 4)
        shares = kind_shares(view.only(some))
        for kind, share in shares.items():
            values = found.beside[kind].values[some]
            np.testing.assert_allclose(values, share, atol=1e-9, err_msg=kind)
        np.testing.assert_allclose(sum(shares.values()), 1, atol=1e-9)
        assert found.labels == names(found)
        labels.update(found.labels)
        sampled = read(view, NAME, Effort(mode="sampled", sampled_rows=200))
        assert sampled.error is not None
        assert (np.abs(sampled.values - found.values) <= 5 * sampled.error + 1e-3).mean() > 0.8
    assert {"diffuse", "content", "previous", "next"} <= set(labels)


def names(found: Reading) -> tuple[str, ...]:
    by_kind = np.stack([found.beside[kind].values for kind in KINDS])
    return tuple(KINDS[row.argmax()] if row.max() >= NAMED_SHARE else MIXED for row in by_kind.T)


def test_tokens_of_a_text(default_model: EmbeddingModel) -> None:
    text = prepare_document("Well, it's (so) fine!", default_model, EmbedOptions(), None)
    written = default_model.tokenizer.tokens_of(text.ids)
    marks = {SPECIAL: "s", DELIMITER: "d", WORD: "w"}
    found = token_kinds(default_model.tokenizer, text.ids).tolist()
    assert [(token, marks[kind]) for token, kind in zip(written, found, strict=True)] == [
        ("[CLS]", "s"),
        *(("well", "w"), (",", "d"), ("it", "w"), ("'", "d"), ("s", "w"), ("(", "d")),
        *(("so", "w"), (")", "d"), ("fine", "w"), ("!", "d"), ("[SEP]", "s")),
    ]


@pytest.mark.parametrize(
    ("token", "is_one"),
    [(".", True), ("Ġ.", True), ("▁...", True), ("##-", True), ("##a", False), ("$", False)],
)
def test_delimiters(token: str, is_one: bool) -> None:
    assert is_delimiter(token) == is_one
