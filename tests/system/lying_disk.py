"""A virtio-blk device of our own behind QEMU's vhost-user-blk-pci, in a thread: it serves from a file, and lies on request.

    disk = LyingDisk(socket_path, image_path, queues=2)      # before the machine starts
    qemu: *disk.qemu_args("id=hot0,bus=slot0")
    disk.lie("id")          # the next completion is this lie; returns when it has been told
    disk.hold(); disk.release()                              # keeps requests for itself meanwhile

Split rings only. Requests of one queue are executed in order; the guest's memory is written when they complete.
"""
import array
import mmap
import os
import selectors
import socket
import struct
import threading

SECTOR = 512
# vhost-user messages
(GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE, SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE,
 SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM,
 SET_VRING_ENABLE, SET_BACKEND_FD, GET_CONFIG, SET_CONFIG) = (1, 2, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 21, 24, 25)
BACKEND_CONFIG_CHANGED = 2
VERSION, REPLY, NEED_REPLY = 1, 4, 8
PROTOCOL = 1 << 0 | 1 << 3 | 1 << 5 | 1 << 9  # queues, acknowledgements, messages to QEMU, configuration
VIRTIO = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 9 | 1 << 12 | 1 << 28 | 1 << 30 | 1 << 32  # size_max seg_max blk_size flush mq
# indirect, (vhost's) protocol features, version 1. No event index: what the guest wants stands in its flags.
READ, WRITE, FLUSH, GET_ID = 0, 1, 4, 8
DESC_NEXT, DESC_WRITE, DESC_INDIRECT = 1, 2, 4
CONFIG_BYTES = 60
LIES = ("id", "twice", "length", "jump", "status")


class Queue:
    def __init__(self):
        self.size = self.last_avail = self.used_index = 0
        self.desc = self.used = self.avail = None
        self.kick = self.call = None
        self.enabled = False
        self.waiting = []  # heads that are held back


