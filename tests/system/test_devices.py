"""Disks and interrupts of every kind: each rung of the vector ladder, odd queues and rings, errors, restart, resize.

Inside the image tests/guest/block_*.c write, read back and compare; here the machines are made and the console read."""
import re

import pytest

import weirvm
from conftest import SOAK, machine

LOAD = "test=block_verify,block_split,block_refused,block_plug,block_crowd"


def make_disk(tmp_path, name, mib=64):
    path = str(tmp_path / name)
    with open(path, "wb") as f:
        f.truncate(mib << 20)
    return path


def drives(tmp_path, count, options="", cache="unsafe"):
    """`count` scratch disks. Device options after a comma."""
    found = []
    for i in range(count):
        path = make_disk(tmp_path, f"s{i}.img")
        found += ["-drive", f"if=none,id=s{i},format=raw,file={path},cache={cache}",
                  "-device", f"virtio-blk-pci,id=sd{i},drive=s{i},serial=scratch{i}{options}"]
    return found


def nic(pairs_vectors):
    """A NIC with 16 pairs that is connected to nothing."""
    return ["-netdev", "hubport,id=h0,hubid=0", "-device", f"virtio-net-pci,netdev=h0,mq=on,vectors={pairs_vectors}"]


def run(tmp_path, extra, append=LOAD, smp=8, timeout=240, **options):
    config = machine(smp=smp, mem=options.pop("mem", "1G"), net_queues=0, net="none", qemu_extra=extra,
                     append=append + " ip=10.0.0.2/24", **options)
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        status = vm.wait_exit(timeout)
        console = "\n".join(vm.lines)
    assert status == 0, f"status {status}:\n{console}"
    assert re.search(r"^\d+ passed, 0 failed", console, re.M), console
    assert "watchdog rescue" not in console and "fenced" not in console
    return console


RUNGS = {  # irq.vectors: what the plan must say
    217: "shared in the device", 64: "shared in the device", 16: "one for the device",
    8: "system-wide shared", 4: "system-wide shared", 1: "system-wide shared", 0: "polled",
}


@pytest.mark.parametrize("vectors", RUNGS if SOAK else [217, 8, 0])
def test_eight_disks_of_48_queues_and_a_nic_at_every_rung(vectors, tmp_path):
    console = run(tmp_path, drives(tmp_path, 8) + nic(34), f"{LOAD} irq.vectors={vectors}", smp=48)
    assert RUNGS[vectors] in console
    used, pool = map(int, re.search(r"irq: (\d+) of (\d+) vectors planned", console).groups())
    assert used <= pool == vectors
    assert console.count("48 queues\n") >= 8  # block_verify: every queue of every disk was used


def test_a_self_test_without_its_disk_fails(tmp_path):
    for append in ("test=block_verify", "test=block_read_only", "test=block_zeroes test.disks=scratch"):
        with pytest.raises(AssertionError, match="1 failed"):
            run(tmp_path, [], append, smp=1)


def test_a_request_that_the_device_keeps_is_reported(tmp_path):
    """One request a second: the last of 14 waits longer than the watchdog likes, and ends well."""
    slow = ["-drive", f"if=none,id=t,format=raw,file={make_disk(tmp_path, 't.img')},throttling.iops-total=1",
            "-device", "virtio-blk-pci,drive=t"]
    config = machine(smp=2, mem="512M", net_queues=0, net="none", qemu_extra=slow,
                     append="bench=blk:bs=512,depth=14,ios=14,secs=300,size=4M root=none")
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        status = vm.wait_exit(120)
        console = "\n".join(vm.lines)
    assert status == 0 and "watchdog rescue" not in console, console
    assert re.search(r"vda: queue 0 is stalled: the device has had a read of sector \d+ for 10 s", console), console
    assert int(re.search(r"oldest_s=(\d+)", console)[1]) >= 10


def test_the_nic_may_come_first(tmp_path):
    run(tmp_path, nic(34) + drives(tmp_path, 4), smp=16)


