"""A model of transformers around the engine: the server's vectors, from token ids."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from engine import Engine, EngineConfig
from engine.checkpoint.folder import EXPORTED_TYPE
from engine.model.embedding_model import load_model
from engine.platform.device import torch_dtype
from engine.types import EmbedOptions

_UNNORMALISED = EmbedOptions(normalize=False)
_KEPT = ("config.json", "lln.safetensors", "data.json")


class LLNConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The config.json of a folder that `lln export` wrote."""

    model_type = EXPORTED_TYPE


class LLNModel(PreTrainedModel):
    """Reads documents of any length with LLN+Diag attention. It embeds and is not trained:
    `lln adapt` does that."""

    config_class = LLNConfig

    def __init__(self, config: LLNConfig, folder: Path, engine_config: EngineConfig) -> None:
        super().__init__(config)
        self._folder = folder
        self._load(engine_config)
        # Says where the model is and in what dtype; the engine holds the weights.
        weights = self._engine.model.encoder.weights
        dtype = torch_dtype(self._engine.info.dtype)
        place = torch.zeros(1, device=weights.words.device, dtype=dtype)
        self.place = nn.Parameter(place, requires_grad=False)

    @classmethod
    def from_pretrained(  # type: ignore[override] # their options are about files of theirs
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *args: Any, **options: Any
    ) -> LLNModel:
        """Load a folder, on the CPU in float32 unless `dtype` says otherwise; `to` moves it."""
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            raise OSError(
                f"{pretrained_model_name_or_path} is not a folder: download the model first, with "
                "huggingface_hub.snapshot_download"
            )
        config = options.get("config") or LLNConfig.from_pretrained(folder)
        chosen = options.get("dtype") or options.get("torch_dtype") or "auto"
        dtype = "float32" if chosen == "auto" else str(chosen).removeprefix("torch.")
        model = cls(config, folder, EngineConfig(device="cpu", dtype=dtype))
        model.training = False
        return model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        return_dict: bool = True,
    ) -> BaseModelOutputWithPooling:
        """The state of every token [B, N, W], zero for padding, and the pooled vectors [B, W]."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        kept = mask.bool()
        bounds = [0, *accumulate(kept.sum(1).tolist())]
        with torch.inference_mode():
            states = self._engine.model.encoder(input_ids[kept], bounds)
        padded = states.new_zeros(*input_ids.shape, states.shape[-1])
        padded[kept] = states
        pooled = self.get_text_features(input_ids, mask)
        return BaseModelOutputWithPooling(last_hidden_state=padded, pooler_output=pooled)

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Pooled vectors [B, W], not normalised. Long texts are read tile by tile."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        texts = [ids[kept.bool()].tolist() for ids, kept in zip(input_ids, mask, strict=True)]
        vectors = self._engine.embed(texts, options=_UNNORMALISED)
        return torch.from_numpy(vectors).to(self.place)

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | os.PathLike[str], **_: Any
    ) -> None:
        """Copy the model's files; sentence-transformers adds its own."""
        out = Path(save_directory)
        out.mkdir(parents=True, exist_ok=True)
        weights = [path.name for path in self._engine.model.checkpoint.weights.paths]
        indexes = [path.name for path in self._folder.glob("*.safetensors.index.json")]
        for name in {*_KEPT, *weights, *indexes}:
            if (self._folder / name).exists():
                shutil.copyfile(self._folder / name, out / name)

    def _load(self, config: EngineConfig) -> None:
        loaded = load_model(str(self._folder), config=config)
        self._engine_config = config
        self._engine = Engine(loaded, config=config)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LLNModel:
        """`to`, `half` and the like: the weights are read again, in the layout of their device."""
        wanted = fn(self.place.data)
        if (wanted.device, wanted.dtype) != (self.place.device, self.place.dtype):
            dtype = str(wanted.dtype).removeprefix("torch.")
            old = self._engine
            self._load(EngineConfig(device=str(wanted.device), dtype=dtype))
            old.close()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Other processes, and copies, read the folder again."""
        return {name: value for name, value in self.__dict__.items() if name != "_engine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._load(self._engine_config)
