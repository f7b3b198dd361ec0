"""Evaluations of two backends by the same work: tasks, arms, engines, and what they may be compared by."""
