"""Settings that cannot be are refused by name; batches choose kernels as table 3.0 says."""

import pytest

from validation.errors import UserError
from validation.sync.setting import TP8, TP16, Setting, check, launches, pattern


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting(ranks=1), "2 to 16 ranks"),
        (Setting(layers=""), "at least 1 layer"),
        (Setting(layers="DXK"), "no layer 'X'"),
        (Setting(batches=()), "at least one step"),
        (Setting(batches=(65,)), "1 to 64 rows"),
        (Setting(batches=(0,)), "1 to 64 rows"),
    ],
)
def test_what_cannot_be_is_refused(setting: Setting, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check(setting)


def test_patterns_are_like_the_subjects() -> None:
    assert pattern(8) == "DKKAKKKAK"
    with pytest.raises(UserError, match="at least 1 layer with experts"):
        pattern(0)


@pytest.mark.parametrize(
    ("plan", "batch", "kernels"),
    [
        (TP8, 1, {"MoeFrontTP8", "MoeTailPoll", "OprojConsumer"}),
        (TP8, 4, {"ExpertRows", "MoeTail"}),
        (TP8, 8, {"Experts", "WaveTail"}),
        (TP8, 32, {"OprojConsumer", "ExpertsGrouped", "WaveTailReduced"}),
        (TP8, 33, {"OprojTwoShot", "WaveTailReduced"}),
        (TP16, 2, {"MoeFrontTP16", "OprojFused"}),
        (TP16, 8, {"ExpertRows", "MoeTail", "OprojFused"}),
        (TP16, 17, {"OprojTwoShot", "WaveTailReduced"}),
        (TP16, 33, {"ExpertsTwoShot", "WaveTailTwoShot"}),
    ],
)
def test_a_batch_chooses_its_kernels(plan: int, batch: int, kernels: set[str]) -> None:
    assert kernels <= set(launches(Setting(layers="DK", plan=plan), 1, batch))