class LyingDisk:
    def __init__(self, path, image, queues=2, serial="scratch-liar"):
        self.path, self.queue_count, self.serial = path, queues, serial
        self.file = open(image, "r+b", buffering=0)
        self.sectors = os.path.getsize(image) // SECTOR
        self.lock = threading.RLock()  # everything below
        self.told = threading.Condition(self.lock)
        self.queues = [Queue() for _ in range(queues)]
        self.regions = []
        self.wanted_lie = None
        self.holding = False
        self.connection = self.to_qemu = None
        self.served = 0
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(1)
        self.wake_read, self.wake_write = os.pipe()
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.wake_read, selectors.EVENT_READ, None)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def qemu_args(self, options=""):
        """For a machine whose memory is shared."""
        return ["-chardev", f"socket,id=liar,path={self.path},reconnect=1",
                "-device", f"vhost-user-blk-pci,chardev=liar,num-queues={self.queue_count},{options}"]

    # ---- what tests ask for ----

    def lie(self, what, timeout=30):
        assert what in LIES
        with self.told:
            self.wanted_lie = what
            assert self.told.wait_for(lambda: self.wanted_lie is None, timeout), f"no request came to lie about: {what}"

    def hold(self):
        with self.lock:
            self.holding = True

    def release(self):
        with self.lock:
            self.holding = False
            for queue in self.queues:
                heads, queue.waiting = queue.waiting, []
                for head in heads:
                    self._complete(queue, head)

    def held(self):
        with self.lock:
            return sum(len(q.waiting) for q in self.queues)

    def resize(self, sectors):
        """QEMU is told, and asks for the new configuration."""
        with self.lock:
            self.sectors = sectors
            self.to_qemu.sendall(struct.pack("<III", BACKEND_CONFIG_CHANGED, VERSION, 0))

    def disconnect(self):
        """What a back-end that dies looks like; QEMU connects again a second later."""
        with self.lock:
            self._disconnected()

    def close(self):
        os.write(self.wake_write, b"x")
        self.thread.join()
        self.listener.close()
        self.file.close()

    # ---- vhost-user ----

    def _run(self):
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == self.wake_read:
                    return
                with self.lock:
                    now = self.selector.get_map().get(key.fd)
                    if now and now.data is key.data:  # an earlier one may have ended it
                        key.data()

    def _accept(self):
        self.connection = self.listener.accept()[0]
        self.selector.register(self.connection, selectors.EVENT_READ, self._message)

    def _disconnected(self):
        for queue in self.queues:
            self._stop(queue)
        self.selector.unregister(self.connection)
        self.connection.close()
        self.connection = None

    def _receive(self, size):
        data, fds = b"", array.array("i")
        while len(data) < size:
            part, control, _, _ = self.connection.recvmsg(size - len(data), socket.CMSG_SPACE(8 * 4))
            if not part:
                return None, fds
            for level, kind, payload in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(payload[:len(payload) - len(payload) % 4])
            data += part
        return data, fds

    def _message(self):
        header, fds = self._receive(12)
        if header is None:
            self._disconnected()
            return
        request, flags, size = struct.unpack("<III", header)
        payload, more = self._receive(size) if size else (b"", array.array("i"))
        reply = self._handle(request, payload, list(fds) + list(more))
        if reply is None and flags & NEED_REPLY:
            reply = struct.pack("<Q", 0)
        if reply is not None:
            self.connection.sendall(struct.pack("<III", request, VERSION | REPLY, len(reply)) + reply)

    def _handle(self, request, payload, fds):
        number = struct.unpack_from("<Q", payload)[0] if len(payload) >= 8 else 0
        if request == GET_FEATURES:
            return struct.pack("<Q", VIRTIO)
        if request == GET_PROTOCOL_FEATURES:
            return struct.pack("<Q", PROTOCOL)
        if request == GET_QUEUE_NUM:
            return struct.pack("<Q", self.queue_count)
        if request == GET_CONFIG:
            offset, size, config_flags = struct.unpack_from("<III", payload)
            return struct.pack("<III", offset, size, config_flags) + self._config()[offset:offset + size]
        if request == SET_BACKEND_FD:
            self.to_qemu = socket.socket(fileno=fds[0])
        elif request == SET_MEM_TABLE:
            self._map(payload, fds)
        elif request in (SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR):
            self._vring_fd(request, self.queues[number & 0xff], fds)
        elif request in (SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ENABLE, SET_VRING_ADDR, GET_VRING_BASE):
            return self._vring(request, payload)
        return None

    def _config(self):
        config = bytearray(CONFIG_BYTES)
        struct.pack_into("<QII", config, 0, self.sectors, 1 << 20, 30)
        struct.pack_into("<I", config, 20, SECTOR)
        struct.pack_into("<H", config, 34, self.queue_count)
        return bytes(config)

    def _map(self, payload, fds):
        self.regions = []
        for i in range(struct.unpack_from("<I", payload)[0]):
            guest, size, user, offset = struct.unpack_from("<QQQQ", payload, 8 + 32 * i)
            self.regions.append((guest, size, user, memoryview(mmap.mmap(fds[i], size + offset))[offset:]))
            os.close(fds[i])

    def _at(self, address, size, which=0):
        """Guest memory at a guest-physical address (which=0) or at one of QEMU's (2)."""
        for region in self.regions:
            start = address - region[which]
            if 0 <= start <= region[1] - size:
                return region[3][start:start + size]
        raise AssertionError(f"address {address:#x} is no guest memory")

    def _vring(self, request, payload):
        index, number = struct.unpack_from("<II", payload)
        queue = self.queues[index]
        if request == SET_VRING_NUM:
            queue.size = number
        elif request == SET_VRING_BASE:
            queue.last_avail = number
        elif request == SET_VRING_ENABLE:
            queue.enabled = bool(number)
            self._serve(queue)
        elif request == GET_VRING_BASE:
            self._stop(queue)
            return struct.pack("<II", index, queue.last_avail)
        else:
            _, _, desc, used, avail, _ = struct.unpack_from("<IIQQQQ", payload)
            queue.desc = self._at(desc, 16 * queue.size, 2)
            queue.used = self._at(used, 4 + 8 * queue.size, 2)
            queue.avail = self._at(avail, 4 + 2 * queue.size, 2)
            queue.used_index = struct.unpack_from("<H", queue.used, 2)[0]
        return None

    def _vring_fd(self, request, queue, fds):
        fd = fds[0] if fds else None
        if request == SET_VRING_KICK:
            queue.kick = fd
            self.selector.register(fd, selectors.EVENT_READ, lambda: self._kicked(queue))
            self._serve(queue)
        elif request == SET_VRING_CALL:
            if queue.call is not None:
                os.close(queue.call)
            queue.call = fd
        elif fd is not None:
            os.close(fd)

    def _stop(self, queue):
        """The rings are no longer the device's."""
        if queue.kick is not None:
            self.selector.unregister(queue.kick)
            os.close(queue.kick)
        queue.kick = queue.desc = None
        queue.waiting = []

    # ---- virtio-blk ----

    def _kicked(self, queue):
        os.read(queue.kick, 8)
        self._serve(queue)

    def _serve(self, queue):
        if queue.desc is None or queue.kick is None or not queue.enabled:
            return
        while queue.desc is not None:
            index = struct.unpack_from("<H", queue.avail, 2)[0]
            if index == queue.last_avail:
                return
            head = struct.unpack_from("<H", queue.avail, 4 + 2 * (queue.last_avail % queue.size))[0]
            queue.last_avail = queue.last_avail + 1 & 0xffff
            if self.holding:
                queue.waiting.append(head)
            else:
                self._complete(queue, head)

    def _chain(self, queue, head):
        """[(memory, the device writes)]"""
        table, at, found = queue.desc, head, []
        while True:
            address, length, flags, following = struct.unpack_from("<QIHH", table, 16 * at)
            if flags & DESC_INDIRECT:
                table, at = self._at(address, length), 0
                continue
            found.append((self._at(address, length), bool(flags & DESC_WRITE)))
            if not flags & DESC_NEXT:
                return found
            at = following

    def _complete(self, queue, head):
        chain = self._chain(queue, head)
        kind, _, sector = struct.unpack("<IIQ", chain[0][0])
        written = 1
        for memory, device_writes in chain[1:-1]:
            if kind == READ:
                memory[:] = os.pread(self.file.fileno(), len(memory), sector * SECTOR).ljust(len(memory), b"\0")
            elif kind == WRITE:
                os.pwrite(self.file.fileno(), memory, sector * SECTOR)
            elif kind == GET_ID:
                memory[:] = self.serial.encode().ljust(20, b"\0")
            sector += len(memory) // SECTOR
            written += len(memory) if device_writes else 0
        self.served += 1
        # Lies are about requests that go on; the id is read once, at the start.
        lie = self.wanted_lie if kind in (READ, WRITE) else None
        chain[-1][0][0] = 0x55 if lie == "status" else 0
        self._use(queue, head if lie != "id" else queue.size + 5, written if lie != "length" else 1 << 30)
        if lie == "twice":
            self._use(queue, head, written)
        if lie == "jump":
            queue.used_index = queue.used_index + 1000 & 0xffff
            struct.pack_into("<H", queue.used, 2, queue.used_index)
        if queue.call is not None and (lie or not struct.unpack_from("<H", queue.avail)[0] & 1):
            os.write(queue.call, struct.pack("<Q", 1))
        if lie:
            self.wanted_lie = None
            self.told.notify_all()

    def _use(self, queue, head, written):
        struct.pack_into("<II", queue.used, 4 + 8 * (queue.used_index % queue.size), head, written)
        queue.used_index = queue.used_index + 1 & 0xffff
        struct.pack_into("<H", queue.used, 2, queue.used_index)  # after the element: x86 keeps the order of stores
