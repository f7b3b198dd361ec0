"""A reply as text that remembers how it ended, so that graders can tell a wrong answer from no answer.

lm-eval hands replies on as plain strings; ``Reply`` is such a string with three attributes. What this
catches: a truncated or failed reply that would be graded by its text alone (F58). What it cannot catch: how a
reply ended when another lm-eval model made it, because that is not in its strings; ``finish_of`` then says ""
(unknown).
"""

from __future__ import annotations

from typing import Protocol


class Ended(Protocol):
    """What ``Reply.of`` reads of a response (``evals.engines.api.Response`` has it)."""

    text: str
    finish: str
    failure: str
    message: str


class Reply(str):
    """Text of one reply.

    ``finish``: "stop", "length" or "" (not known). ``failure``: empty, or why there is no reply: "timeout",
    "transport", "server", "refused", "context" or "malformed" (``evals.engines.api``). ``message``: one line
    more.
    """

    __slots__ = ("failure", "finish", "message")

    finish: str
    failure: str
    message: str

    def __new__(cls, text: str = "", finish: str = "", failure: str = "", message: str = "") -> Reply:
        reply = super().__new__(cls, text)
        reply.finish, reply.failure, reply.message = finish, failure, message
        return reply

    @classmethod
    def of(cls, response: Ended) -> Reply:
        """The reply that a response holds; a failure keeps its reason and loses nothing of the text."""
        return cls(response.text, response.finish, response.failure, response.message)

    def __getnewargs__(self) -> tuple[str, ...]:  # type: ignore[override]
        """Copies keep the attributes; lm-eval copies its requests."""
        return (str(self), self.finish, self.failure, self.message)


def finish_of(reply: str) -> str:
    """ "stop", "length", or "" where it is not known."""
    return getattr(reply, "finish", "")


def failure_of(reply: str) -> str:
    """Why there is no reply, or "" if there is one."""
    return getattr(reply, "failure", "")
