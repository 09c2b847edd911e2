"""Network: drives the echo service of bench=echo from outside, with every byte compared, or counts its instructions.

  scripts/bench net --smp 8 --net-queues 8 --connections 1,8,32,128
  scripts/bench net --count --top 40           (instructions of a 64-byte round trip, one CPU)
"""
import csv
import os
import re
import subprocess
import tempfile

import insncount
import vmoptions
import weirvm

HELP = "network: echo over TCP; or counted instructions"

# A round trip at most, in kernel instructions, by number of connections.
LIMITS = {1: 4500, 8: 4000}


def client():
    """Path of the compiled echo client."""
    source = os.path.join(weirvm.ROOT, "tests", "bench", "echo_client.c")
    out = os.path.join(weirvm.BUILD, "bench", "echo_client")
    if not os.path.exists(out) or os.stat(out).st_mtime < os.stat(source).st_mtime:
        os.makedirs(os.path.dirname(out), exist_ok=True)
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", out, source], check=True)
    return out


def echo(vm, *options, timeout=600):
    """The client's line as a dictionary of numbers; VmError when an answer is wrong or late."""
    done = vm.client([client(), "-a", vm.network.guest, *map(str, options)], timeout, capture_output=True)
    if done.returncode:
        raise weirvm.VmError(f"echo client {options}: status {done.returncode}: {done.stderr.strip()}\n{vm.tail()}")
    return {k: float(v) for k, v in re.findall(r"(\w+)=([\d.]+)", done.stdout)}


def wait_ready(vm, timeout=240):
    vm.wait_line(r"bench: echo on port 7", timeout)


def count(connections, repetitions, append="", top=0):
    """[counts a round trip], each the difference of a short and a long run, so that opening cancels; profile."""
    short, long, found = 2000, 10000, []
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "counts")
        extra = insncount.qemu_args(out, blocks=top > 0)
        config = weirvm.VmConfig(net_queues=1, mem="512M", icount=True, append=f"bench=echo {append}", qemu_extra=extra)
        with weirvm.Vm(config) as vm:
            wait_ready(vm)

            def run(trips):
                echo(vm, "-c", connections, "-n", trips, "-w", 60)
                return insncount.read(out)
            run(short)  # warms caches, ARP, and QEMU's translator
            for _ in range(repetitions):
                start = insncount.read(out)
                middle = run(short)
                delta = (run(long) - middle) - (middle - start)
                found.append({name: delta[name] / (long - short) for name in delta})
            functions = []
            if top:
                before = insncount.read_blocks(out)
                run(long)
                functions = [(n / long, name) for n, name in insncount.by_function(before, insncount.read_blocks(out),
                                                                                  insncount.symbols_of_guest(vm))][:top]
    return found, functions


def say_counts(options):
    """True when every minimum is within its limit."""
    good = True
    print("| connections | kernel instructions a round trip, minimum (all) | limit | rep elements | HLT | port I/O | WRMSR |\n"
          "|---|---|---|---|---|---|---|")
    for connections in options.connections:
        found, functions = count(connections, options.rounds if options.rounds > 1 else 5, " ".join(options.append), options.top)
        best = min(found, key=lambda d: d["kernel"])
        limit = LIMITS.get(connections)
        good = good and (limit is None or best["kernel"] <= limit)
        print(f"| {connections} | {best['kernel']:.0f} ({' '.join(format(d['kernel'], '.0f') for d in found)}) | "
              f"{limit or '-'} | {best['rep_kernel']:.0f} | {best['hlt']:.2f} | {best['port']:.2f} | {best['wrmsr']:.2f} |",
              flush=True)
        for n, name in functions:
            print(f"    {n:8.1f} {name}")
    return good


def sweep(options, parser):
    rows = []
    config = vmoptions.machine_config(options, parser)
    config.append += " bench=echo"
    config.net_queues = config.net_queues or min(config.smp, 8)
    with weirvm.Vm(config, console_path=os.path.join(options.output, "console.net")) as vm:
        wait_ready(vm)
        for _ in range(options.rounds):
            for connections in options.connections:
                row = echo(vm, "-c", connections, "-s", options.bytes, "-t", options.secs, "-w", 60, timeout=options.secs + 300)
                rows.append({"smp": config.smp, "pairs": config.net_queues, **row})
                print(" ".join(f"{k}={v:g}" for k, v in rows[-1].items()), flush=True)
        trouble = vm.trouble()
        if trouble:
            raise weirvm.VmError(trouble)
    with open(os.path.join(options.output, "net.csv"), "w", newline="") as f:
        writer = csv.DictWriter(f, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return True


def numbers(text):
    return [int(n) for n in text.split(",")]


def add_options(parser):
    vmoptions.add_machine_options(parser, smp="2")
    parser.set_defaults(disks="0")
    add = parser.add_argument
    add("--connections", type=numbers, default=[1, 8], metavar="N,N", help="(1,8)")
    add("--bytes", type=int, default=64, metavar="N", help="of a message (64)")
    add("--secs", type=float, default=4, help="length of each point (4)")
    add("--rounds", type=int, default=1, metavar="N", help="all points N times (1; with --count 5)")
    add("--count", action="store_true", help="counted instructions: one CPU, minimum of --rounds, beside the limits")
    add("--top", type=int, default=0, metavar="N", help="with --count: a profile by function, N lines (0)")
    add("--output", default=os.path.join(weirvm.BUILD, "bench"), metavar="DIR", help="results (build/bench)")


def run(options, parser):
    os.makedirs(options.output, exist_ok=True)
    return 0 if (say_counts(options) if options.count else sweep(options, parser)) else 1
