"""Training into a folder: rejected plans, interrupted runs, and continued trainings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine.checkpoint.calibration import read_calibration
from engine.config import EngineConfig
from engine.errors import CheckpointError, InvalidInput
from engine.model.embedding_model import load_model
from engine.training import distill
from engine.training.calibrate import CalibrationPlan
from engine.training.convert import adapt_model, built_in_texts
from engine.training.data import Document, fingerprint, for_training
from engine.training.distill import DistillPlan, distill_model
from engine.training.recipe import Stage, TrainingPlan, load_recipe
from engine.training.student import StudentPlan
from engine.training.trainer import METRICS_FILE, StepReport

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

pytestmark = pytest.mark.usefixtures("little_watched", "without_pictures")

CPU = EngineConfig(device="cpu")
CALIBRATION = CalibrationPlan(block_size=16, sample_tokens=48, num_samples=4)
STAGE = Stage(
    kind="states", steps=6, lengths=(48,), batch_tokens=96, rates={"scalars": 1e-2, "maps": 1e-2}
)
PLAN = DistillPlan(
    calibration=CALIBRATION,
    training=TrainingPlan(stages=(STAGE,), teacher_window=40, save_every=4, watch_every=100),
)
DOCUMENTS = [Document(str(n), "", text) for n, text in enumerate(built_in_texts()[:12])]
SHORT = [Document(str(n), f"fox {n}", f"the quick fox {n} jumps") for n in range(400)]


class Stopped(BaseException):
    """Raised like a signal."""


@pytest.fixture(scope="module")
def folder(write_checkpoint: WriteCheckpoint) -> str:
    return str(write_checkpoint("bert"))


def train(
    folder: str,
    out: Path,
    plan: DistillPlan = PLAN,
    documents: list[Document] = DOCUMENTS,
    *,
    stop_at: int | None = None,
) -> Path:
    def progress(report: StepReport, total: int) -> None:
        if report.step == stop_at:
            raise Stopped

    return distill_model(folder, out, {"mine": documents}, plan, config=CPU, progress=progress)


@pytest.fixture(scope="module")
def whole(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves that is not stopped."""
    return train(folder, tmp_path_factory.mktemp("whole") / "out")


