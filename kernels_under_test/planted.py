"""Four kernels, each wrong in one way: what compute-sanitizer's tools must report before they are believed.

``plant(NAME)`` launches one of them on the GPU. They are Triton kernels like those under test, so that a tool
which does not see into Triton's binaries is found out. Triton itself puts every barrier where it belongs, so
the race and the divergent barrier are written in PTX.

What this cannot show: that a tool sees every fault of its kind.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Threads of a block: four warps, so that the race is between warps and not within one.
THREADS = tl.constexpr(128)


@triton.jit
def planted_out_of_bounds_kernel(x, out, BLOCK: tl.constexpr):
    """Reads a block from the second element of a tensor of one block on: the last read is one element
    beyond."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + 1 + at))


@triton.jit
def planted_uninitialised_kernel(x, out, BLOCK: tl.constexpr):
    """Reads memory that nobody wrote."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def planted_race_kernel(x, out, BLOCK: tl.constexpr):
    """Every thread writes its word of shared memory and reads that of a thread of the next warp, with no
    barrier between."""
    at = tl.arange(0, BLOCK)
    word = tl.inline_asm_elementwise(
        """{
        .shared .align 4 .b32 planted[128];
        .reg .b32 thread, other, base, mine, theirs;
        mov.u32 thread, %tid.x;
        add.u32 other, thread, 32;
        and.b32 other, other, 127;
        mov.u32 base, planted;
        shl.b32 mine, thread, 2;
        add.u32 mine, mine, base;
        shl.b32 theirs, other, 2;
        add.u32 theirs, theirs, base;
        st.volatile.shared.b32 [mine], $1;
        ld.volatile.shared.b32 $0, [theirs];
        }""",
        "=r,r",
        [tl.load(x + at)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(out + at, word)


@triton.jit
def planted_divergence_kernel(x, out, BLOCK: tl.constexpr):
    """The lower half of every warp waits at the barrier of the block, the upper half passes it by."""
    at = tl.arange(0, BLOCK)
    word = tl.inline_asm_elementwise(
        """{
        .reg .pred upper;
        .reg .b32 thread;
        mov.u32 thread, %tid.x;
        and.b32 thread, thread, 31;
        setp.ge.u32 upper, thread, 16;
        @upper bra passed;
        bar.sync 0;
        passed:
        mov.b32 $0, $1;
        }""",
        "=r,r",
        [tl.load(x + at)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(out + at, word)


KERNELS = {
    kernel.fn.__name__: kernel
    for kernel in (
        planted_out_of_bounds_kernel,
        planted_uninitialised_kernel,
        planted_race_kernel,
        planted_divergence_kernel,
    )
}


def plant(name: str) -> None:
    """Launch one of the kernels on the GPU and wait for its end."""
    block = THREADS.value
    written = name != planted_uninitialised_kernel.fn.__name__
    x = torch.empty(block, dtype=torch.int32, device="cuda")
    if written:
        x.copy_(torch.arange(block, dtype=torch.int32))
    out = torch.zeros(block, dtype=torch.int32, device="cuda")
    KERNELS[name][(1,)](x, out, BLOCK=block, num_warps=block // 32)
    torch.cuda.synchronize()
