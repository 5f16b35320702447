"""The same weights with a longer table of positions, for servers that read no further than it.

The table is repeated, as in our engine. A server of this folder then reads a long document whole,
in one pass of softmax.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_TABLE = "embeddings.position_embeddings.weight"
_NUMBERS = "embeddings.position_ids"


def write_long_checkpoint(folder: Path, out: Path, tokens: int) -> None:
    """Copies a BERT folder and raises its table and its limits on texts to so many tokens."""
    shutil.copytree(folder, out, dirs_exist_ok=True)
    tensors = load_file(out / "model.safetensors")
    table = tensors[_TABLE]
    tensors[_TABLE] = table.repeat(-(-tokens // len(table)), 1)[:tokens].contiguous()
    tensors[_NUMBERS] = torch.arange(tokens).unsqueeze(0)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    _change(out / "config.json", {"max_position_embeddings": tokens})
    _change(out / "sentence_bert_config.json", {"max_seq_length": tokens})
    _change(out / "tokenizer_config.json", {"model_max_length": tokens})
    _change(out / "tokenizer.json", {"truncation": None, "padding": None})


def _change(path: Path, values: Mapping[str, object]) -> None:
    described = json.loads(path.read_text("utf-8")) | values
    path.write_text(json.dumps(described), "utf-8")
