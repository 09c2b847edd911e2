"""A disk that remembers every write, so that a power cut at any moment can be played through afterwards.

QEMU's blklogwrites filter notes each write and flush in the format of Linux's dm-log-writes. A device may lose what it
was given after the last completed flush, in any combination; crash_image() makes an image that lost some of it.
"""
import json
import os
import struct
import subprocess

SECTOR = 512
MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD = 1, 2, 4


def logged_disk(image, log):
    """The file name to give to QEMU for this image."""
    with open(log, "wb"):
        pass
    return "json:" + json.dumps({"driver": "raw", "file": {
        "driver": "blklogwrites", "log-sector-size": SECTOR, "log-super-update-interval": 1,
        "file": {"driver": "file", "filename": image}, "log": {"driver": "file", "filename": log}}})


def read_log(log):
    """[(offset of the entry in the log, first sector, sectors, flags, offset of the data)] of a log that is complete."""
    entries = []
    with open(log, "rb") as f:
        magic, version, count, sector_size = struct.unpack("<QQQI", f.read(28))
        assert (magic, version, sector_size) == (MAGIC, 1, SECTOR), "not a write log"
        at = SECTOR
        for _ in range(count):
            f.seek(at)
            sector, sectors, flags, _ = struct.unpack("<QQQQ", f.read(32))
            entries.append((at, sector, sectors, flags, at + SECTOR))
            at += SECTOR + (0 if flags & DISCARD else sectors * SECTOR)
    return entries


def crash_image(base, log, end, output, rng):
    """A copy of base with what the log says up to its offset end, and from there to just before a flush that covers
    something; without some of what that flush would have covered."""
    subprocess.run(["cp", "--sparse=always", "--reflink=auto", base, output], check=True)
    written, uncovered, flushed = [], [], False
    for at, sector, sectors, flags, data in read_log(log):
        if flags & FLUSH:
            if at >= end and uncovered:
                break
            uncovered, flushed = [], True
        if sectors and not flags & DISCARD:
            written.append((sector, sectors, data))
            if not flags & FUA:
                uncovered.append(data)
    assert flushed, "nothing was ever flushed"
    assert uncovered, "every write was covered by a flush: this cut would prove nothing"
    lost = set(rng.sample(uncovered, rng.randint(1, len(uncovered))))
    with open(log, "rb") as source, open(output, "r+b") as image:
        for sector, sectors, data in written:
            if data not in lost:
                image.seek(sector * SECTOR)
                image.write(os.pread(source.fileno(), sectors * SECTOR, data))
