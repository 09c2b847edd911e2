"""Disks and NICs that come and go while I/O runs: through ACPI on pc and q35, through native PCI Express slots, and
pulled out without asking. Inside, tests/guest/block_hotplug.c keeps every disk busy and compares what it reads."""
import re
import time

import pytest

import weirvm
from conftest import SOAK, machine
from test_devices import make_disk

ROUNDS = 20 if SOAK else 3
NATIVE = ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]
PORTS = ["-device", "pcie-root-port,id=slot0,chassis=1,slot=1", "-device", "pcie-root-port,id=slot1,chassis=2,slot=2"]
MACHINES = {
    "pc": ("pc", [], ["pci.0", "pci.0"]),
    "pc-bridge": ("pc", ["-device", "pci-bridge,id=slot0,chassis_nr=1", "-device", "pci-bridge,id=slot1,chassis_nr=2"],
                  ["slot0", "slot1"]),
    "q35-acpi": ("q35", PORTS, ["slot0", "slot1"]),
    "q35-native": ("q35", NATIVE + PORTS, ["slot0", "slot1"]),
}


def spare_disks(tmp_path, count):
    """Disks without a device: what is plugged later."""
    found = []
    for i in range(count):
        path = make_disk(tmp_path, f"spare{i}.img")
        found += ["-blockdev", f"driver=file,filename={path},node-name=file{i},cache.direct=off",
                  "-blockdev", f"driver=raw,file=file{i},node-name=spare{i}"]
    return found


def fixed_disks(tmp_path, count):
    found = []
    for i in range(count):
        found += ["-drive", f"if=none,id=s{i},format=raw,file={make_disk(tmp_path, f's{i}.img')},cache=unsafe",
                  "-device", f"virtio-blk-pci,id=sd{i},drive=s{i},serial=scratch{i}"]
    return found


def boot(tmp_path, kind, append, smp=8, fixed=3, spares=2, extra=()):
    machine_type, devices, _ = MACHINES[kind]
    config = machine(smp=smp, mem="1G", machine=machine_type, net_queues=0, net="none", mttcg=False,
                     qemu_extra=devices + fixed_disks(tmp_path, fixed) + spare_disks(tmp_path, spares) + list(extra),
                     append=append + " ip=10.0.0.2/24")
    return weirvm.Vm(config, console_path=str(tmp_path / "console"))


def plug(vm, kind, i, **options):
    """Plug spare disk i and wait until it is under load. Returns its name."""
    mark, bus = vm.mark(), MACHINES[kind][2][i]
    vm.qmp.command("device_add", driver="virtio-blk-pci", id=f"hot{i}", drive=f"spare{i}", bus=bus,
                   serial=f"scratch-hot{i}", **options)
    name = vm.wait_line(rf"vd\w+: virtio-blk .* serial scratch-hot{i}", 60, since=mark).split(":")[0]
    vm.wait_line(rf"block test: {name} loaded", 60, since=mark)
    return name


def unplug(vm, i):
    vm.qmp.command("device_del", id=f"hot{i}")


def gone(vm, i, timeout=60):
    """QEMU has taken the device out and let go of its disk: both may be used again."""
    deadline = time.monotonic() + timeout
    while (any(d["name"] == f"hot{i}" for d in vm.qmp.command("qom-list", path="/machine/peripheral") or [])
           or any(b.get("inserted", {}).get("node-name") == f"spare{i}" for b in vm.qmp.command("query-block") or [])):
        assert time.monotonic() < deadline, f"hot{i} is still there"
        time.sleep(0.02)


def finish(vm, timeout=60, fenced=0):
    status = vm.wait_exit(timeout)
    console = "\n".join(vm.lines)
    assert status == 0, f"status {status}:\n{console}"
    assert re.search(r"^\d+ passed, 0 failed", console, re.M), console
    assert "watchdog rescue" not in console and console.count("fenced") == fenced and "cross call" not in console
    return console


# A fixed disk has eight queues. 25 vectors are one for each queue of three disks, too few when two more come; a single
# one is a disk's own, until another comes and it is everybody's.
@pytest.mark.parametrize("kind, fixed, vectors, rungs", [
    ("pc", 3, 25, {"own", "shared in the device"}), ("pc-bridge", 1, 1, {"one for the device", "system-wide shared"}),
    ("q35-acpi", 1, 1, {"one for the device", "system-wide shared"}), ("q35-native", 3, 27, {"own", "shared in the device"}),
])
def test_disks_come_and_go_under_load(kind, fixed, vectors, rungs, tmp_path):
    append = f"test=block_hotplug test.rounds={2 * ROUNDS} irq.vectors={vectors}"
    with boot(tmp_path, kind, append, fixed=fixed) as vm:
        vm.wait_line("block test: vda loaded", 60)
        for turn in range(ROUNDS):
            for i in range(2):
                plug(vm, kind, i)
            for i in range(2):
                mark = vm.mark()
                unplug(vm, i)
                if turn == ROUNDS - 1 and i == 1:
                    break  # the last one ends the test, and the guest
                vm.wait_line(r"pci [0-9a-f:.]+: may be taken out", 60, since=mark)
                gone(vm, i)
        console = finish(vm)
    moved = re.findall(r"irq: virtio-blk \S+: (\d+) demotions, (\d+) promotions, served (.*)", console)
    assert len(moved) == fixed
    for down, up, served in moved:
        assert int(down) >= ROUNDS and int(up) >= ROUNDS, moved
        assert rungs <= set(re.findall(r"[1-9]\d* ([a-z][a-z -]+)", served)), served
    assert all(int(used) <= vectors for used in re.findall(r"irq: (\d+) of", console))
    fewer = int(re.search(r"(-?\d+) pages fewer are free", console)[1])
    assert fewer < 64, f"{fewer} pages were lost"


def test_a_disk_that_is_pulled_out_without_asking(tmp_path):
    """The eject register, written from outside: the disk is gone in the middle of its load, the others work on."""
    with boot(tmp_path, "pc", "test=block_hotplug test.rounds=2") as vm:
        vm.wait_line("block test: vda loaded", 60)
        plug(vm, "pc", 0)
        slot = int(re.search(r"pci 0000:00:(\w\w)\.0: plugged", "\n".join(vm.lines))[1], 16)
        mark = vm.mark()
        vm.qmp.command("stop")  # between two instructions of the guest: see VmConfig.mttcg
        for command in ("o /w 0xae10 0", f"o /w 0xae08 {1 << slot:#x}"):
            vm.qmp.command("human-monitor-command", **{"command-line": command})
        vm.qmp.command("cont")
        vm.wait_line("fenced: it has vanished", 60, since=mark)
        vm.wait_line("block test: vdd: load has ended", 60, since=mark)
        vm.wait_line(rf"pci 0000:00:{slot:02x}.0: has vanished", 60, since=mark)
        plug(vm, "pc", 1)  # the slot, the name and the vectors are free again
        unplug(vm, 1)
        finish(vm, fenced=1)
