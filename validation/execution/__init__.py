"""How a run is carried out, whatever it judges: the plan and each case's share of the budget, workers that
may crash or hang, the journal, the ledger of known failures, the environment, the verdict.

Knows no operation and no statistic; ``validation.run`` puts the parts together.
"""
