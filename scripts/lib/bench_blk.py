"""Disks: boots a machine for each point (depth x jobs x polled or not), prints what bench=blk says, and writes blk.csv,
blk.png and the consoles into --output.

  scripts/bench blk --smp 4 --null --bs 512 --depths 64 --jobs 1,2,4 --poll 0,1 --blk-queues 4 --poll-queues 2
  scripts/bench blk --smp 8 --disks 8 --rw randwrite --verify
  scripts/bench blk --count --depths 64 --poll 0,1      (instructions of each 512-byte read, one CPU)
"""
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import insncount
import vmoptions
import weirvm

HELP = "disks: IOPS, latencies, costs of a request; or counted instructions"
SHOWN = ("iops", "mb_per_s", "p50_us", "p99_us", "p999_us", "interrupts_per_io", "doorbells_per_io",
         "switches_per_io", "exits_per_io", "errors")
# What a polling CPU runs while there is nothing to take.
SPINNING = ("spin_for_done", "block_poll", "blk_poll", "virtqueue_has_used", "ring_has_used")
# The benchmark itself: what a program would do.
OWN = ("do_phase", "bench_histogram_add", "io_end")


def numbers(text):
    return [int(n) for n in text.split(",")]


def add_options(parser):
    vmoptions.add_machine_options(parser, smp="4")
    parser.set_defaults(disks="1", net_queues=0)
    add = parser.add_argument
    add("--rw", default="randread", help="read, write, rw, randread, randwrite, randrw (randread)")
    add("--bs", default="4k", help="bytes of a request (4k)")
    add("--depths", type=numbers, default=[1, 4, 16, 64], metavar="N,N", help="requests in flight for each job (1,4,16,64)")
    add("--jobs", type=numbers, default=[1], metavar="N,N", help="threads of each disk (1)")
    add("--poll", type=numbers, default=[0], metavar="0|1|0,1", help="interrupts, polled queues or both (0)")
    add("--poll-queues", type=int, metavar="N", help="polled queues of each disk (1 when --poll has a 1)")
    add("--secs", type=int, default=5, help="length of each point (5)")
    add("--rounds", type=int, default=1, metavar="N", help="all points N times (1)")
    add("--size", default="64M", help="part of each disk that is used (64M)")
    add("--verify", action="store_true", help="read everything back and compare (writing loads)")
    add("--null", action="store_true", help="QEMU's null-co instead of files: what the guest and QEMU cost alone")
    add("--count", action="store_true", help="counted instructions: one CPU, null-co, 512 bytes, minimum of --rounds (5)")
    add("--top", type=int, default=0, metavar="N", help="with --count: a profile by function, N lines (0)")
    add("--output", default=os.path.join(weirvm.BUILD, "bench"), metavar="DIR", help="results (build/bench)")


def null_disks(count, queues):
    argv = []
    for i in range(count):
        argv += ["-blockdev", f"driver=null-co,node-name=null{i},size=1073741824,read-zeroes=off",
                 "-device", f"virtio-blk-pci,id=null{i},drive=null{i},serial=null{i},num-queues={queues}"]
    return argv


def configure(options, parser, poll):
    config = vmoptions.machine_config(options, parser)
    polled = options.poll_queues or (1 if poll else 0)
    config.blk_queues = config.blk_queues or min(config.smp + polled, 64)
    if options.null or options.count:
        config.qemu_extra = config.qemu_extra + null_disks(len(config.disks), config.blk_queues)
        config.disks = []
    config.append += f" blk.poll_queues={polled if 1 in options.poll else 0}"
    return config


def measure(config, words, timeout, console):
    """[{key: value}] for each disk."""
    config.append += " bench=blk:" + words
    with weirvm.Vm(config, console_path=console) as vm:
        status = vm.wait_exit(timeout)
        text, trouble = "\n".join(vm.lines), vm.trouble()
        tail = vm.tail()
    found = [dict(word.split("=", 1) for word in line.split()) for line in re.findall(r"bench: (dev=.*)", text)]
    if status or trouble or not found:
        raise weirvm.VmError(f"{words}: guest status {status}, console: {trouble or 'nothing unusual'}\n{tail}")
    return found


def options_of(options, depth, jobs, poll):
    words = f"rw={options.rw},bs={options.bs},depth={depth},jobs={jobs},poll={poll},size={options.size}"
    return words + (",verify=1" if options.verify else "")


def sweep(options, parser):
    rows, began = [], time.monotonic()
    points = [(d, j, p) for _ in range(options.rounds) for d in options.depths for j in options.jobs for p in options.poll]
    print(f"{'depth':>5} {'jobs':>4} {'poll':>4} {'dev':>5} " + " ".join(f"{name:>17}" for name in SHOWN))
    for n, (depth, jobs, poll) in enumerate(points, 1):
        console = os.path.join(options.output, f"console.{depth}.{jobs}.{poll}")
        print(f"  point {n} of {len(points)}, {time.monotonic() - began:.0f} s", end="\r", file=sys.stderr, flush=True)
        for row in measure(configure(options, parser, poll), options_of(options, depth, jobs, poll) +
                           f",secs={options.secs}", options.secs * 10 + 300, console):
            rows.append(row)
            print(f"{depth:5} {jobs:4} {poll:4} {row['dev']:>5} " + " ".join(f"{row[name]:>17}" for name in SHOWN), flush=True)
    return rows


