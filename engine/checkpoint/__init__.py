"""Where models come from and what their folders hold."""

from engine.checkpoint.folder import FAMILIES, Checkpoint, Family, Pooling, read_checkpoint
from engine.checkpoint.sources import (
    AvailableModel,
    Caches,
    CheckpointLocation,
    Source,
    list_models,
    load_checkpoint,
    locate,
)
from engine.checkpoint.weights import Weights

__all__ = [
    "FAMILIES",
    "AvailableModel",
    "Caches",
    "Checkpoint",
    "CheckpointLocation",
    "Family",
    "Pooling",
    "Source",
    "Weights",
    "list_models",
    "load_checkpoint",
    "locate",
    "read_checkpoint",
]
