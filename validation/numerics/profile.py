"""A rounding profile: where a backend rounds, in which order it sums, and which functions it calls.

A provider declares one; the judge verifies that the provider does what it declared. ``accuracy()`` accepts
any choice at the optional sites and judges against the truth alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from validation.numerics.formats import Format
from validation.numerics.reductions import CHAIN, TENSOR_CORE, Reduction


@dataclass(frozen=True)
class Profile:
    """Rounding behaviour of one backend for one contract.

    ``sites``: rounding site -> format it rounds to there, None where it keeps FP32. ``optional`` sites are
    those at which backends legitimately differ. ``sums`` / ``products``: order of FP32 sums of element-wise
    terms and of matrix products. ``functions``: name of a table in ``functions.TABLES``. ``algebra``: named
    choices between formulas that are equal in exact arithmetic (for example the norm of a mixture as a
    quadratic form).
    """

    name: str
    sites: Mapping[str, Format | None]
    optional: frozenset[str] = frozenset()
    sums: Reduction = CHAIN
    products: Reduction = CHAIN
    functions: str = "cpu"
    functions_on_cuda: str = "accurate"
    algebra: Mapping[str, str] = field(default_factory=dict)
    any_choice: bool = False

    def on(self, device: str) -> Profile:
        """This profile as it applies on a device kind: tensor cores and CUDA's functions on ``cuda``."""
        if device != "cuda":
            return self
        return replace(self, products=TENSOR_CORE, functions=self.functions_on_cuda)

    def accuracy(self) -> Profile:
        """Any choice at the optional sites; the noise there is that of the coarsest choice."""
        return replace(self, name=f"{self.name}, accuracy", any_choice=True)
