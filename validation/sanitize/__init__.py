"""NVIDIA's compute-sanitizer over the kernels of a provider: bounds, races, uninitialised memory, barriers.

Catches what the arena cannot: reads out of bounds whose value is not used, reads of memory that nobody wrote,
races of shared memory that went well this time. Each tool must also report a planted fault; without that it
proves nothing. What each tool cannot see stands in ``validation.sanitize.tools``.
"""
