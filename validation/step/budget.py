"""How a run's false-alarm budget is split over the walks.

Half of it goes to the operations of their steps, half to the free-running and long walks. A run counts as at
least so many of either, so that one walk alone meets the limits of the whole run.

Catches and cannot catch: nothing by itself.
"""

from __future__ import annotations

from validation.execution.plan import BUDGET

OPERATIONS, WALKS = 50_000, 10
LOCAL_SHARE = BUDGET / 2 / OPERATIONS
FREE_SHARE = BUDGET / 2 / WALKS
