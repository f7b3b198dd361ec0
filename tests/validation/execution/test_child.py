"""Both ends of the pipe: noise does not disturb it, silence is no end, and nothing is left over."""

import pytest

from tests.processes import eventually, running
from validation.execution.child import Child

ECHO = "tests.validation.execution.echo"


@pytest.fixture
def child():
    started = Child(ECHO)
    yield started
    started.kill()


def test_answers_come_in_order_and_noise_does_not_disturb_them(child):
    for number in (1, 2, 3):
        child.send(number)
    assert [child.next(60) for _ in range(3)] == [2, 4, 6]


def test_what_arrived_is_there_without_waiting(child):
    child.send(4)
    assert child.next(60) == 8
    assert child.receive() == ([], False)


def test_silence_is_no_end(child):
    with pytest.raises(TimeoutError):
        child.next(0.2)
    child.send(5)
    assert child.next(60) == 10


def test_the_end_is_none_and_has_a_status(child):
    child.send("end")
    assert child.next(60) is None
    assert child.process.wait() == 5
    child.send(6)  # nobody reads it; that is noticed at the end of the output
    assert child.next(1) is None


def test_killing_ends_its_children_too(child):
    child.send("sleep")
    grandchild = child.next(60)
    assert running(grandchild)
    assert child.kill() == -9
    assert eventually(lambda: not running(grandchild))
