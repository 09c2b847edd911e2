"""Boot, panic and power on the machines that QEMU can be: no disk, no program, only the kernel."""
import os
import re
import subprocess

import pytest

import insncount
import weirvm
from conftest import SOAK, machine, script

PANIC_STATUS = 101


def run(tmp_path, append, smp=4, timeout=120, **options):
    """(status, console) of a kernel that ends by itself."""
    config = machine(smp=smp, mem=options.pop("mem", "512M"), net_queues=0, net="none", append=append, **options)
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        status = vm.wait_exit(timeout)
        return status, "\n".join(vm.lines)


@pytest.mark.parametrize("kind, expected", [
    ("panic", r"panic on CPU 0: on purpose"),
    ("null", "address 0x8: nothing mapped, write"),
    ("text", "no right to write"),
    ("nx", "no right to execute"),
    ("stack", "double fault"),
    ("smash", "stack smashed"),
    ("two", "on purpose, from CPU"),
    ("again", "panic during panic"),
    ("alone", "others deaf"),
])
def test_a_panic_names_its_cause_and_every_cpu(kind, expected, tmp_path):
    status, console = run(tmp_path, f"crash={kind}")
    assert status == PANIC_STATUS
    assert expected in console
    if kind not in ("again",):
        for cpu in range(4):
            assert f"CPU {cpu} (APIC id" in console
        assert "did not answer" not in console
    if kind == "stack":
        assert "overflow+" in console  # symbols


def test_a_switch_of_kernel_threads_is_cheap(tmp_path):
    """Counted, one CPU: two threads that wake each other through wait queues. `scripts/compare --switch --top 40`
    shows where the instructions go."""
    out = str(tmp_path / "counts")
    status, console = run(tmp_path, "test=sched_switch_cost sched.check=0", smp=1, icount=True,
                          qemu_extra=insncount.qemu_args(out))
    assert status == 0
    switches = int(re.search(r"(\d+) switches,", console)[1])
    assert insncount.read(out)["lap_kernel"] / switches <= 600


def test_a_triple_fault_is_no_success(tmp_path):
    assert run(tmp_path, "crash=triple", smp=1)[0] == weirvm.RESET


@pytest.mark.parametrize("kind", ["q35", "pc", "microvm,pcie=on"])
def test_without_a_debug_exit_it_powers_off_by_acpi(kind, tmp_path):
    config = machine(smp=2, mem="256M", machine=kind, net_queues=0, net="none")
    config.debug_exit = False
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        assert vm.wait_exit(30) == 0, vm.tail()
        assert not vm.trouble() and vm.lines[-1] == "exit status 0", vm.tail()
    config.append = "crash=panic"
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        assert vm.wait_exit(30) == PANIC_STATUS, vm.tail()


@pytest.mark.parametrize("kind", ["q35", "pc"])
@pytest.mark.parametrize("how", ["acpi", "ctrl-c"])
def test_the_power_button_reaches_its_hook(kind, how, tmp_path):
    config = machine(smp=2, mem="256M", machine=kind, net_queues=0, net="none", append="hold=button")
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        vm.wait_line("hold: waiting", 60)
        if how == "acpi":
            vm.power_button()
        else:
            vm.write_console(b"\x03")
        assert vm.wait_exit(60) == 42


@pytest.mark.parametrize("smp, options", [
    (1, ""), (2, ""), (3, ""), (64, ""), (48, "sockets=16,cores=3"), (48, "sockets=4,cores=6,threads=2"),
    (135, "sockets=9,cores=15"), (255, ""),
])
def test_every_cpu_comes_up(smp, options, tmp_path):
    status, console = run(tmp_path, "test=each_cpu_has_its_own_block_and_stacks", smp=smp, smp_options=options,
                          mem="1G", timeout=240)
    assert status == 0
    assert f"weir: {smp} CPUs" in console


@pytest.mark.parametrize("mem, kind", [
    ("64M", "pc"), ("256M", "q35"), ("3071M", "q35"), ("3073M", "pc"), ("3585M", "pc"), ("8G", "q35"), ("8G", "pc"),
    ("1G", "pc-i440fx-7.0"), ("512M", "pc,hpet=off"), ("512M", "q35,pit=off,hpet=off"),
])
def test_memory_holes_and_clock_sources(mem, kind, tmp_path):
    wanted = "each_cpu_has_its_own_block_and_stacks,sleep_ends_after_its_deadline_and_soon,page_below_a_limit_lies_below_it"
    status, console = run(tmp_path, "test=" + wanted, smp=2, mem=mem, machine=kind)
    assert status == 0
    summary = next(line for line in console.splitlines() if "MiB free" in line)
    free = int(summary.split("of memory, ")[1].split()[0])
    size = int(mem[:-1]) * (1024 if mem.endswith("G") else 1)
    assert free > size * 0.97 - 8


def test_memory_above_1_tib(tmp_path):
    """With an AMD CPU whose address space would reach 1 TiB, QEMU puts there what does not fit below 4 GiB."""
    status, console = run(tmp_path, "test=page_below_a_limit_lies_below_it,pages_belong_to_one_owner_on_all_cpus", smp=2,
                          mem="8G,slots=1,maxmem=1010G", qemu_extra=["-cpu", "EPYC,phys-bits=48,erms=off"])
    assert status == 0
    assert int(re.search(r"weir: 2 CPUs, 8191 MiB of memory, (\d+) MiB free", console)[1]) > 8000