@pytest.mark.parametrize("kind", ["q35", "pc"])
@pytest.mark.parametrize("vectors", [0, 1, 2, 3])
def test_devices_with_few_msix_entries_or_none(kind, vectors, tmp_path):
    console = run(tmp_path, drives(tmp_path, 4, f",vectors={vectors}") + nic(vectors), machine=kind)
    assert ("line 1" in console) == (vectors == 0)


@pytest.mark.parametrize("options", [
    "queue-size=4,num-queues=1", "queue-size=16,num-queues=4", "queue-size=4,indirect_desc=off",
    "seg-max-adjust=off,queue-size=64", "queue-size=1024", "event_idx=off", "indirect_desc=off,event_idx=off",
    "disable-legacy=on", "packed=on", "packed=on,queue-size=4,num-queues=1", "packed=on,indirect_desc=off,event_idx=off", "iommu_platform=on,disable-legacy=on", "num-queues=64",
    "logical_block_size=4096,physical_block_size=4096",
])
def test_rings_queues_and_features(options, tmp_path):
    console = run(tmp_path, drives(tmp_path, 2, "," + options), smp=48 if "queue-size=4,num" in options else 8)
    assert console.count(": packed rings") == (2 if "packed=on" in options else 0)
    if "queue-size=4" in options:
        assert re.search(r", [1-9]\d* waits for room", console)  # the ring really was too small


def bar_of(vm, device, number):
    """Guest-physical address of a BAR."""
    def functions(found):
        for d in found:
            yield d
            yield from functions(d.get("pci_bridge", {}).get("devices", []))
    for bus in vm.qmp.command("query-pci"):
        for d in functions(bus["devices"]):
            if d["qdev_id"] == device:
                return next(r["address"] for r in d["regions"] if r["bar"] == number)
    raise AssertionError(f"{device} is not on the bus")


@pytest.mark.parametrize("kind", ["q35", "pc"])
def test_bars_above_4_gib(kind, tmp_path):
    """A BAR of 8 GiB pushes all that can go there above 4 GiB: the registers of the disks too, behind a bridge as well."""
    extra = ["-device", "pci-testdev,membar=8G", "-device", "pci-bridge,id=b1,chassis_nr=1", *drives(tmp_path, 2),
             "-drive", f"if=none,id=x,format=raw,file={make_disk(tmp_path, 'x.img')}",
             "-device", "virtio-blk-pci,drive=x,id=behind,serial=scratch9,bus=b1,addr=7"]
    config = machine(smp=4, mem="1G", machine=kind, net_queues=0, net="none", qemu_extra=extra, append=LOAD + " ip=10.0.0.2/24")
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        vm.wait_line("vdc: virtio-blk", 60)
        at = [bar_of(vm, device, 4) for device in ("sd0", "sd1", "behind")]
        assert vm.wait_exit(120) == 0, "\n".join(vm.lines)
    assert all(address >= 1 << 32 for address in at), [hex(a) for a in at]


def test_memory_above_the_pci_hole_and_disks_behind_bridges(tmp_path):
    bridges = ["-device", "pci-bridge,id=b1,chassis_nr=1", "-device", "pci-bridge,id=b2,chassis_nr=2,bus=b1"]
    console = run(tmp_path, bridges + drives(tmp_path, 1, ",bus=b1,addr=3") + [
        "-drive", f"if=none,id=x,format=raw,file={make_disk(tmp_path, 'x.img')}",
        "-device", "virtio-blk-pci,drive=x,serial=scratch9,bus=b2,addr=7"], mem="5G")
    assert "vdb: virtio-blk" in console


