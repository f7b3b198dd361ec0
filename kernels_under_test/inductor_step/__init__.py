"""Provider ``inductor``: the stock order of operations in a form that a compiler can take whole.

No loop over requests or experts and no size that depends on data, so that TorchInductor compiles a step into
one call (``whole``); the functions run uncompiled as well, and are judged like any provider's. The same
roundings as ``torch``, declared as the profile ``stock``.

What it cannot show: anything about a GPU's kernels.
"""

from kernels_under_test.inductor_step import attention, dense, experts

OPERATIONS = attention.OPERATIONS | dense.OPERATIONS | experts.OPERATIONS


def _register() -> None:
    from kernels_under_test.inductor_step.whole import whole
    from validation.providers import implements
    from validation.step.executor import WHOLE

    WHOLE["inductor"] = whole
    for op, function in OPERATIONS.items():
        implements(op, provider="inductor", profile="stock")(function)


_register()
