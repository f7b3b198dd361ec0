"""Output of compute-sanitizer, written from the format that NVIDIA's manual documents and the phrases that
version 2025.3 holds; not recorded on a GPU. One text for each tool."""

MEMCHECK = """\
========= COMPUTE-SANITIZER
the program prints too
========= Invalid __global__ read of size 4 bytes
=========     at skinny_kernel+0x120 in projection.py:88
=========     by thread (31,0,0) in block (2,0,0)
=========     Access to 0x7f3c7ec000fc is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c7ec00000 of size 252 bytes
=========
========= Invalid __global__ read of size 4 bytes
=========     at skinny_kernel+0x120 in projection.py:88
=========     by thread (32,0,0) in block (2,0,0)
=========     Access to 0x7f3c7ec00100 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f3c7ec00000 of size 252 bytes
=========
========= Invalid __global__ write of size 2 bytes
=========     at helper+0x40 in projection.py:12
=========     by thread (0,0,0) in block (0,1,0)
=========     Access to 0x7f3c7ec00001 is misaligned
=========     Device Frame: skinny_kernel+0x900 in projection.py:99
=========
========= ERROR SUMMARY: 3 errors
"""

ANALYSIS = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at route_kernel+0x90 in route.py:41
=========     and Read access at route_kernel+0x100 in route.py:51 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""

_HAZARD = "Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__"
HAZARDS = f"""\
========= COMPUTE-SANITIZER
========= {_HAZARD} 0x8c in block (0,0,0) :
=========     Write Thread (35,0,0) at route_kernel+0x90 in route.py:41
=========     Read Thread (32,0,0) at route_kernel+0x100 in route.py:51
=========     Current Value : 35
=========
========= {_HAZARD} 0x8d in block (0,0,0) :
=========     Write Thread (35,0,0) at route_kernel+0x90 in route.py:41
=========     Read Thread (32,0,0) at route_kernel+0x100 in route.py:51
=========     Current Value : 0
=========
========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)
"""

INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at experts_kernel+0x70 in experts.py:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""

SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in warp.
=========     at tail_kernel+0xa0 in tail.py:61
=========     by thread (19,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""

CLEAN = """\
========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
CLEAN_RACES = """\
========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""


def report(tool: str, kernel: str) -> str:
    """One report of a tool about a kernel."""
    first = {
        "memcheck": "Invalid __global__ read of size 4 bytes",
        "racecheck": f"Error: Race reported between Write access at {kernel}+0x90 in planted.py:41",
        "initcheck": "Uninitialized __global__ memory read of size 4 bytes",
        "synccheck": "Barrier error detected. Divergent thread(s) in warp.",
    }[tool]
    rest = [
        f"at {kernel}+0x80 in planted.py:30",
        "by thread (127,0,0) in block (0,0,0)",
        "Address 0x7f3c7ec000fc is out of bounds",
    ]
    if tool == "racecheck":
        rest = [f"and Read access at {kernel}+0xa0 in planted.py:42 [2048 hazards]"]
    return "\n".join([f"========= {first}", *(f"=========     {line}" for line in rest), "=========", ""])
