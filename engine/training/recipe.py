"""What a training run does: stages of steps, their learning rates, and the weights of the losses.

A recipe is a JSON file with a list of stages. The fields of `Stage` are its keys.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from engine.errors import InvalidInput, shown, unknown_name
from engine.training.losses import LossWeights
from engine.training.student import Part
from engine.types import Context, Precision

StageKind: TypeAlias = Literal["attention", "states", "contrast", "pairs", "chunks", "questions"]

DEFAULT_RECIPE = "lln"

_RECIPES = Path(__file__).parent / "recipes"
_LENGTHS = "a list of numbers of tokens"
_MIN_QUERY_TOKENS = 3  # a query's window has twice as many, and the query must fit into it
_MIN_TEACHER_WINDOW = 3  # the two special tokens and one more


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Steps of one kind. Each step draws one of the lengths.

    The batch is filled with windows of that length or, for "pairs" of a query and what it should
    find and for "chunks" of documents, with documents that are no longer.
    """

    kind: StageKind
    steps: int
    lengths: tuple[int, ...]
    batch_tokens: int
    rates: dict[Part, float]
    """The highest learning rate of each part. A part without a rate is not trained."""

    query_tokens: int = 96
    """For "contrast": the length of the stretch that is cut out of a window and must find it."""

    passage_share: float = 0.5
    """For "pairs": the share of steps that look for passages. The others look for documents."""

    cut_share: float = 0.0
    """For "pairs": the share of documents with a query that are looked for by a stretch instead,
    which is cut out of them. Only documents that are long enough count."""

    stretches: int = 0
    """For "pairs": the number of stretches of each document, not cut out of it, that should find
    the document as well. The teacher reads each stretch alone."""

    shortest: int = 0
    """For "chunks", "questions" and steps of "pairs" that look for whole documents: those of fewer
    tokens are not drawn. "pairs" looks for passages in documents of any length."""

    held_share: float = 0.0
    """For "pairs": the weight of the window loss, which holds documents and their windows near the
    teacher's vectors of these windows."""

    context_share: float = 1.0
    """For "chunks": the weight of the document's title, or its opening where it has none, in the
    vector that a chunk should have. The chunk read alone has a weight of 1."""

    mean_share: float = 0.0
    """For "chunks": the weight of the mean of the document's chunks in the same vector."""

    linked: bool = False
    """For "chunks" and "questions": whether passages are linked, not late."""

    title_share: float = 0.0
    """For "questions": the weight of the title's vector in passages, as they will be served."""

    fidelity_share: float = 1.0
    """For "contrast", "pairs", "chunks" and "questions": the weight of the distance to the teacher,
    of short texts for all but "contrast"."""

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, get_args(StageKind))
        _check_whole("steps", self.steps, least=1)
        _check_whole("batch_tokens", self.batch_tokens, least=1)
        _check_whole("query_tokens", self.query_tokens, least=_MIN_QUERY_TOKENS)
        _check_number("passage_share", self.passage_share, most=1)
        _check_number("cut_share", self.cut_share, most=1)
        _check_whole("stretches", self.stretches, least=0)
        _check_whole("shortest", self.shortest, least=0)
        _check_number("held_share", self.held_share)
        _check_number("context_share", self.context_share)
        _check_number("mean_share", self.mean_share)
        _check_number("title_share", self.title_share)
        _check_number("fidelity_share", self.fidelity_share)
        if not isinstance(self.linked, bool):
            raise _invalid("linked", self.linked, "true or false")
        self._check_lengths()
        self._check_rates()

    def _check_lengths(self) -> None:
        if not isinstance(self.lengths, tuple):
            raise _invalid("lengths", self.lengths, _LENGTHS)
        if not self.lengths:
            raise _invalid("lengths", [], _LENGTHS)
        for length in self.lengths:
            _check_whole("a length", length, least=1)
        if self.batch_tokens < max(self.lengths):
            raise InvalidInput(
                f"a batch of {self.batch_tokens} tokens is too small for a window of "
                f"{max(self.lengths)}",
                code="invalid_training_plan",
                param="batch_tokens",
                limit=max(self.lengths),
                actual=self.batch_tokens,
            )
        if self.kind == "contrast" and min(self.lengths) < 2 * self.query_tokens:
            raise InvalidInput(
                f"a query of {self.query_tokens} tokens is more than half of a window of "
                f"{min(self.lengths)}",
                code="invalid_training_plan",
                param="query_tokens",
                limit=min(self.lengths) // 2,
                actual=self.query_tokens,
            )

    def _check_rates(self) -> None:
        if not isinstance(self.rates, dict):
            raise _invalid("rates", self.rates, "an object of learning rates")
        for part, rate in self.rates.items():
            _check_choice("a part that has a rate", part, get_args(Part))
            _check_number(f"the rate of {part}", rate)


