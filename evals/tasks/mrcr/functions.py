"""What the YAML files beside this one call.

lm-eval loads this file by its path, so the repository need not be installed: its root is put on the path
here. What it catches and cannot catch is said in the modules that it names.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from evals.tasks.conversation import ConversationTask as Task  # noqa: E402
from evals.tasks.dataset import dataset  # noqa: E402
from evals.tasks.prompts import mrcr as prompt  # noqa: E402
from evals.tasks.results import mrcr as results  # noqa: E402

__all__ = ["Task", "dataset", "prompt", "results"]
