"""An arm compared with itself, many times over, on real replies: how often does each test raise an alarm?"""
