"""A disk that lies, and one whose device asks for a reset: it is fenced with a line that names it, what it had in flight
ends with an error, it is recovered by a reset, and all that time other disks and the NIC work under verified load."""
import re
import signal
import struct
import subprocess
import time

import pytest

import weirvm
from conftest import machine
from gdbstub import Gdb
from lying_disk import LyingDisk
from test_devices import bar_of, make_disk

FENCED = r"virtio-blk (\S+): fenced: (.*)"


def virtqueue(vm, device, number):
    """What QEMU knows of a queue of the first device of that type, or with that in its path."""
    path = next(d["path"] for d in vm.qmp.command("x-query-virtio") if device in (d["name"], d["path"].split("/")[-2]))
    return vm.qmp.command("x-query-virtio-queue-status", path=path, queue=number)


# Each attempt goes through the NIC and a stack: nobody listens there, and the refusal must come.
KNOCK = """
import signal, socket, sys
left = []
signal.signal(signal.SIGTERM, lambda *_: left.extend(range(20)))
print("started", flush=True)
while True:
    try:
        socket.create_connection((sys.argv[1], 9), 3).close()
    except ConnectionRefusedError:
        if left and left.pop() == 0:
            sys.exit(0)
"""


class Rig:
    """Two honest disks and the one that is bad, each under the load of tests/guest/block_hotplug.c until that is unplugged."""

    def __init__(self, tmp_path, bad_disk):
        extra = ["-device", "pcie-root-port,id=slot0,chassis=1,slot=1", *bad_disk]
        for i in range(2):
            extra += ["-drive", f"if=none,id=s{i},format=raw,file={make_disk(tmp_path, f's{i}.img')},cache=unsafe",
                      "-device", f"virtio-blk-pci,drive=s{i},serial=scratch{i}"]
        config = machine(smp=4, mem="1G", machine="q35,memory-backend=shared", net_queues=4, mttcg=False, qemu_extra=[
            "-object", "memory-backend-memfd,id=shared,size=1G,share=on", *extra], append="test=block_hotplug test.rounds=1")
        self.vm = weirvm.Vm(config, console_path=str(tmp_path / "console"))

    def __enter__(self):
        self.vm.__enter__()
        self.name = self.vm.wait_line(r"vd\w+: virtio-blk .* serial scratch-liar", 60).split(":")[0]
        for name in ("vda", "vdb", "vdc"):
            self.vm.wait_line(f"block test: {name} loaded", 60)
        self.knock = self.vm.start_client(["/usr/bin/python3", "-c", KNOCK, weirvm.GUEST_IP], stdout=subprocess.PIPE)
        assert self.knock.stdout.readline() == "started\n"
        return self

    def __exit__(self, *exception):
        self.vm.__exit__(*exception)

    def wait(self, pattern, timeout=30):
        return self.vm.wait_line(pattern, timeout, since=self.since)

    def mark(self):
        self.since = self.vm.mark()

    def finish(self, fenced):
        """Unplug the bad disk. Returns (rounds that were verified, errors) of each disk by its name."""
        self.knock.send_signal(signal.SIGTERM)  # 20 more refusals
        assert self.knock.wait(30) == 0
        self.vm.qmp.command("device_del", id="hot0")
        status = self.vm.wait_exit(60)
        console = "\n".join(self.vm.lines)
        assert status == 0 and re.search(r"^\d+ passed, 0 failed", console, re.M), console
        assert len(re.findall(FENCED, console)) == fenced and "watchdog rescue" not in console
        loads = {name: (int(rounds), int(errors)) for name, rounds, errors in
                 re.findall(r"block test: (vd\w+): load has ended, (\d+) rounds, (\d+) errors", console)}
        assert all(errors == 0 for name, (_, errors) in loads.items() if name != self.name), loads
        return loads


LIES = {"id": "completion id out of range", "twice": "not outstanding|ran ahead", "length": "more bytes written",
        "jump": "ran ahead"}


@pytest.fixture
def liar(tmp_path):
    disk = LyingDisk(str(tmp_path / "vhost"), make_disk(tmp_path, "liar.img"), queues=4)
    yield disk
    disk.close()


