"""Frames that no honest peer sends, by a raw socket on the tap. Run on the host's side of a guest's network:

  frame_sender.py MODE RATE SECONDS      MODE: syn (spoofed SYNs to port 7), rst (resets of what ss lists, at random sequence
                                         numbers), fuzz (broken frames of all kinds)
Prints how many were sent.
"""
import random
import re
import socket
import struct
import subprocess
import sys
import time

GUEST_MAC, HOST_MAC = bytes.fromhex("525400770002"), bytes.fromhex("525400770001")
GUEST, HOST = "10.77.0.2", "10.77.0.1"


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def ipv4(source, protocol, payload, **lies):
    fields = {"version": 0x45, "length": 20 + len(payload), "fragment": 0, "ttl": 64, **lies}
    head = struct.pack("!BBHHHBBH4s4s", fields["version"], 0, fields["length"], random.getrandbits(16), fields["fragment"],
                       fields["ttl"], protocol, 0, socket.inet_aton(source), socket.inet_aton(GUEST))
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return GUEST_MAC + HOST_MAC + b"\x08\x00" + head + payload


def tcp(source, port, to, flags, sequence=None, options=b"", data=b"", offset=None, bad_sum=False):
    offset = (20 + len(options)) // 4 if offset is None else offset
    segment = struct.pack("!HHIIBBHHH", port, to, random.getrandbits(32) if sequence is None else sequence, random.getrandbits(32),
                          offset << 4, flags, 64240, 0, 0) + options + data
    pseudo = socket.inet_aton(source) + socket.inet_aton(GUEST) + struct.pack("!BBH", 0, 6, len(segment))
    return segment[:16] + struct.pack("!H", checksum(pseudo + segment) ^ bad_sum) + segment[18:]


def stranger():
    return f"198.18.{random.getrandbits(8)}.{random.getrandbits(8)}"  # no answer comes back from there


def syn():
    source = stranger()
    return ipv4(source, 6, tcp(source, random.randrange(1024, 65536), 7, 2, options=b"\x02\x04\x05\xb4"))


def connections():
    text = subprocess.run(["ss", "-tnH", "dst", GUEST], stdout=subprocess.PIPE, text=True).stdout
    return [(int(a), int(b)) for a, b in re.findall(rf"{HOST}:(\d+)\s+{GUEST}:(\d+)", text)]


def rst(known=[]):  # the list lives as long as the program
    if not known or random.random() < 0.001:
        known[:] = connections() or [(1, 7)]
    port, to = random.choice(known)
    return ipv4(HOST, 6, tcp(HOST, port, to, random.choice((4, 0x14))))


def fuzz():
    source, noise = HOST, random.randbytes(random.randrange(0, 200))
    kind = random.randrange(10)
    if kind == 0:
        return GUEST_MAC + HOST_MAC + random.randbytes(2) + noise
    if kind == 1:
        return GUEST_MAC + HOST_MAC + b"\x08\x06" + noise[:42]
    if kind == 2:
        return ipv4(source, random.choice((1, 6, 17, random.getrandbits(8))), noise, version=random.getrandbits(8))
    if kind == 3:
        return ipv4(source, random.choice((1, 6, 17)), noise, length=random.getrandbits(16))
    if kind == 4:
        return ipv4(source, random.choice((1, 6, 17)), noise, fragment=random.getrandbits(16))
    if kind == 5:  # options without an end, lengths of 0 and beyond
        options = random.choice((b"\x02\x00\x05\xb4", b"\x03\xff\x07\x00", b"\x05\x02\x00\x00", random.randbytes(40)))
        return ipv4(stranger(), 6, tcp(source, random.getrandbits(16) | 1, 7, random.getrandbits(8), options=options))
    if kind == 6:
        return ipv4(source, 6, tcp(source, random.getrandbits(16) | 1, 7, random.getrandbits(8), data=noise, offset=random.randrange(16)))
    if kind == 7:
        return ipv4(source, 6, tcp(source, random.getrandbits(16) | 1, random.choice((7, 9, 13, 19)), 2, bad_sum=True))
    if kind == 8:  # UDP and ICMP whose lengths lie
        return ipv4(source, random.choice((1, 17)), struct.pack("!HHHH", 68, 68, random.getrandbits(16), 0) + noise)
    frame = bytearray(syn())
    frame[random.randrange(14, len(frame))] ^= 1 << random.randrange(8)
    return bytes(frame[:random.randrange(14, len(frame) + 1)])


def main():
    mode, rate, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    random.seed(1)
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind(("tap0", 0))
    make = {"syn": syn, "rst": rst, "fuzz": fuzz}[mode]
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * rate)
        for _ in range(min(due - sent, 50)):  # late on a loaded host: no bursts
            frame = make()
            try:
                raw.send(frame.ljust(14, b"\0"))
            except OSError:  # the tap's queue is full
                pass
            sent += 1
        time.sleep(0.002)
    print(sent)


if __name__ == "__main__":
    main()
