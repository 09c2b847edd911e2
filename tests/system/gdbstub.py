"""Guest-physical memory, device registers included, written from outside while the machine stands still."""
import re
import socket


class Gdb:
    """`with Gdb(path) as g`: the machine stands from here to the end of the block. QEMU: Gdb.qemu_args(path)."""

    def __init__(self, path):
        self.path = path

    @staticmethod
    def qemu_args(path):
        return ["-gdb", f"unix:{path},server=on,wait=off"]

    def __enter__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(10)
        self.socket.connect(self.path)
        self.data = b""
        assert self._ask("?")[:1] in "ST"
        assert self._ask("Qqemu.PhyMemMode:1") == "OK"
        return self

    def __exit__(self, *_):
        assert self._ask("D") == "OK"
        self.socket.close()

    def _packet(self):
        while not re.search(rb"\$[^#]*#..", self.data):
            part = self.socket.recv(4096)
            assert part, "QEMU has closed its gdb socket"
            self.data += part
        found = re.search(rb"\$([^#]*)#..", self.data)
        self.data = self.data[found.end():]
        self.socket.sendall(b"+")
        return found[1].decode()

    def _ask(self, command):
        self.socket.sendall(f"${command}#{sum(command.encode()) & 0xff:02x}".encode())
        answer = self._packet()
        while command != "?" and re.match(r"T\w\w", answer):  # the machine has stopped: said whenever it gets that far
            answer = self._packet()
        return answer

    def read(self, address, size):
        return bytes.fromhex(self._ask(f"m{address:x},{size:x}"))

    def write(self, address, data):
        assert self._ask(f"M{address:x},{len(data):x}:{data.hex()}") == "OK"