CLOCK_TESTS = "timer_interrupts_are_not_early,sleep_ends_after_its_deadline_and_soon,clock_never_goes_back_across_cpus"


def tsc_khz(tmp_path, kind, trust, expected):
    status, console = run(tmp_path, f"loglevel=debug tsc={trust} test={CLOCK_TESTS}", machine=kind, mem="256M")
    assert status == 0, console
    assert f"clock: TSC measured against the {expected}" in console
    return int(re.search(r"clock: TSC (\d+) kHz", console)[1])


@pytest.mark.parametrize("trust", ["reliable", "untrusted"])
def test_every_clock_source_gives_the_same_rate(trust, tmp_path):
    rate = tsc_khz(tmp_path, "q35", trust, "HPET")
    for kind, source in [("q35,hpet=off", "ACPI timer"), ("pc,hpet=off", "ACPI timer"), ("microvm,pcie=on", "PIT")]:
        assert tsc_khz(tmp_path, kind, trust, source) == pytest.approx(rate, rel=0.002)


@pytest.mark.parametrize("append, up, said", [
    ("smp.deaf=2 smp.deaf=1", 2, ["2 CPUs have not started, trying again", "CPU with APIC id 1 did not come up",
                                  "CPU with APIC id 2 did not come up"]),
    ("smp.deaf=3:1", 4, ["1 CPUs have not started, trying again"]),
])
def test_cpus_that_do_not_start_are_tried_again_then_named(append, up, said, tmp_path):
    wanted = "each_cpu_has_its_own_block_and_stacks,cross_calls_from_all_cpus_at_once,timer_interrupts_are_not_early"
    status, console = run(tmp_path, f"test={wanted} {append}")
    assert status == 0
    assert f"weir: {up} CPUs" in console
    for line in said:
        assert line in console


def test_an_nmi_shows_every_cpu_and_does_no_harm(tmp_path):
    config = machine(smp=4, mem="256M", net_queues=0, net="none", append="hold=button")
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        vm.wait_line("hold: waiting", 60)
        for _ in range(20):
            at = vm.mark()
            vm.qmp.command("inject-nmi")
            for cpu in range(4):
                vm.wait_line(f"NMI on CPU {cpu}: idle", 30, since=at)
        vm.power_button()
        assert vm.wait_exit(60) == 42


def test_gdb_lists_threads_and_run_queues(tmp_path):
    gdb_socket = str(tmp_path / "gdb")
    config = machine(smp=2, mem="256M", net_queues=0, net="none", append="test=all",
                     qemu_extra=["-gdb", f"unix:{gdb_socket},server=on,wait=off"])
    commands = ["set confirm off", f"target remote {gdb_socket}", "hbreak policy_pick if c->queued >= 2", "continue",
                "weir-cpus", "weir-threads", "weir-bt main", "kill"]
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        vm.wait_line("^weir: 2 CPUs", 60)
        done = subprocess.run(["gdb", "-nx", "-batch", "-x", os.path.join(weirvm.ROOT, "scripts", "gdb.py"),
                               *[word for command in commands for word in ("-ex", command)], weirvm.KERNEL],
                              capture_output=True, text=True, timeout=120)
    output = done.stdout
    for cpu in range(2):
        assert re.search(rf"^CPU +{cpu} APIC +{cpu} \S+ ", output, re.M), output + done.stderr
    assert re.search(r"queue \[.+ \(\d+\), .+ \(\d+\)", output), output + done.stderr
    assert re.search(r"^ +\d+ main +\w+ +CPU ", output, re.M), output
    assert re.search(r"^main \(tid \d+\)\n  ", output, re.M), output


def test_a_cpu_that_halts_beside_its_queue_is_reported(tmp_path):
    """gdb gives an idle CPU a queued thread that nobody told it of, as a lost IPI would. The report names it, once."""
    gdb_socket = str(tmp_path / "gdb")
    config = machine(smp=8, mem="256M", net_queues=0, net="none", append="bench=echo sched.watchdog=1",
                     qemu_extra=["-gdb", f"unix:{gdb_socket},server=on,wait=off"])
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        vm.wait_line("bench: echo", 60)
        subprocess.run(["gdb", "-nx", "-batch", "-ex", "set confirm off", "-ex", f"target remote {gdb_socket}",
                        "-ex", "set var policy_cpus[7].load = 1", "-ex", "detach", weirvm.KERNEL],
                       check=True, capture_output=True, timeout=120)
        vm.wait_line("scheduler dump: a CPU is halted with a thread in its queue", 60)
        assert re.search(r"halted 1, idle bit 1", vm.wait_line(r"CPU 7: runs idle/7", 10))
        vm.wait_line(r"thread \d+ echo: \w+ parked", 10)


def test_an_idle_guest_costs_under_3_percent_of_a_host_cpu():
    print(script("bench", "boot", "--smp", 48, "--idle", "--secs", 60 if SOAK else 10, "--limit", 3))


@pytest.mark.skipif(not SOAK, reason="seconds on a busy host say little")
def test_48_cpus_start_within_half_a_second():
    print(script("bench", "boot", "--smp", 48, "--rounds", 10, "--limit", 0.5))
