"""The test that names us: disks with 48 queues each and NICs with 16 pairs, more of them than there are interrupt vectors
for, in any order, with any number of vectors; every disk written at random and verified while the network is loaded on
all its pairs; and the data is there after a restart."""
import os
import re

import pytest

import weirvm
from conftest import HERE, SOAK, machine
from test_bench_blk import results
from test_devices import make_disk, nic

SECONDS = 60 if SOAK else 3
CONNECTIONS = 32

FEW = [(16, order, vectors, None) for order in ("disks first", "NIC first", "4 NICs") for vectors in (217, 64, 16, 4, 1, 0)]
CASES = (
    # CPUs, order, irq.vectors, vectors= of the devices
    [(smp, "disks first", 217, None) for smp in (4, 16, 48)] + [(smp, "NIC first", 217, None) for smp in (4, 48)] + FEW[1:] +
    [(48, "4 NICs", vectors, None) for vectors in (217, 16, 1, 0)] + [(smp, "disks first", 217, v) for smp in (4, 16) for v in (0, 1, 2, 3)]
) if SOAK else [(4, "disks first", 217, 2), (8, "4 NICs", 0, None), (48, "NIC first", 217, None)]


def configure(tmp_path, smp, order, vectors, own, append, net):
    paths = [tmp_path / f"d{i}.img" for i in range(8)]
    for path in paths:
        if not path.exists():
            make_disk(tmp_path, path.name)
    extra = nic(34).copy() if order == "4 NICs" else []
    for n in (2, 3) if order == "4 NICs" else ():
        extra += [word.replace("h0", f"h{n}").replace("hubid=0", f"hubid={n}") for word in nic(34)]
    if order == "disks first":
        disks = {"disks": [str(path) for path in paths], "blk_queues": 48}
    else:
        disks = {}
        for i, path in enumerate(paths):
            extra += ["-drive", f"if=none,id=d{i},format=raw,file={path}",
                      "-device", f"virtio-blk-pci,id=disk{i},drive=d{i},num-queues=48"]
    if own is not None:
        for device in [f"disk{i}" for i in range(8)] + ["nic0"] * net:
            extra += ["-set", f"device.{device}.vectors={own}"]
    return machine(smp=smp, mem="2G", net_queues=16 if net else 0, qemu_extra=extra, append=f"{append} irq.vectors={vectors}", **disks)


@pytest.mark.parametrize("smp,order,vectors,own", CASES)
def test_all_queues_of_all_devices_at_once(smp, order, vectors, own, tmp_path):
    load = f"bench=blk:rw=randwrite,depth=4,jobs={smp},secs={SECONDS},size=24M,verify=1"
    config = configure(tmp_path, smp, order, vectors, own, load + " bench=echo", True)
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        if vm.network.mode == "user":
            pytest.skip("QEMU's user-mode network has one pair")
        vm.wait_line("bench: randwrite on 8 disks", 240)
        client = vm.start_client(["python3", os.path.join(HERE, "programs", "echo_load.py"), vm.network.guest,
                                  str(CONNECTIONS), str(SECONDS)], stdout=-1, stderr=-2)
        answer = client.communicate(timeout=SECONDS * 20 + 300)[0]
        status = vm.wait_exit(SECONDS * 20 + 600)
        console = "\n".join(vm.lines)
    assert status == 0 and "bench: blk ok" in console, console
    assert "watchdog rescue" not in console and "fenced" not in console and not weirvm.TROUBLE.search(console)
    used, pool = map(int, re.search(r"irq: (\d+) of (\d+) vectors planned", console).groups())
    assert used <= pool == vectors
    words = results(console)
    assert len(words) == 8
    for w in words.values():
        assert int(w["ios"]) and w["errors"] == w["mismatches"] == "0" and int(w["oldest_s"]) <= 5
        assert int(w["queues"]) == int(w["queues_used"]) == min(smp, 48)
    assert "trips" in answer and not answer.rstrip().endswith("fewest 0"), answer

    config = configure(tmp_path, smp, order, vectors, own, load.replace("verify=1", "verify=check"), False)
    with weirvm.Vm(config, console_path=str(tmp_path / "console2")) as vm:
        assert vm.wait_exit(600) == 0, "\n".join(vm.lines)
        again = results("\n".join(vm.lines))
    assert {d: w["verified_sectors"] for d, w in again.items()} == {d: w["verified_sectors"] for d, w in words.items()}
