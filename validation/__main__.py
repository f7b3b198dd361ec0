"""``python -m validation`` is ``lockstep``."""

from __future__ import annotations

import sys

from validation.cli import main

if __name__ == "__main__":
    sys.exit(main())