@pytest.fixture(scope="module")
def one_step(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """And one of a single step."""
    return train(folder, tmp_path_factory.mktemp("one_step") / "out", with_stage(steps=1))


@pytest.fixture(scope="module")
def stopped(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves that is stopped a step after its save."""
    left = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.raises(Stopped):
        train(folder, left, stop_at=4)
    return left


@pytest.fixture
def out(stopped: Path, tmp_path: Path) -> Path:
    """The same, to go on from."""
    return shutil.copytree(stopped, tmp_path / "out")


def with_stage(**changes: Any) -> DistillPlan:
    stages = (replace(STAGE, **changes),)
    return replace(PLAN, training=replace(PLAN.training, stages=stages))


def steps_of(folder: Path) -> list[int]:
    lines = (folder / METRICS_FILE).read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.parametrize(
    ("documents", "plan", "message"),
    [
        (
            SHORT,
            with_stage(kind="pairs"),
            r"beyond a block of 64 tokens, and no text has more than \d+",
        ),
        (DOCUMENTS, with_stage(lengths=(64,)), "beyond a block of 64 tokens"),
        (DOCUMENTS, with_stage(lengths=(48, 96), batch_tokens=10**9), None),
        (
            DOCUMENTS,
            replace(PLAN, student=StudentPlan(without_lln=True)),
            "can train the encoder only, and no stage does",
        ),
        (
            DOCUMENTS,
            with_stage(lengths=(48, 10**6), batch_tokens=10**6),
            "windows of 1000000 tokens, and the longest document has",
        ),
        (DOCUMENTS, with_stage(lengths=(2,)), "of which 2 are special"),
        (
            DOCUMENTS,
            replace(with_stage(lengths=(96,)), calibration=replace(CALIBRATION, num_samples=10**6)),
            "calibration needs",
        ),
    ],
    ids=[
        "short pairs",
        "short windows",
        "some are long",
        "control of nothing",
        "longer than all",
        "special only",
        "found by calibration",
    ],
)
def test_an_impossible_run_is_rejected_first_and_leaves_nothing(
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    documents: list[Document],
    plan: DistillPlan,
    message: str | None,
) -> None:
    plan = replace(plan, calibration=replace(plan.calibration, block_size=64))
    if message != "calibration needs":

        def calibrated(*_: object) -> None:
            raise Stopped

        monkeypatch.setattr(distill, "calibrate", calibrated)
    with pytest.raises(Stopped if message is None else InvalidInput, match=message):
        train(folder, tmp_path / "out", plan, documents)
    assert not (tmp_path / "out").exists()


def test_bfloat16_without_units_for_it_is_refused_before_a_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    plan = DistillPlan(training=TrainingPlan(precision="bfloat16"))
    with pytest.raises(InvalidInput, match="use float32 on this CPU") as refused:
        distill_model(
            "no-such-model", tmp_path / "out", {}, plan, config=EngineConfig(device="cpu")
        )
    assert (refused.value.param, refused.value.actual) == ("precision", "bfloat16")
    assert not (tmp_path / "out").exists()


def test_steps_without_a_gradient_change_nothing(folder: str, tmp_path: Path) -> None:
    """Texts of one block give LLN no gradient; longer ones in the same run do."""
    before = adapt_model(
        folder, tmp_path / "before", built_in_texts()[:12], CALIBRATION, config=CPU
    )
    out = train(folder, tmp_path / "out", with_stage(lengths=(16, 48), steps=8))
    lines = [json.loads(line) for line in (out / METRICS_FILE).read_text().splitlines()]
    assert {line["length"] for line in lines} == {16, 48}
    learned, begun = (load_model(str(at), config=CPU).calibration for at in (out, before.folder))
    assert learned is not None
    assert begun is not None
    assert not torch.equal(learned.alpha, begun.alpha)


def test_a_run_stopped_before_its_first_save_reports_each_step_once(
    folder: str, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        train(folder, tmp_path / "out", stop_at=2)
    assert steps_of(train(folder, tmp_path / "out")) == list(range(6))
    looks = (tmp_path / "out" / "attention.jsonl").read_text().splitlines()
    assert [json.loads(look)["step"] for look in looks] == [0, 6]


def test_an_incomplete_metrics_line_is_rewritten(folder: str, out: Path) -> None:
    metrics = out / "training" / METRICS_FILE
    metrics.write_text(metrics.read_text()[:-30])
    assert steps_of(train(folder, out)) == list(range(6))


@pytest.mark.parametrize("moves", [0, 9])  # of 10
def test_a_run_stopped_while_publishing_resumes(
    folder: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    out = tmp_path / "out"
    left = iter(range(moves))
    move = Path.replace

    def stopped(entry: Path, place: Path) -> Path:
        if entry.parent.name == "model" and next(left, None) is None:
            raise Stopped
        return move(entry, place)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", stopped)
        with pytest.raises(Stopped):
            train(folder, out)
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_model(str(out), config=CPU)
    train(folder, out)
    assert {entry.name for entry in out.iterdir()} == {entry.name for entry in whole.iterdir()}
    assert steps_of(out) == list(range(6))
    made, expected = (load_model(str(at), config=CPU).info.calibration for at in (out, whole))
    assert made == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": DOCUMENTS[1:]}, "differs in its documents;"),
        ({"documents": [replace(one, query="?") for one in DOCUMENTS]}, "its documents;"),
        ({"plan": replace(PLAN, calibration=replace(CALIBRATION, block_size=32))}, "calibration;"),
        ({"plan": replace(PLAN, student=StudentPlan(gate=False))}, "differs in its student;"),
        ({"plan": with_stage(rates={"maps": 1.0})}, "by another plan"),
        ({"folder": None}, "differs in its weights;"),
        ({"plan": replace(PLAN, strength=0.5)}, None),
    ],
    ids=["documents", "queries", "block size", "student", "plan", "weights", "strength"],
)
def test_only_the_same_run_resumes(
    folder: str,
    out: Path,
    write_checkpoint: WriteCheckpoint,
    change: dict[str, Any],
    message: str | None,
) -> None:
    state = (out / "training" / "state.pt").read_bytes()
    given: dict[str, Any] = {"folder": folder, **change}
    if given["folder"] is None:
        given["folder"] = str(write_checkpoint("bert", seed=1))
    if message is None:
        train(out=out, **given)
        return
    with pytest.raises(InvalidInput, match=message):
        train(out=out, **given)
    assert (out / "training" / "state.pt").read_bytes() == state


def test_a_run_without_a_description_does_not_resume(folder: str, out: Path) -> None:
    (out / "training" / "begun.json").unlink()
    with pytest.raises(InvalidInput, match="did not write down what it began with"):
        train(folder, out)


def test_a_damaged_description_is_named(folder: str, out: Path) -> None:
    description = out / "training" / "begun.json"
    description.write_text(description.read_text()[:10])
    with pytest.raises(CheckpointError, match=r"begun\.json is not valid"):
        train(folder, out)


def test_a_continued_training_records_the_one_before(folder: str, tmp_path: Path) -> None:
    first = train(folder, tmp_path / "first", documents=DOCUMENTS[:6])
    then = train(
        str(first), tmp_path / "then", replace(PLAN, continue_training=True), DOCUMENTS[6:]
    )
    record = json.loads((then / "data.json").read_text())
    assert record["sources"]["mine"]["trained_on"] == fingerprint(for_training(DOCUMENTS[6:]))
    assert record["before"] == json.loads((first / "data.json").read_text())
    anew = adapt_model(
        str(first), tmp_path / "anew", built_in_texts()[:12], CALIBRATION, config=CPU
    )
    assert not (anew.folder / "data.json").exists()


def test_a_users_folder_with_the_runs_name_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "training" / "data.txt"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    with pytest.raises(InvalidInput, match="not empty"):
        train("no such model", tmp_path)
    assert theirs.read_text() == "mine"


@pytest.mark.parametrize("content", [b"[1, 2]", b"not json", b'{"sources": ["of another tool"]}'])
def test_continuing_from_a_model_with_another_programs_data_file(
    one_step: Path, tmp_path: Path, content: bytes
) -> None:
    first = shutil.copytree(one_step, tmp_path / "first")
    (first / "data.json").write_bytes(content)
    further = replace(with_stage(steps=1), continue_training=True)
    then = train(str(first), tmp_path / "then", further)
    assert json.loads((then / "data.json").read_text())["before"] is None


def test_the_record_counts_documents_trained_on(folder: str, tmp_path: Path) -> None:
    asked = [replace(one, query=f"query {n}") for one in DOCUMENTS for n in (0, 1, 0)]
    out = train(folder, tmp_path / "out", with_stage(steps=1), asked)
    found = json.loads((out / "data.json").read_text())["sources"]["mine"]
    assert found["documents"] == 3 * len(DOCUMENTS)
    assert found["documents_trained_on"] == 2 * len(for_training(DOCUMENTS))


def test_calibration_reads_pieces_from_all_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distill, "_CALIBRATION_CHARACTERS", 40_000)
    long = list(distill._some(["short text", "x" * 80_000]))
    assert 40_000 <= sum(map(len, long)) < 50_000
    turns = ["ab", "c" * 4000] * 50
    taken = list(distill._some(turns))
    assert 36_000 < sum(map(len, taken)) < 45_000
    assert {"ab", "c" * 4000} == set(taken)
    assert list(distill._some(["a", "b"])) == ["a", "b"]


def test_a_model_without_a_position_table_is_imitated_as_far_as_it_reads(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = str(write_checkpoint("modernbert", pooling="cls", max_position_embeddings=128))
    with pytest.raises(InvalidInput, match="no vector to imitate beyond its window of 128 tokens"):
        train(folder, tmp_path / "out", with_stage(lengths=(129,), batch_tokens=129))
    train(folder, tmp_path / "out", with_stage(steps=1, lengths=(128,), batch_tokens=128))


def test_a_model_that_pools_by_its_first_token(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = str(write_checkpoint("bert", pooling="cls"))
    with pytest.raises(InvalidInput, match="no vector to imitate beyond its window of 40 tokens"):
        train(folder, tmp_path / "out")
    with pytest.raises(InvalidInput, match="no vector to imitate beyond its window of 40 tokens"):
        train(folder, tmp_path / "out", with_stage(kind="pairs", held_share=0.5))
    out = train(folder, tmp_path / "out", with_stage(lengths=(32, 40)))
    made = load_model(str(out), config=CPU)
    assert made.info.pooling == "cls"
    assert read_calibration(out / "lln.safetensors", made.checkpoint.sha256).gate is not None


def test_too_short_documents_are_rejected_before_the_run(folder: str, tmp_path: Path) -> None:
    plan = with_stage(kind="pairs", shortest=10**6)
    with pytest.raises(InvalidInput, match=f"no source has two documents of at least {10**6}"):
        train(folder, tmp_path / "out", plan)
    assert not (tmp_path / "out").exists()


def test_a_models_own_context_is_the_one_asked_for_or_taught() -> None:
    taught = replace(PLAN, training=TrainingPlan(stages=load_recipe("questions")))
    asked_for = replace(taught, calibration=replace(CALIBRATION, chunk_context="late"))
    plans = (PLAN, taught, asked_for)
    assert [plan.context_after("opening") for plan in plans] == ["opening", "one_pass", "late"]


def test_a_model_is_trained_on_chunks(folder: str, tmp_path: Path) -> None:
    out = train(folder, tmp_path / "out", with_stage(kind="chunks", shortest=40))
    assert steps_of(out) == list(range(STAGE.steps))
    with pytest.raises(InvalidInput, match=f"no document has {10**6} tokens"):
        train(folder, tmp_path / "other", with_stage(kind="chunks", shortest=10**6))
    assert not (tmp_path / "other").exists()
