"""Start: seconds from reset to the end of QEMU without devices, interleaved with a kernel that leaves at once, so that
what the machine itself takes (firmware, making and ending the virtual CPUs) is known. With --idle: what QEMU takes of the
host while the guest, with a NIC and a disk, has nothing to do.

  scripts/bench boot --smp 48
  scripts/bench boot --smp 48 --idle --secs 30
"""
import glob
import os
import statistics
import subprocess
import tempfile
import time

import vmoptions
import weirvm

HELP = "seconds to start, against a kernel that only exits; or what an idle guest costs"
SETTLE_SECONDS = 5


def add_options(parser):
    vmoptions.add_machine_options(parser, smp="48")
    add = parser.add_argument
    add("--rounds", type=int, default=10, metavar="N", help="boots of each (10)")
    add("--limit", type=float, metavar="X", help="status 1 when it is more than X seconds (with --idle: percent of one CPU)")
    add("--idle", action="store_true", help="measure an idle guest instead, over --secs")
    add("--secs", type=int, default=20, help="for --idle (20)")


def exit_only():
    """Path of an ELF that boots by PVH and leaves at once (tests/bench/exit_only.S)."""
    source = os.path.join(weirvm.ROOT, "tests", "bench", "exit_only.S")
    out = os.path.join(weirvm.BUILD, "bench", "exit_only.elf")
    if not os.path.exists(out) or os.stat(out).st_mtime < os.stat(source).st_mtime:
        os.makedirs(os.path.dirname(out), exist_ok=True)
        subprocess.run(["gcc", "-m32", "-static", "-nostdlib", "-Wl,--build-id=none,-Ttext=0x100000,-e,entry", "-o", out,
                        source], check=True)
    return out


def seconds_to_the_end(config, kernel):
    config.kernel = kernel
    with weirvm.Vm(config) as vm:
        status = vm.wait_exit(300)
        seconds = vm.seconds()
        if status:
            raise weirvm.VmError(f"{kernel}: status {status}\n{vm.tail()}")
    return seconds


def measure_start(options, parser):
    """Seconds that Weir takes more, minima of both."""
    options.net_queues = 0
    config = vmoptions.machine_config(options, parser)
    times = {"exits at once": [], "Weir": []}
    for _ in range(options.rounds):
        times["exits at once"].append(seconds_to_the_end(config, exit_only()))
        times["Weir"].append(seconds_to_the_end(config, options.kernel))
    print(f"{options.smp} CPUs, reset to the end, {options.rounds} interleaved pairs, seconds:")
    for name, values in times.items():
        print(f"  {name:14} min {min(values):6.2f}  median {statistics.median(values):6.2f}  max {max(values):6.2f}")
    more = min(times["Weir"]) - min(times["exits at once"])
    print(f"  Weir takes {more:.2f} s more (minima)")
    return more


def host_seconds(pid):
    """{thread name: seconds on a host CPU so far}, of all threads of a process; the guest's CPUs together."""
    total = {}
    for task in glob.glob(f"/proc/{pid}/task/*"):
        with open(task + "/comm") as comm, open(task + "/schedstat") as schedstat:
            name = comm.read().strip()
            name = "virtual CPUs" if name.startswith("CPU ") else name
            total[name] = total.get(name, 0) + int(schedstat.read().split()[0]) / 1e9
    return total


def measure_idle(options, parser):
    """Percent of one host CPU."""
    if options.disks == "0":
        options.disks = "1"
    config = vmoptions.machine_config(options, parser)
    config.append += " bench=echo"
    # Threads are named only on request.
    config.qemu_extra = config.qemu_extra + ["-name", "weir,debug-threads=on"]
    with tempfile.TemporaryDirectory() as scratch, weirvm.Vm(config, console_path=os.path.join(scratch, "console")) as vm:
        vm.wait_line("bench: echo", 120)
        time.sleep(SETTLE_SECONDS)
        before, since = host_seconds(vm.process.pid), time.monotonic()
        time.sleep(options.secs)
        after, seconds = host_seconds(vm.process.pid), time.monotonic() - since
        if vm.trouble() or not vm.running():
            raise weirvm.VmError(f"not idle: {vm.trouble()}\n{vm.tail()}")
        vm.shut_down()
    percent = {name: 100 * (after[name] - before.get(name, 0)) / seconds for name in after}
    total = sum(percent.values())
    parts = ", ".join(f"{name} {value:.2f}" for name, value in sorted(percent.items(), key=lambda p: -p[1]) if value >= 0.005)
    print(f"{options.smp} CPUs, a NIC and {options.disks} disk(s), idle for {seconds:.0f} s: {total:.2f} % of one host CPU ({parts})")
    return total


def run(options, parser):
    value = measure_idle(options, parser) if options.idle else measure_start(options, parser)
    return 1 if options.limit is not None and value > options.limit else 0
