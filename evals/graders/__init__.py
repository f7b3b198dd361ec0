"""Graders: pure functions from one reply and one gold answer to one ``Grade``.

What this catches: answers taken from the reasoning, replies that were cut, failures of the server and of the
grader itself counted as wrong answers (report ids F57 and F58). What it cannot catch: a gold answer that is
wrong.
"""