@pytest.mark.parametrize("kind, options", [
    ("pc", ""), ("pc", ",vectors=0"), ("q35", ",vectors=2"), ("q35", ",queue-size=4,num-queues=1"), ("pc", ",indirect_desc=off,event_idx=off"),
])
def test_devices_with_only_the_legacy_interface(kind, options, tmp_path):
    """Ports, no FEATURES_OK, rings of the offered size; with vectors=0 they share lines with each other and a NIC."""
    nic_options = ",disable-modern=on" + (options if "vectors" in options else "")
    legacy_nic = ["-netdev", "hubport,id=h0,hubid=0", "-device", f"virtio-net-pci,netdev=h0{nic_options}"]
    console = run(tmp_path, drives(tmp_path, 4, ",disable-modern=on" + options) + legacy_nic, machine=kind)
    assert console.count("by the legacy interface") == 5
    assert ("line 1" in console) == (",vectors=0" in options)


def test_a_legacy_device_that_wants_headers_apart_is_refused_and_the_others_work(tmp_path):
    odd = ["-netdev", "hubport,id=h0,hubid=0", "-device", "virtio-net-pci,netdev=h0,disable-modern=on,any_layout=off"]
    assert "does not offer the features 0x8000000" in run(tmp_path, odd + drives(tmp_path, 2))


@pytest.mark.parametrize("block", [512, 4096])
def test_zeroes_and_discards_stay_in_their_range(block, tmp_path):
    run(tmp_path, drives(tmp_path, 1, f",logical_block_size={block},physical_block_size=4096,discard=on"),
        "test=block_zeroes")


def test_data_is_there_after_a_restart_and_a_changed_byte_is_seen(tmp_path):
    run(tmp_path, drives(tmp_path, 2, cache="writeback"), "test=block_persist test.persist=fill")
    kept = [(tmp_path / f"s{i}.img").read_bytes() for i in range(2)]
    for i in range(2):  # drives() makes the files anew
        (tmp_path / f"kept{i}").write_bytes(kept[i])

    def compare():
        extra = []
        for i in range(2):
            extra += ["-drive", f"if=none,id=k{i},format=raw,file={tmp_path}/kept{i}",
                      "-device", f"virtio-blk-pci,drive=k{i},serial=scratch{i}"]
        return run(tmp_path, extra, "test=block_persist test.persist=compare")

    compare()
    with open(tmp_path / "kept1", "r+b") as f:
        f.seek(5_000_000)
        byte = f.read(1)
        f.seek(5_000_000)
        f.write(bytes([byte[0] ^ 1]))
    with pytest.raises(AssertionError, match="1 failed"):
        compare()


def test_a_read_only_disk(tmp_path):
    extra = ["-drive", f"if=none,id=r,format=raw,readonly=on,file={make_disk(tmp_path, 'r.img')}",
             "-device", "virtio-blk-pci,drive=r,serial=readonly"]
    run(tmp_path, extra, "test=block_read_only")


def test_errors_reach_the_request_they_belong_to(tmp_path):
    rules = tmp_path / "rules"  # reads by sector: QEMU and the search for a root file system read the first
    rules.write_text("".join(f'[inject-error]\nevent = "none"\niotype = "{kind}"\nerrno = "5"\nonce = "on"\n{where}'
                             for kind, where in (("write", ""), ("read", 'sector = "2048"\n'), ("flush", ""))))
    extra = drives(tmp_path, 1) + [
             "-drive", f"if=none,id=f,format=raw,file=blkdebug:{rules}:{make_disk(tmp_path, 'f.img')},"
                       "werror=report,rerror=report",
             "-device", "virtio-blk-pci,drive=f,serial=faulty"]
    run(tmp_path, extra, "test=block_errors")


@pytest.mark.parametrize("vectors", [64, 0])
def test_a_disk_grows_while_it_is_used(vectors, tmp_path):
    extra = ["-drive", f"if=none,id=g,format=raw,file={make_disk(tmp_path, 'g.img')}",
             "-device", "virtio-blk-pci,drive=g,serial=grows"]
    config = machine(smp=4, mem="512M", net_queues=0, net="none", qemu_extra=extra,
                     append=f"test=block_resize irq.vectors={vectors}")
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        vm.wait_line("block_resize: waiting", 60)
        vm.qmp.command("block_resize", device="g", size=96 << 20)
        assert vm.wait_exit(90) == 0, "\n".join(vm.lines)
