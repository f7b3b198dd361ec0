"""Makes the toy suite importable by its tests; the processes they start find it through PYTHONPATH."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "toy"))