def count_one(options, parser, depth, poll, ios):
    """Counters of a whole life, boot included, with `ios` reads: differences are what reads cost."""
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "counts")
        config = configure(options, parser, poll)
        config.smp, config.icount = 1, True
        config.qemu_extra = config.qemu_extra + insncount.qemu_args(out, blocks=True)
        row = measure(config, options_of(options, depth, 1, poll) + f",ios={ios},secs=1000", 600,
                      os.path.join(options.output, f"console.count.{depth}.{poll}"))[0]
        return insncount.read(out), insncount.read_blocks(out), row


def count(options, parser):
    options.bs, options.smp, options.blk_queues = "512", "1", 2
    short, long, rounds = 5000, 20000, options.rounds if options.rounds > 1 else 5
    symbols, rows = insncount.symbols_of_elf(weirvm.KERNEL), []
    print("| depth | poll | kernel instructions a read, min (all) | of those the benchmark's own | empty polls, instructions apart | interrupts | "
          "doorbells | HLT | port I/O | WRMSR |\n|---|---|---|---|---|---|---|---|---|---|")
    for depth in options.depths:
        for poll in options.poll:
            found = []
            for _ in range(rounds):
                before, blocks_before, _ = count_one(options, parser, depth, poll, short)
                after, blocks, row = count_one(options, parser, depth, poll, long)
                functions = insncount.by_function(blocks_before, blocks, symbols)
                spin = sum(n for n, name in functions if name in SPINNING) if poll else 0
                reads, delta = long - short, after - before
                own = sum(n for n, name in functions if name in OWN)
                found.append({"depth": depth, "poll": poll, "kernel": (delta["kernel"] - spin) / reads, "own": own / reads, "spin": spin / reads,
                              "interrupts": row["interrupts_per_io"], "doorbells": row["doorbells_per_io"],
                              **{name: delta[name] / reads for name in ("hlt", "port", "wrmsr")}, "functions": functions})
                print(f"  {found[-1]['kernel']:.0f}", end="\r", file=sys.stderr, flush=True)
            best = min(found, key=lambda f: f["kernel"])
            rows.append(best)
            print("| {} | {} | {:.0f} ({}) | {:.0f} | {:.0f} | {} | {} | {:.3f} | {:.3f} | {:.3f} |".format(
                depth, poll, best["kernel"], ", ".join("%.0f" % f["kernel"] for f in found), best["own"], best["spin"],
                best["interrupts"], best["doorbells"], best["hlt"], best["port"], best["wrmsr"]), flush=True)
            for n, name in best["functions"][:options.top]:
                print(f"    {n / (long - short):7.1f} {name}")
    for row in rows:
        row.pop("functions", None)
    return rows


def write_csv(path, rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as f:
        writer = csv.DictWriter(f, names)
        writer.writeheader()
        writer.writerows(rows)


def write_plot(path, rows, options):
    """IOPS of all disks together over the depth, one line for each (jobs, poll)."""
    if not shutil.which("gnuplot"):
        print("bench: no plot, because gnuplot is missing: run scripts/setup", file=sys.stderr)
        return
    blocks, plots = [], []
    for i, (jobs, poll) in enumerate((j, p) for j in options.jobs for p in options.poll):
        lines = []
        for depth in options.depths:
            mine = [float(r["iops"]) for r in rows if (r["depth"], r["jobs"], r["poll"]) == (str(depth), str(jobs), str(poll))]
            lines.append(f"{depth} {sum(mine) / options.rounds}")
        blocks.append(f"$d{i} << EOD\n" + "\n".join(lines) + "\nEOD\n")
        title = f"{jobs} job{'s' if jobs > 1 else ''}, {'polled' if poll else 'interrupts'}"
        plots.append(f"$d{i} using 1:2 with linespoints pointtype 7 linewidth 2 title '{title}'")
    script = "".join(blocks) + f"""
set terminal pngcairo size 900,540
set output '{path}'
set title '{options.rw} of {options.bs}, {options.smp} virtual CPUs, {options.secs} s a point'
set xlabel 'depth of each job'
set ylabel 'requests/s, all disks'
set logscale x 2
set xtics ({", ".join(map(str, options.depths))})
set xrange [{min(options.depths) * 0.9}:{max(options.depths) * 1.1}]
set yrange [0:*]
set grid
set key outside top center horizontal
plot {", ".join(plots)}
"""
    subprocess.run(["gnuplot"], input=script, text=True, check=True)


def run(options, parser):
    os.makedirs(options.output, exist_ok=True)
    began = time.monotonic()
    rows = count(options, parser) if options.count else sweep(options, parser)
    name = "blk-count" if options.count else "blk"
    write_csv(os.path.join(options.output, name + ".csv"), rows)
    if not options.count:
        write_plot(os.path.join(options.output, name + ".png"), rows, options)
    print(f"bench: no errors; {time.monotonic() - began:.0f} s; results in {os.path.relpath(options.output)}")
    return 0
