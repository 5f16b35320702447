"""Writes an adapted model for transformers and sentence-transformers, which `import lln` teaches to
read it.

The folder holds the checkpoint's files and its calibration, as every adapted model does, and a
server loads it too. What differs is config.json: its model type is one of ours, so a program
without `import lln` refuses the folder rather than reading it with softmax.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.checkpoint.calibration import FILE_NAME, write_calibration
from engine.checkpoint.folder import EXPORTED_TYPE, Checkpoint
from engine.checkpoint.json_files import read_object_if_present
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.training.convert import copy_model
from engine.training.model_folder import publish, read_record, workplace, write_record

NEVER_TRUNCATED = 1 << 40
"""A length that no text has. The libraries truncate silently at theirs; the engine refuses."""

_WORKPLACE = ".unfinished"
_PROMPTS_FILE = "config_sentence_transformers.json"


def export_model(
    model: str,
    out: Path,
    *,
    config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
) -> Path:
    """Write an adapted model, given by name or folder, to the folder `out`."""
    known = load_model(model, config=config)
    if known.calibration is None or known.info.calibration is None:
        raise InvalidInput(
            f"{model} has softmax attention, and sentence-transformers loads it as it stands; "
            f"`lln adapt {model} --out FOLDER` makes an LLN+Diag model of it",
            code="never_adapted",
            param="model",
            actual=model,
        )
    if known.checkpoint.pooling == "none":
        raise InvalidInput(
            f"{model} does not pool, so it has no vector of a text to export",
            code="model_does_not_pool",
            param="model",
            actual=model,
        )
    with workplace(out, _WORKPLACE) as place:
        built = place / "model"
        copy_model(known.checkpoint.transformer_folder, built)
        for folder in [entry for entry in built.iterdir() if entry.is_dir()]:
            shutil.rmtree(folder)  # of the modules that this model's own ones replace
        for name, content in _json_files(known).items():
            (built / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        write_calibration(built / FILE_NAME, known.calibration)
        (built / "README.md").write_text(_readme(known), encoding="utf-8")
        if record := read_record(known):
            write_record(built, record)
        publish(built, out)
    return out


def _json_files(model: EmbeddingModel) -> dict[str, Any]:
    checkpoint = model.checkpoint
    tokenizer = read_object_if_present(checkpoint.transformer_folder / "tokenizer_config.json")
    return {
        "config.json": {
            "model_type": EXPORTED_TYPE,
            "architectures": ["LLNModel"],
            "hidden_size": model.info.dim,
            "num_hidden_layers": model.info.num_layers,
            "num_attention_heads": model.info.num_heads,
            "vocab_size": len(model.parts.weights.words),
            "pooling": checkpoint.pooling,
            "encoder": dict(checkpoint.config),
        },
        "tokenizer_config.json": {**tokenizer, "model_max_length": NEVER_TRUNCATED},
        "sentence_bert_config.json": {
            "do_lower_case": checkpoint.lowercase,
            "modality_config": {
                "text": {"method": "get_text_features", "method_output_name": None}
            },
            "module_output_name": "sentence_embedding",
        },
        _PROMPTS_FILE: _prompts(checkpoint),
        "modules.json": _modules(checkpoint.normalize),
    }


def _prompts(checkpoint: Checkpoint) -> Mapping[str, Any]:
    return {
        **read_object_if_present(checkpoint.folder / _PROMPTS_FILE),
        "prompts": dict(checkpoint.prompts),
        "default_prompt_name": checkpoint.default_prompt_name,
    }


def _modules(normalize: bool) -> list[dict[str, Any]]:
    """The model pools by itself: later tokens of a long text may weigh more than earlier ones."""
    kinds = [("Transformer", ""), ("Normalize", "1_Normalize")]
    return [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(kinds if normalize else kinds[:1])
    ]


def _readme(model: EmbeddingModel) -> str:
    return f"""# {model.name}

An embedding model with LLN+Diag attention, for documents of any length.

```python
import lln  # registers the model with transformers
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("path/of/this/folder").encode(["a text", "a whole book ..."])
```

A text over the limit is an error; nothing is truncated. `lln serve --models FOLDER` serves it.
"""
