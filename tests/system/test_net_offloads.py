"""What a NIC may offer or not, in combination: bulk data both ways is compared byte by byte, and what was negotiated is what
the rules allow. CI takes a set that has each pair of choices at least once, soak one that has each triple."""
import itertools
import random
import re
import subprocess

import pytest

import bench_net
import weirvm
from conftest import SOAK
from test_net import NOTHING_LEFT, boot, counters, healthy

SWITCHES = ["mrg_rxbuf", "csum", "guest_csum", "host_tso4", "guest_tso4", "event_idx", "indirect_desc", "ctrl_vq", "mq", "packed"]
CHOICES = {**{name: ("on", "off") for name in SWITCHES},
           "host_mtu": ("0", "576", "9000"),  # 0: not offered, which means 1500
           "interface": ("both", "modern", "legacy")}
NAMES = list(CHOICES)


def covering(strength):
    """Combinations of one choice each, such that any `strength` of the choices occur together. Always the same ones."""
    dice = random.Random(1)
    left = {picks for names in itertools.combinations(NAMES, strength)
            for picks in itertools.product(*[[(name, choice) for choice in CHOICES[name]] for name in names])}
    rows = []
    while left:
        def gain(row):
            return sum(all(row[name] == choice for name, choice in picks) for picks in left)
        seed = dice.choice(sorted(left))
        tries = [{**{name: dice.choice(CHOICES[name]) for name in NAMES}, **dict(seed)} for _ in range(30)]
        row = max(tries, key=gain)
        rows.append(row)
        left = {picks for picks in left if not all(row[name] == choice for name, choice in picks)}
    return rows


def expected(row):
    """Words of the features that must be in use."""
    on = {name for name in SWITCHES if row[name] == "on"}
    words = {"status"}
    words |= {word for name, word in (("csum", "csum"), ("guest_csum", "guest_csum"), ("mrg_rxbuf", "mergeable"),
                                      ("event_idx", "event_idx"), ("indirect_desc", "indirect"), ("ctrl_vq", "control")) if name in on}
    if {"host_tso4", "csum"} <= on:
        words.add("tso4")
    if {"guest_tso4", "guest_csum", "mrg_rxbuf"} <= on:
        words.add("guest_tso4")
    if "ctrl_vq" in on:
        words |= {"announce"} | ({"mq"} & on)
    if row["host_mtu"] != "0":
        words.add("mtu")
    if "packed" in on and row["interface"] != "legacy":
        words.add("packed")
    return words


# The source counts in 32-bit words from 0 on; and the sink takes what comes.
STREAMS = """
import array, socket, sys
address, size = sys.argv[1], int(sys.argv[2])
s = socket.create_connection((address, 19), 20)
s.settimeout(20)
got = bytearray()
while len(got) < size:
    piece = s.recv(1 << 20)
    assert piece, "the source ended"
    got += piece
del got[size:]
assert got == array.array("I", range(size // 4)).tobytes(), "the source's bytes are wrong"
s.close()
s = socket.create_connection((address, 9), 20)
s.settimeout(20)
s.sendall(bytes(size))
s.shutdown(socket.SHUT_WR)
assert s.recv(1) == b"", "the sink answered"
"""


def numbers(line):
    return {name: int(value) for name, value in re.findall(r"(\w+) (\d+)(?:;|$)", line)}


ROWS = covering(3 if SOAK else 2)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(
    [name for name in SWITCHES if row[name] == "on"] + ["mtu" + row["host_mtu"], row["interface"]]))
def test_bulk_data_arrives_whole_whatever_the_device_offers(row, tmp_path):
    nic = [f"{name}={row[name]}" for name in SWITCHES]
    nic += [f"host_mtu={row['host_mtu']}"] if row["host_mtu"] != "0" else []
    nic += {"both": [], "modern": ["disable-legacy=on"], "legacy": ["disable-modern=on"]}[row["interface"]]
    mtu = int(row["host_mtu"]) or 1500
    size = (64 if SOAK else 4) << 20
    with boot(tmp_path, smp=2, mem="512M", net_queues=2, nic=nic) as vm:
        bench_net.wait_ready(vm)
        assert vm.client(["ip", "link", "set", "tap0", "mtu", str(mtu)]).returncode == 0
        bench_net.echo(vm, "-c", 4, "-s", 65536, "-n", size >> 16, "-w", 20)
        before = numbers(counters(vm, "connections 0;"))
        done = vm.client(["/usr/bin/python3", "-c", STREAMS, weirvm.GUEST_IP, str(size)], 120, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        line = counters(vm, NOTHING_LEFT)
        found = re.search(r"eth0 mtu (\d+) .* pairs (\d+) .* features ([\w ]+);", line)
        words = expected(row)
        assert set(found[3].split()) == words
        assert int(found[1]) == mtu and int(found[2]) == (2 if "mq" in words else 1)
        after = numbers(line)
        sent = (after["rx_bytes"] - before["rx_bytes"]) / size
        assert 1 < sent < 1.5
        # Half the frames of a stream are short ones of the other direction, so a mean above the MTU means large frames.
        mean = (after["rx_bytes"] - before["rx_bytes"]) / (after["rx_frames"] - before["rx_frames"])
        assert ("guest_tso4" in words) or mean < mtu + 14, mean
        assert ("guest_tso4" not in words) or mean > min(mtu, 2000), mean
        assert (after["tx_tso"] > before["tx_tso"]) == ("tso4" in words)
        assert "rx_dropped 0;" in line and "tcp_checksum 0;" in line, line
        healthy(vm)
