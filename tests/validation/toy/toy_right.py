"""A right provider."""

from toy import ToyArguments

from validation.providers import implements


@implements("toy_add", provider="right")
def toy_add(a: ToyArguments) -> None:
    a.out[:] = [row + 1 for row in a.rows]


@implements("toy_scale", provider="right")
def toy_scale(a: ToyArguments) -> None:
    a.out[:] = [2 * row for row in a.rows]
