"""The documents of a task as lm-eval wants them: ``custom_dataset`` of every YAML file here.

What this catches and cannot catch: see ``evals.data.sources``.
"""

from __future__ import annotations

import sys
from typing import Any

from evals.data.sources import documents


def dataset(source: str, data: str = "hub", items: int = 0, seed: int = 0, **_: Any) -> dict[str, Any]:
    """The split ``test``. ``source`` names the data set; ``data``, ``items``, ``seed`` come with
    ``--metadata``."""
    from datasets import Dataset

    made, dropped = documents(source, data, int(items), int(seed))
    if dropped:
        print(
            f"{source}: {dropped} rows outside of all length bins dropped, {len(made)} kept", file=sys.stderr
        )
    return {"test": Dataset.from_list(made)}
