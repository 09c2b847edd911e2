"""Reads what tests/bench/insncount.c (a QEMU plugin) counts, and turns block counts into a profile by function."""
import bisect
import mmap
import os
import re
import struct
import subprocess

import weirvm

CPUS, COUNTERS, BLOCKS = 256, 16, 1 << 20
NAMES = ("kernel", "program", "rep_kernel", "rep_program", "hlt", "port", "wrmsr", "cr3", "mark", "mark_kernel",
         "mark_program", "lap_kernel")


def build():
    """Path of the compiled plugin."""
    source = os.path.join(weirvm.ROOT, "tests", "bench", "insncount.c")
    out = os.path.join(weirvm.BUILD, "bench", "insncount.so")
    if not os.path.exists(out) or os.stat(out).st_mtime < os.stat(source).st_mtime:
        os.makedirs(os.path.dirname(out), exist_ok=True)
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden",
                        "-o", out, source], check=True)
    return out


def qemu_args(out, blocks=False, percpu=False):
    return ["-plugin", f"{build()},out={out}" + (",blocks=on" if blocks else "") + (",percpu=on" if percpu else "")]


class Counts(dict):
    """Counter name -> sum over CPUs. Differences of two are taken with minus."""

    def __sub__(self, other):
        return Counts({name: self[name] - other[name] for name in self})


def read(path):
    with open(path, "rb") as f:
        words = struct.unpack(f"<{CPUS * COUNTERS}Q", f.read(CPUS * COUNTERS * 8))
    return Counts({name: sum(words[i::COUNTERS]) for i, name in enumerate(NAMES)})


def read_blocks(path):
    """{block address: instructions}"""
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        data = m[CPUS * COUNTERS * 8:]
    words = struct.unpack(f"<{2 * BLOCKS}Q", data)
    return {words[i]: words[i + 1] for i in range(0, 2 * BLOCKS, 2) if words[i]}


def symbols_of_elf(path, base=0):
    """[(address, name)] of the functions, sorted."""
    text = subprocess.run(["nm", "-n", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = (line.split() for line in text.splitlines())
    return [(base + int(w[0], 16), w[2]) for w in found if len(w) == 3 and w[1] in "tTwW"]


def symbols_of_guest(vm):
    """Of the kernel, and of the first instance of lwIP where the console says that it lies."""
    where = next((m for m in (re.search(r"lwIP at (0x)?([0-9a-f]+)", line) for line in vm.lines) if m), None)
    module = symbols_of_elf(weirvm.LWIP, int(where[2], 16)) if where else []
    return sorted(symbols_of_elf(weirvm.KERNEL) + module)


def by_function(before, after, symbols):
    """[(instructions, name)] of the kernel half, most first."""
    addresses, total = [a for a, _ in symbols], {}
    for address, count in after.items():
        count -= before.get(address, 0)
        if count and address >> 63:
            at = bisect.bisect_right(addresses, address) - 1
            name = symbols[at][1] if at >= 0 and address - addresses[at] < 1 << 16 else "?"
            total[name] = total.get(name, 0) + count
    return sorted(((count, name) for name, count in total.items()), reverse=True)
