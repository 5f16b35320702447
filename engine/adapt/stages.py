"""What a training run does: stages, their rates, and the losses' weights."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from engine.adapt.checks import check_name, check_number, check_type, check_whole, invalid
from engine.adapt.objective import LossWeights
from engine.adapt.student import Part
from engine.errors import InvalidInput
from engine.types import Precision

StageKind: TypeAlias = Literal["attention", "states", "contrast", "pairs"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Steps of one kind. Each draws one of the lengths and fills the batch with such windows, or,
    for "pairs" of a query and what it should find, with documents of at most that length."""

    kind: StageKind
    steps: int
    lengths: tuple[int, ...]
    batch_tokens: int
    rates: dict[Part, float]
    """Learning rates at their highest; parts left out stay as they are."""

    query_tokens: int = 96
    """For "contrast": the stretch that is taken out of a document and must find it."""

    passage_share: float = 0.5
    """For "pairs": how many of the steps look for passages, the others for whole documents."""

    cut_share: float = 0.0
    """For "pairs": how many of the documents that have a query, and are long enough, are asked for
    by a stretch cut out of them all the same."""

    stretches: int = 0
    """For "pairs": so many stretches of each whole document, which stay in it, ask for it too, each
    read alone by the teacher."""

    shortest: int = 0
    """For "pairs": whole documents of fewer tokens are not asked for."""

    held_share: float = 0.0
    """For "pairs": of the distance that documents and their windows, read whole, have from the
    teacher's windows, beside finding."""

    fidelity_share: float = 1.0
    """For "contrast" and "pairs": of the distance to the teacher, beside finding."""

    def __post_init__(self) -> None:
        check_name("kind", self.kind, get_args(StageKind))
        check_whole("steps", self.steps, least=1)
        check_whole("batch_tokens", self.batch_tokens, least=1)
        check_whole("query_tokens", self.query_tokens, least=_SHORTEST_QUERY)
        check_number("passage_share", self.passage_share, most=1)
        check_number("cut_share", self.cut_share, most=1)
        check_whole("stretches", self.stretches, least=0)
        check_whole("shortest", self.shortest, least=0)
        check_number("held_share", self.held_share)
        check_number("fidelity_share", self.fidelity_share)
        self._check_lengths()
        self._check_rates()

    def _check_lengths(self) -> None:
        check_type("lengths", self.lengths, tuple, _LENGTHS)
        if not self.lengths:
            raise invalid("lengths", [], _LENGTHS)
        for length in self.lengths:
            check_whole("a length", length, least=1)
        if self.batch_tokens < max(self.lengths):
            raise InvalidInput(
                f"a batch of {self.batch_tokens} tokens holds no window of {max(self.lengths)}",
                code="invalid_training_plan",
                param="batch_tokens",
                limit=max(self.lengths),
                actual=self.batch_tokens,
            )
        if self.kind == "contrast" and min(self.lengths) < 2 * self.query_tokens:
            raise InvalidInput(
                f"a query of {self.query_tokens} tokens is more than half of {min(self.lengths)}",
                code="invalid_training_plan",
                param="query_tokens",
                limit=min(self.lengths) // 2,
                actual=self.query_tokens,
            )

    def _check_rates(self) -> None:
        check_type("rates", self.rates, dict, "an object of learning rates")
        for part, rate in self.rates.items():
            check_name("a part that has a rate", part, get_args(Part))
            check_number(f"the rate of {part}", rate)


_LENGTHS = "a list of numbers of tokens"
_SHORTEST_QUERY = 3  # a shorter one leaves no place in twice its tokens to be cut from
_SHORTEST_WINDOW = 3  # of the special tokens and one more
_NEEDED = {field.name for field in fields(Stage) if field.default is MISSING}
_RECIPES = Path(__file__).parent / "recipes"
DEFAULT_RECIPE = "lln"


def recipes() -> list[str]:
    """Names of the stages that come with this package."""
    return sorted(path.stem for path in _RECIPES.glob("*.json"))


def recipe(name: str) -> tuple[Stage, ...]:
    if name not in recipes():
        known = ", ".join(recipes())
        raise InvalidInput(
            f"no recipe is named {name!r}; known are {known}",
            code="unknown_recipe",
            param="recipe",
            limit=known,
            actual=name,
        )
    return stages_from(json.loads((_RECIPES / f"{name}.json").read_text("utf-8")))


def stages_from(items: object) -> tuple[Stage, ...]:
    """Stages from JSON: a list of objects with a stage's fields."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidInput("stages must be a list of objects", code="invalid_stages")
    known = {field.name for field in fields(Stage)}
    for item in items:
        if unknown := set(item) - known:
            raise InvalidInput(
                f"a stage has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}",
                code="invalid_stages",
                limit=", ".join(sorted(known)),
                actual=", ".join(sorted(unknown)),
            )
        if missing := _NEEDED - set(item):
            raise InvalidInput(
                f"a stage is incomplete: it has no {', '.join(sorted(missing))}",
                code="invalid_stages",
            )
    return tuple(Stage(**item | {"lengths": _as_tuple(item["lengths"])}) for item in items)


def _as_tuple(value: Any) -> Any:
    """JSON has lists alone; what is none is for the stage to refuse."""
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    stages: tuple[Stage, ...] = field(default_factory=lambda: recipe(DEFAULT_RECIPE))
    loss: LossWeights = field(default_factory=LossWeights)
    teacher_window: int = 512
    """Tokens that a teacher with learned positions reads at once; one without reads all that it was
    trained to."""

    precision: Precision = "float32"
    """Of the model's products; "bfloat16" is faster where a device has it, and what is learned
    stays float32."""

    warmup: int = 50
    clip: float = 1.0
    seed: int = 0
    save_every: int = 25
    watch_every: int = 50
    """Steps between two looks at the student's attention."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise InvalidInput("a training plan needs a stage", param="stages", limit=1, actual=0)
        check_whole("teacher_window", self.teacher_window, least=_SHORTEST_WINDOW)
        check_name("precision", self.precision, get_args(Precision))
        check_whole("warmup", self.warmup, least=0)
        check_number("clip", self.clip)
        check_whole("seed", self.seed, least=0)
        check_whole("save_every", self.save_every, least=1)
        check_whole("watch_every", self.watch_every, least=1)

    def trains(self, part: Part) -> bool:
        return any(stage.rates.get(part) for stage in self.stages)

    @property
    def num_steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def at(self, step: int) -> tuple[Stage, float]:
        """The stage of a step, and how much of its rates it takes: up, then a cosine down."""
        for stage in self.stages:
            if step < stage.steps:
                rise = min(1.0, (step + 1) / max(min(self.warmup, stage.steps), 1))
                return stage, rise * 0.5 * (1 + math.cos(math.pi * step / stage.steps))
            step -= stage.steps
        raise IndexError(step)
