"""How fast this processor's time stamp counter runs, which an emulated machine shows to its guest as it is.

Told its frequency, the guest's kernel does not measure it by a timer that on a busy host comes late: such a
measurement made boots hang.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import statistics
import time
from typing import Final

RDTSC: Final = bytes.fromhex("0f31 48c1e220 4809d0 c3")
"""rdtsc; shl rdx, 32; or rax, rdx; ret."""
HZ: Final = 250
"""Timer interrupts a second of Debian's kernels."""


def kernel_parameters() -> str:
    """For the guest's command line; empty where the counter is another architecture's."""
    if platform.machine() != "x86_64":
        return ""
    khz = measured_khz()
    return f"tsc=reliable tsc_early_khz={khz} lpj={khz * 1000 // HZ}"


def measured_khz(samples: int = 9, seconds: float = 0.005) -> int:
    """The median counts: a sample in which this process had to wait is far from it."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(RDTSC)
    code = ctypes.c_char.from_buffer(page)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(code))
    rates: list[float] = []
    for _ in range(samples):
        first, began = read(), time.perf_counter_ns()
        time.sleep(seconds)
        last, ended = read(), time.perf_counter_ns()
        rates.append((last - first) * 1_000_000 / (ended - began))
    return round(statistics.median(rates))
