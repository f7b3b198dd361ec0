"""A negative control that is right, so it cannot be flagged."""

from toy import ToyArguments

from validation.providers import implements


@implements("toy_add", provider="toy_missed")
def toy_add(a: ToyArguments) -> None:
    a.out[:] = [row + 1 for row in a.rows]


@implements("toy_scale", provider="toy_missed")
def toy_scale(a: ToyArguments) -> None:
    a.out[:] = [2 * row for row in a.rows]
