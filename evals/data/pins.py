"""Which revision and which bytes of each public data set are meant.

Revisions and SHA-256 were copied from public source files that pin the same data. How many such files agreed
was not kept, and nothing was downloaded to check them. Where a download disagrees, the pin decides, and the
message says so.

What this catches: a data set changed upstream (openai/mrcr was corrected in December 2025). What it cannot
catch: a wrong pin; then every download fails and none is used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pinned:
    """One data set on the hub. ``files``: path in the repository -> SHA-256; ``rows``: how many they have
    together."""

    repository: str
    revision: str
    files: dict[str, str]
    rows: int
    columns: tuple[str, ...]
    gated: bool = False


_MRCR_REVISION = "f4c69fae7cf81f7ca26b9fee34b392a50f6b8a1d"
_MRCR_COLUMNS = ("prompt", "answer", "random_string_to_prepend", "n_needles")


def _mrcr(needles: int, first: str, second: str) -> Pinned:
    files = {f"{needles}needle/{needles}needle_{i}.parquet": h for i, h in enumerate((first, second))}
    return Pinned("openai/mrcr", _MRCR_REVISION, files, 800, _MRCR_COLUMNS)


PINS: dict[str, Pinned] = {
    "aime25": Pinned(
        "math-ai/aime25",
        "563bb8404243c5f09de6ec262f2db674fe5bce9b",
        {"test.jsonl": "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331"},
        30,
        ("problem", "answer"),
    ),
    "gpqa_diamond": Pinned(
        "Idavidrein/gpqa",
        "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
        {"gpqa_diamond.csv": "41d1213cd7a4998605a26c2798500652572007161b3a92817ba46b35befcd305"},
        198,
        ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
        gated=True,
    ),
    "mrcr_2needle": _mrcr(
        2,
        "1c297b254bf64a31856b74918cd7db889a214503e0b67daa834e84f20df6aa93",
        "a5a1dc9ccc945623253d04d33c03d89aee2d676c88955ce368da2ab16a0ce94d",
    ),
    "mrcr_4needle": _mrcr(
        4,
        "4d4fa3d11ce064749de3cd039eef1a621e30a81c2c9b3e64f1df37f8afeaf312",
        "8dfdb94a208cf3eee73c4e7ac6ee8a5ccb7236c6934c13c6c5f67c0a9928cdf3",
    ),
    "mrcr_8needle": _mrcr(
        8,
        "65df601a2e0ae4a3cfb56920a6ef99f26c0de37c6b1018695e8aed684e6a94c1",
        "c80b19573bff1d38e1c157d6a0bdf9cfd1a8ab6372296174c9a7015e164189e3",
    ),
}