def recipe_names() -> list[str]:
    """The recipes that come with this package."""
    return sorted(path.stem for path in _RECIPES.glob("*.json"))


def load_recipe(name: str) -> tuple[Stage, ...]:
    if name not in recipe_names():
        raise unknown_name("recipe", name, recipe_names(), param="recipe", code="unknown_recipe")
    return parse_stages(json.loads((_RECIPES / f"{name}.json").read_text("utf-8")))


def parse_stages(items: object) -> tuple[Stage, ...]:
    """Stages from JSON: a list of objects with the fields of a stage."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidInput("stages must be a list of objects", code="invalid_stages")
    known = {field.name for field in fields(Stage)}
    needed = {field.name for field in fields(Stage) if field.default is MISSING}
    for item in items:
        if unknown := set(item) - known:
            raise InvalidInput(
                f"a stage has no field {', '.join(sorted(unknown))}; the fields are "
                f"{', '.join(sorted(known))}",
                code="invalid_stages",
                limit=", ".join(sorted(known)),
                actual=", ".join(sorted(unknown)),
            )
        if missing := needed - set(item):
            raise InvalidInput(
                f"a stage is incomplete: it lacks {', '.join(sorted(missing))}",
                code="invalid_stages",
            )
    return tuple(Stage(**item | {"lengths": _as_tuple(item["lengths"])}) for item in items)


def _as_tuple(value: Any) -> Any:
    """JSON has lists only. `Stage` rejects what is not a list."""
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    stages: tuple[Stage, ...] = field(default_factory=lambda: load_recipe(DEFAULT_RECIPE))
    loss: LossWeights = field(default_factory=LossWeights)
    teacher_window: int = 512
    """Tokens that a teacher with a position table reads at once. A teacher without one reads all
    that it was trained to read."""

    precision: Precision = "float32"
    """Precision of the model's products. "bfloat16" is faster on devices that have units for it;
    a CPU without them refuses it. What is learned stays float32."""

    warmup: int = 50
    """Steps at the start of a stage in which the rates rise to their highest."""

    clip: float = 1.0
    """The largest norm of a step's gradient."""

    seed: int = 0
    save_every: int = 25
    watch_every: int = 50
    """Steps between two measurements of the student's attention."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise InvalidInput("a training plan needs a stage", param="stages", limit=1, actual=0)
        _check_whole("teacher_window", self.teacher_window, least=_MIN_TEACHER_WINDOW)
        _check_choice("precision", self.precision, get_args(Precision))
        _check_whole("warmup", self.warmup, least=0)
        _check_number("clip", self.clip)
        _check_whole("seed", self.seed, least=0)
        _check_whole("save_every", self.save_every, least=1)
        _check_whole("watch_every", self.watch_every, least=1)

    def trains(self, part: Part) -> bool:
        return any(stage.rates.get(part) for stage in self.stages)

    @property
    def taught_context(self) -> Context | None:
        """The context in which chunks have learned to be found, if a stage taught them that."""
        asks = any(stage.kind == "questions" and not stage.linked for stage in self.stages)
        return "one_pass" if asks else None

    @property
    def num_steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def at(self, step: int) -> tuple[Stage, float]:
        """The stage of a step, and the factor of its rates: a linear warm-up times a cosine."""
        for stage in self.stages:
            if step < stage.steps:
                warmup = min(1.0, (step + 1) / max(min(self.warmup, stage.steps), 1))
                return stage, warmup * 0.5 * (1 + math.cos(math.pi * step / stage.steps))
            step -= stage.steps
        raise IndexError(step)


def _check_whole(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _invalid(name, value, f"a whole number of at least {least}")


def _check_number(name: str, value: object, *, most: float = sys.float_info.max) -> None:
    """The value must be finite and at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        any_size = most == sys.float_info.max
        raise _invalid(name, value, "a number of at least 0" if any_size else f"from 0 to {most:g}")


def _check_choice(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise _invalid(name, value, f"one of {', '.join(known)}")


def _invalid(name: str, value: object, wanted: str) -> InvalidInput:
    return InvalidInput(
        f"{name} must be {wanted}, got {shown(repr(value))}",
        code="invalid_training_plan",
        param=name,
        limit=wanted,
        actual=repr(value),
    )
