"""``lockstep`` with the toy suite in place of the real one."""

import sys

import toy

from validation import cli
from validation.execution import plan

toy.install()
plan.JUDGE = "toy_judge:judge_case"

if __name__ == "__main__":
    sys.exit(cli.main())
