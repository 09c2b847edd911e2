"""bench=blk: load inside the image. What it says, what it refuses, and that it notices what is not as it was written."""
import re

import pytest

import weirvm
from conftest import machine
from test_devices import make_disk

WRITE = "bench=blk:rw=randwrite,jobs=4,depth=16,secs=2,size=4M,verify=1"
CHECK = "bench=blk:jobs=4,depth=16,size=4M,verify=check"


def disks(tmp_path, count, options=""):
    found = []
    for i in range(count):
        path = tmp_path / f"b{i}.img"
        if not path.exists():
            make_disk(tmp_path, f"b{i}.img")
        found += ["-drive", f"if=none,id=b{i},format=raw,file={path},cache=writeback",
                  "-device", f"virtio-blk-pci,drive=b{i},serial=bench{i}{options}"]
    return found


def boot(tmp_path, append, extra, smp=4, timeout=120):
    """(guest status, console)"""
    config = machine(smp=smp, mem="1G", net_queues=0, net="none", qemu_extra=extra, append=append)
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        status = vm.wait_exit(timeout)
        return status, "\n".join(vm.lines)


def results(console):
    """{device: {key: value}}"""
    found = {}
    for line in re.findall(r"bench: (dev=.*)", console):
        words = dict(word.split("=", 1) for word in line.split())
        found[words.pop("dev")] = words
    return found


def passes(tmp_path, append, extra, **options):
    status, console = boot(tmp_path, append, extra, **options)
    assert status == 0 and "bench: blk ok" in console, console
    assert "watchdog rescue" not in console and "fenced" not in console
    return results(console)


@pytest.mark.parametrize("options,poll", [("", 0), (",num-queues=6,logical_block_size=4096,physical_block_size=4096", 1)])
def test_what_was_written_is_there_after_a_restart_and_damage_is_seen(options, poll, tmp_path):
    polled = f"blk.poll_queues={2 * poll} "
    words = passes(tmp_path, f"{polled}{WRITE},poll={poll}", disks(tmp_path, 2, options))
    assert set(words) == {"vda", "vdb"}
    for w in words.values():
        assert int(w["ios"]) > 200 and int(w["errors"]) == int(w["mismatches"]) == 0
        assert int(w["verified_sectors"]) > 1000
        assert 0 < float(w["p50_us"]) <= float(w["p99_us"]) <= float(w["p999_us"]) <= float(w["max_us"])
        assert (float(w["interrupts_per_io"]) == 0) == bool(poll)
    again = passes(tmp_path, CHECK, disks(tmp_path, 2, options))
    assert {d: w["verified_sectors"] for d, w in again.items()} == {d: w["verified_sectors"] for d, w in words.items()}

    image = tmp_path / "b1.img"
    good = image.read_bytes()
    at = next(s for s in range(4096, len(good), 512) if good[s:s + 8] == (0x526f746365537772).to_bytes(8, "little"))
    for where in (at + 3, at + 40, at + 511):  # the magic, the first and the last byte of what follows
        image.write_bytes(good[:where] + bytes([good[where] ^ 1]) + good[where + 1:])
        status, console = boot(tmp_path, CHECK, disks(tmp_path, 2, options))
        assert status == 1 and "bench: blk FAILED" in console, console
        assert results(console)["vda"]["mismatches"] == "0" and results(console)["vdb"]["mismatches"] == "1"
    image.write_bytes(good[:8] + bytes([good[8] ^ 1]) + good[9:])
    status, console = boot(tmp_path, CHECK, disks(tmp_path, 2, options))
    assert status == 1 and "vdb: no seal" in console


