"""A negative control: wrong everywhere."""

from toy import ToyArguments

from validation.providers import implements


@implements("toy_add", provider="toy_wrong")
def toy_add(a: ToyArguments) -> None:
    a.out[:] = list(a.rows)


@implements("toy_scale", provider="toy_wrong")
def toy_scale(a: ToyArguments) -> None:
    a.out[:] = list(a.rows)
