"""The student: the teacher's encoder with LLN+Diag attention, and tensors that can be trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from engine.checkpoint.calibration import Calibration
from engine.model.attention import LayerAttention, LLNDiagAttention
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.lln_parameters import LLNParameters
from engine.model.weight_overrides import dense, named_tensors

Part: TypeAlias = Literal["scalars", "maps", "encoder"]
"""A group of tensors with one learning rate: alpha, beta, shares, shifts and gates; the maps before
the exponentials; the encoder's own tensors."""

_SCALARS = ("alpha", "beta", "share", "key_shift", "gate")
_MAPS = ("query_map", "key_map")
_MIN_SHARE = 1e-3  # keeps the logit finite where calibration set a share of 0 or 1


@dataclass(frozen=True, kw_only=True)
class StudentPlan:
    """What the student may learn, beside alpha, beta, shares and shifts."""

    gate: bool = True  # by which each token decides how much of LLN it takes
    maps: bool = True
    encoder: bool = True  # norms, products and positions, but not the word vectors
    without_lln: bool = False  # the control: the same blocks and sinks without LLN


class Student:
    """Tensors with gradients, and the encoder made from them."""

    def __init__(
        self, teacher: EmbeddingModel, calibration: Calibration, plan: StudentPlan
    ) -> None:
        self._teacher = teacher
        self._calibration = calibration
        self.plan = plan
        device = teacher.encoder.device
        # The encoder as an earlier training left it; this training may not change it.
        self._before = {
            name: tensor.to(device, torch.float32) for name, tensor in calibration.adapted.items()
        }
        self.tensors: dict[str, Tensor] = {
            name: tensor.detach().to(device, torch.float32, copy=True).requires_grad_()
            for name, tensor in _initial(teacher, calibration, plan)
        }

    def of_part(self, part: Part) -> list[Tensor]:
        return [tensor for name, tensor in self.tensors.items() if part_of(name) == part]

    def encoder(self) -> Encoder:
        """The encoder with the current tensors, for a forward pass with gradients."""
        return Encoder(
            dense(self._teacher.encoder.weights, self._before | self._of_encoder(self.tensors)),
            self.attention(),
            positions=self._calibration.positions,
            block_size=self._calibration.block_size,
            long_block=self._calibration.long_block,
        )

    def attention(self) -> list[LayerAttention]:
        return [
            attention
            if attention.kind == "sliding_window"
            else LLNDiagAttention(self._parameters(layer))
            for layer, attention in enumerate(self._teacher.encoder.attention)
        ]

    def calibration(self, strength: float = 1.0) -> Calibration:
        """What was learned, to be written beside the weights.

        `strength` interpolates between the numbers that training began with (0) and the learned
        ones (1).
        """
        numbers = {name: tensor.detach().cpu() for name, tensor in self.tensors.items()}
        if strength != 1.0:
            begun = dict(_initial(self._teacher, self._calibration, self.plan))
            numbers = {
                name: torch.lerp(begun[name].detach().cpu().float(), tensor, strength)
                for name, tensor in numbers.items()
            }
        return replace(
            self._calibration,
            pooling_slope=0.0 if self.plan.without_lln else self._calibration.pooling_slope,
            alpha=numbers["alpha"],
            beta=numbers["beta"],
            mix=self._shares(numbers["share"]),
            key_shift=numbers["key_shift"],
            gate=numbers.get("gate"),
            query_map=numbers.get("query_map"),
            key_map=numbers.get("key_map"),
            # Half precision halves the file; loading converts to the model's dtype.
            adapted=dict(self._calibration.adapted)
            | {name: tensor.half() for name, tensor in self._of_encoder(numbers).items()},
        )

    def pooling_slope_of(self, num_tokens: int) -> float:
        """The slope that the new model will pool a text of this length with."""
        return 0.0 if self.plan.without_lln else self._calibration.pooling_slope_of(num_tokens)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over tensors that were saved earlier."""
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(tensors[name])

    def _parameters(self, layer: int) -> LLNParameters:
        def of_layer(name: str) -> Tensor | None:
            stacked = self.tensors.get(name)
            return None if stacked is None else stacked[layer]

        calibration = self._calibration
        return LLNParameters(
            alpha=self.tensors["alpha"][layer],
            beta=self.tensors["beta"][layer],
            mix=self._shares(self.tensors["share"][layer]),
            key_shift=self.tensors["key_shift"][layer],
            block_size=calibration.block_size,
            num_sinks=calibration.num_sinks,
            long_block=calibration.long_block,
            query_map=of_layer("query_map"),
            key_map=of_layer("key_map"),
            gate=of_layer("gate"),
        )

    @staticmethod
    def _of_encoder(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in tensors.items() if part_of(name) == "encoder"}

    def _shares(self, logits: Tensor) -> Tensor:
        return torch.zeros_like(logits) if self.plan.without_lln else torch.sigmoid(logits)


def part_of(name: str) -> Part:
    if name in _SCALARS:
        return "scalars"
    return "maps" if name in _MAPS else "encoder"


def _initial(
    teacher: EmbeddingModel, calibration: Calibration, plan: StudentPlan
) -> Iterator[tuple[str, Tensor]]:
    """The calibration's numbers; what it lacks begins at the value that changes nothing."""
    yield "alpha", calibration.alpha
    yield "beta", calibration.beta
    yield "share", torch.logit(calibration.mix.clamp(_MIN_SHARE, 1 - _MIN_SHARE))
    yield "key_shift", calibration.key_shift
    layers, heads, dim = calibration.key_shift.shape
    if plan.gate and not plan.without_lln:
        known = calibration.gate
        yield "gate", torch.zeros(layers, heads, dim) if known is None else known
    if plan.maps and not plan.without_lln:
        identity = torch.eye(dim).expand(layers, heads, dim, dim)
        for name, known in (
            ("query_map", calibration.query_map),
            ("key_map", calibration.key_map),
        ):
            yield name, identity if known is None else known
    if plan.encoder:
        weights = teacher.encoder.weights
        for name, tensor in named_tensors(weights):
            yield name, calibration.adapted.get(name, tensor)