def test_a_write_that_the_disk_lost_is_seen_after_a_restart(tmp_path):
    """The old content is whole, and of the same run: only the seal knows better."""
    extra = disks(tmp_path, 1)
    passes(tmp_path, WRITE.replace("jobs=4,depth=16", "jobs=1,depth=4").replace("size=4M", "size=1M"), extra)
    check = CHECK.replace("jobs=4,depth=16", "jobs=1,depth=4").replace("size=4M", "size=1M")
    passes(tmp_path, check, extra)
    image = tmp_path / "b0.img"
    data = bytearray(image.read_bytes())
    golden, word = 0x9e3779b97f4a7c15, lambda at: int.from_bytes(data[at:at + 8], "little")

    def mix(x):
        x ^= x >> 31
        x = x * golden % 2**64
        return x ^ x >> 29

    run, device, sector = word(8192 + 8), word(8192 + 16) - 1, word(8192 + 24)
    total = mix((mix((mix(run) + device) % 2**64) + sector) % 2**64)
    words = [word(8192), run, device, sector, total] + [(total + golden * i) % 2**64 for i in range(1, 60)]
    data[8192:8704] = b"".join(w.to_bytes(8, "little") for w in words)
    image.write_bytes(data)
    status, console = boot(tmp_path, check, extra)
    assert status == 1 and "some are older than that" in console, console


def test_reads_of_a_mixed_load_are_checked_and_polled_queues_have_no_interrupts(tmp_path):
    words = passes(tmp_path, "blk.poll_queues=2 bench=blk:rw=randrw,bs=8k,jobs=4,depth=8,secs=2,size=4M,poll=1,verify=1",
                   disks(tmp_path, 1, ",num-queues=6"))["vda"]
    assert words["queues"] == "6" and words["poll_queues"] == "2"
    assert float(words["interrupts_per_io"]) == 0 and int(words["ios"]) > 200


def test_errors_of_the_disk_are_counted(tmp_path):
    rules = tmp_path / "rules"
    rules.write_text('[inject-error]\nevent = "none"\niotype = "read"\nerrno = "5"\nonce = "off"\nsector = "4096"\n')
    extra = ["-drive", f"if=none,id=f,format=raw,file=blkdebug:{rules}:{make_disk(tmp_path, 'f.img')},rerror=report",
             "-device", "virtio-blk-pci,drive=f"]
    status, console = boot(tmp_path, "bench=blk:rw=read,bs=64k,jobs=1,depth=1,ios=40,secs=60", extra)
    assert status == 1 and results(console)["vda"]["errors"] == "1", console
    assert "sector 4096: error 5" in console


def test_a_poller_adds_its_sleep_to_a_lone_request_and_no_more(tmp_path):
    """Half of the requests, by the guest's clock: 500 us of sleep, and time to get a CPU."""
    config = machine(smp=1, mem="512M", net_queues=0, net="none", icount=True, qemu_extra=disks(tmp_path, 1),
                     append="bench=blk:bs=512,depth=1,ios=1000,secs=600,size=4M irq.vectors=0")
    with weirvm.Vm(config, console_path=str(tmp_path / "console")) as vm:
        assert vm.wait_exit(120) == 0, "\n".join(vm.lines)
        words = results("\n".join(vm.lines))["vda"]
    assert words["interrupts_per_io"] == "0.000" and float(words["p50_us"]) < 2000, words


@pytest.mark.parametrize("append,message", [
    ("bench=blk:deep=4", "no key `deep`"), ("bench=blk:bs=100", "bs=100 is not possible"),
    ("bench=blk:dev=vdz", "dev=vdz: no such disk"), ("bench=blk:poll=1", "vda cannot be used: it has no polled queues"),
    ("bench=blk:rw=read,verify=1", "verify=1 wants"), ("bench=blk:verify=check", "vda: no seal"),
    ("bench=blk:depth=1024,size=1M", "a depth of 1024 wants more"), ("bench=tape", "no such benchmark"),
])
def test_nonsense_ends_with_a_message_and_a_status(append, message, tmp_path):
    status, console = boot(tmp_path, append, disks(tmp_path, 1))
    assert status in (1, 127) and message in console, console
