"""Makes the toy suite and the small model's walks importable by their tests; the processes they start find
the first through PYTHONPATH."""

import sys
from pathlib import Path

for _folder in ("toy", "walks"):
    sys.path.append(str(Path(__file__).parent / _folder))