def test_a_lying_disk_is_fenced_and_recovered_and_the_others_work_on(tmp_path, liar):
    with Rig(tmp_path, liar.qemu_args("id=hot0,bus=slot0")) as rig:
        for n, what in enumerate(list(LIES)[:3], 1):
            rig.mark()
            liar.lie(what)
            assert re.search(LIES[what], rig.wait(FENCED))
            rig.wait(rf"recovered by a reset \({n} of at most 3")
            rig.wait(f"block test: {rig.name} is served again")
        # The fourth time it stays fenced: requests end with an error at once, and it can be unplugged.
        rig.mark()
        liar.lie("jump")
        assert re.search(LIES["jump"], rig.wait(FENCED))
        rig.wait("stays fenced until the next boot: it was recovered often enough")
        loads = rig.finish(fenced=4)
    assert loads[rig.name][1] >= 4, loads


def test_a_disk_that_is_late_or_odd_but_does_not_lie_is_not_fenced(tmp_path, liar):
    with Rig(tmp_path, liar.qemu_args("id=hot0,bus=slot0")) as rig:
        rig.mark()
        liar.hold()
        rig.wait(rf"{rig.name}: queue \d is stalled: the device has had a (read|write) of sector \d+ for 10 s")
        assert liar.held()
        before = liar.served
        liar.release()
        liar.lie("status")  # after the held ones, which end well
        assert liar.served > before
        rig.wait(f"{rig.name}: request ended with the invalid status 0x55")
        rig.wait(f"block test: {rig.name} is served again")
        for n in range(200):
            liar.resize((64 + n % 3) * 2048)
        liar.resize(80 * 2048)
        rig.wait(f"{rig.name}: resized from .* to 80 MiB")
        # The back-end dies with requests, and another takes its place. Nobody can say what became of them; unplugging ends them.
        liar.hold()
        deadline = time.monotonic() + 10
        while not liar.held():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        liar.disconnect()
        liar.release()
        loads = rig.finish(fenced=0)
    assert loads[rig.name][1] == 1, loads


def plain_disk(tmp_path, gdb):
    """QEMU's own; what is bad comes from outside."""
    return ["-drive", f"if=none,id=b,format=raw,file={make_disk(tmp_path, 'b.img')},cache=unsafe",
            "-device", "virtio-blk-pci,drive=b,serial=scratch-liar,id=hot0,bus=slot0,num-queues=4", *Gdb.qemu_args(gdb)]


def test_a_disk_that_asks_for_a_reset_gets_it(tmp_path):
    """The available ring names a descriptor that does not exist: QEMU declares the device broken and serves nothing until a reset."""
    gdb = str(tmp_path / "gdb")
    with Rig(tmp_path, plain_disk(tmp_path, gdb)) as rig:
        rig.mark()
        ring = virtqueue(rig.vm, "hot0", 2)
        available, size = ring["vring-avail"], ring["vring-num"]
        doorbell = bar_of(rig.vm, "hot0", 4) + 0x3000 + 4 * 2
        with Gdb(gdb) as g:
            index = struct.unpack("<H", g.read(available + 2, 2))[0]
            g.write(available + 4 + 2 * (index % size), b"\xff\xff")
            g.write(available + 2, struct.pack("<H", index + 1 & 0xffff))
            g.write(doorbell, struct.pack("<H", 2))
        assert "it asks for a reset" in rig.wait(FENCED)
        rig.wait(r"recovered by a reset \(1 of at most 3")
        rig.wait(f"block test: {rig.name} is served again")
        loads = rig.finish(fenced=1)
    assert loads[rig.name][1] >= 1, loads


def test_a_queue_of_a_nic_that_lies_is_reset_alone(tmp_path):
    """The used index of each transmit queue jumps. What is to be sent next finds that; TCP's next try gets through."""
    gdb = str(tmp_path / "gdb")
    with Rig(tmp_path, plain_disk(tmp_path, gdb)) as rig:
        rig.mark()
        used = [virtqueue(rig.vm, "virtio-net", 2 * i + 1)["vring-used"] for i in range(4)]
        with Gdb(gdb) as g:
            for address in used:
                index = struct.unpack("<H", g.read(address + 2, 2))[0]
                g.write(address + 2, struct.pack("<H", index + 700 & 0xffff))
        rig.wait(r"virtio-net \S+: queue [1357] is reset: used index ran ahead")
        loads = rig.finish(fenced=0)  # the refusals that it waits for come over queues that were reset
    assert loads[rig.name][1] == 0, loads
