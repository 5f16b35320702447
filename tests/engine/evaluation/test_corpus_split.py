"""Which corpora shares are chosen on, and which are judged on."""

from __future__ import annotations

import pytest

from engine.errors import InvalidInput
from engine.evaluation import corpus_split
from engine.evaluation.corpora import FRESH_SOURCES, LAST_SOURCES, NEW_SOURCES, TRAINED_SOURCES
from engine.evaluation.corpus_split import split_corpora


def test_corpora_are_split_by_what_is_left_out() -> None:
    every = [*TRAINED_SOURCES, *NEW_SOURCES, *FRESH_SOURCES]
    default = split_corpora(every)
    assert default.validation == tuple(TRAINED_SOURCES)
    assert default.test == (*NEW_SOURCES, *FRESH_SOURCES)
    chosen = split_corpora(every, ["speeches", "essays"])
    assert chosen.test == ("speeches", "essays")
    assert chosen.validation == ("kernel", "python", "manuals", "postgres")
    with pytest.raises(InvalidInput) as error:
        split_corpora(["essays"])
    assert error.value.code == "no_validation_corpus"


def test_what_another_model_was_trained_on_is_for_choosing() -> None:
    trained = {*TRAINED_SOURCES, "essays", "skies"}
    split = split_corpora(["kernel", "essays", "music"], trained=trained)
    assert (split.validation, split.test) == (("kernel", "essays"), ("music",))
    assert split.trained == trained
    of_one = split_corpora(["kernel", "essays"], trained=["essays"])
    assert (of_one.validation, of_one.test) == (("essays",), ("kernel",))
    assert of_one.trained == {*TRAINED_SOURCES, "essays"}, "the models that ship were trained too"


@pytest.mark.long
def test_shares_may_be_chosen_on_other_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_corpora(["kernel", "essays", "psalms"], choose_on=["essays"])
    assert (split.validation, split.test) == (("essays",), ("kernel", "psalms"))
    assert split_corpora(["psalms"], choose_on=["essays"]).test == ("psalms",)
    assert split_corpora([], ["psalms"], ["essays", "kernel"]).test == ("psalms",)
    with pytest.raises(InvalidInput, match="left out: essays") as error:
        split_corpora(["kernel"], ["essays", "psalms"], ["kernel", "essays"])
    assert error.value.code == "chosen_on_test_corpus"
    with pytest.raises(InvalidInput, match="unknown corpus"):
        split_corpora(["kernel"], choose_on=["esays"])


def test_a_group_is_its_corpora_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_split, "installed", lambda sources: list(sources)[:2])
    split = split_corpora(["trained", "fresh", "essays"])
    assert split.validation == tuple(TRAINED_SOURCES)[:2]
    assert split.test == (*tuple(FRESH_SOURCES)[:2], "essays")
    assert split_corpora([], ["fresh"]).test == tuple(FRESH_SOURCES)[:2]
    assert split_corpora(["trained", "last"]).test == tuple(LAST_SOURCES)[:2]
    with pytest.raises(InvalidInput) as error:
        split_corpora(["fresh"])
    assert error.value.code == "no_validation_corpus"


@pytest.mark.parametrize("wrong", [(["kernal"], []), (["kernel"], ["esays"])])
def test_a_misspelt_corpus_is_named(wrong: tuple[list[str], list[str]]) -> None:
    with pytest.raises(InvalidInput, match="unknown corpus") as error:
        split_corpora(*wrong)
    assert error.value.code == "unknown_corpus"
