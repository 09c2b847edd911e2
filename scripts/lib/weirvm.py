"""Virtual machines for run, sweep, bootstorm, demo and the system tests.

A Vm is one QEMU in a network of its own. Every Network is a fresh network namespace (as root), the same
inside a user namespace (unprivileged, where that and /dev/net/tun are allowed), or QEMU's user-mode network
(no multiqueue). A namespace lives as long as its holder process, which ends with the program that made it,
so nothing is left behind whatever kills us.

The guest is 10.77.0.2, the host 10.77.0.1, on a multiqueue tap called tap0. Guest status: isa-debug-exit
makes QEMU leave with 2 * status + 1; an ACPI power-off makes it leave with 0, which is status 0.
All waiting is for an event (a console line, a QMP reply, a process that ends) with a deadline.
"""
import collections
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BUILD = os.path.join(ROOT, "build")
KERNEL = os.path.join(BUILD, "weir.elf")
LWIP = os.path.join(BUILD, "lwip", "lwip.so")
GUEST_IP, HOST_IP, PREFIX = "10.77.0.2", "10.77.0.1", 24
TIMED_OUT = 124     # as timeout(1)
RESET = 123         # the guest reset the machine: a triple fault
QEMU_FAILED = 125   # QEMU did not start, or left in a way that is no guest status

# What a healthy kernel never prints (a PANIC of PostgreSQL's own counts too).
TROUBLE = re.compile(r"panic|assertion failed|stalled|lost interrupt|broken device|PANIC:", re.I)

os.environ["PATH"] += os.pathsep + "/usr/sbin" + os.pathsep + "/sbin"
_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


class VmError(Exception):
    """The machine did not do what was waited for; the message says what and shows the console's end."""


def die_with_parent():
    """preexec_fn: the child is killed when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def parse_size(text):
    """'256M', '2G' or bytes -> bytes."""
    match = re.fullmatch(r"(\d+)([KMGT]?)i?B?", text, re.I)
    if not match:
        raise ValueError(f"not a size: {text}")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()]


class Network:
    """mode: 'root', 'userns', 'user' (QEMU's own, no multiqueue) or 'none'."""

    _SETUP = """
        ip link set lo up && ip tuntap add dev tap0 mode tap {mq} && ip addr add {host}/{prefix} dev tap0 &&
        ip link set tap0 up && echo ready && exec cat >/dev/null"""

    def __init__(self, queues, mode="auto"):
        self.queues = queues
        self.holder = None
        self.port = 5432
        self.why_user = ""
        if queues == 0 or mode == "none":
            self.mode = "none"
        elif mode == "user":
            self._use_user_mode("asked for")
        elif os.geteuid() == 0:
            self._hold("root", ["unshare", "-n"])
            if not self.holder:
                raise VmError(f"no network namespace: {self.why_user}")
        else:
            self._hold("userns", ["unshare", "-U", "-r", "-n"])
            if not self.holder:
                self._use_user_mode(self.why_user)

    def _hold(self, mode, unshare):
        script = self._SETUP.format(mq="multi_queue" if self.queues > 1 else "", host=HOST_IP, prefix=PREFIX)
        process = subprocess.Popen(unshare + ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        if process.stdout.readline() == "ready\n":
            self.mode, self.holder = mode, process
        else:
            self.why_user = process.communicate()[1].strip().replace("\n", "; ") or "unshare failed"

    def _use_user_mode(self, why):
        self.mode, self.why_user, self.queues = "user", why, 1
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    @property
    def guest(self):
        """Address at which programs started with wrap() reach the guest."""
        return "127.0.0.1" if self.mode == "user" else GUEST_IP

    def wrap(self, argv):
        """The command that runs argv on the host's side of this network."""
        if not self.holder:
            return list(argv)
        how = ["-n"] if self.mode == "root" else ["-U", "-n", "--preserve-credentials"]
        return ["nsenter", "-t", str(self.holder.pid), *how, "--", *argv]

    def qemu_args(self):
        if self.mode == "none":
            return []
        if self.mode == "user":
            net = GUEST_IP.rsplit(".", 1)[0] + ".0"
            return ["-netdev", f"user,id=n0,net={net}/{PREFIX},host={HOST_IP},"
                               f"hostfwd=tcp:127.0.0.1:{self.port}-{GUEST_IP}:5432",
                    "-device", "virtio-net-pci,netdev=n0,id=nic0"]
        mq = f",mq=on,vectors={2 * self.queues + 2}" if self.queues > 1 else ""
        return ["-netdev", f"tap,id=n0,ifname=tap0,script=no,downscript=no,vhost=off,queues={self.queues}",
                "-device", f"virtio-net-pci,netdev=n0,id=nic0,mac=52:54:00:77:00:02{mq}"]

    def close(self):
        if self.holder:
            self.holder.stdin.close()
            self.holder.wait()
            self.holder = None


@dataclass
class VmConfig:
    smp: int = 1
    mem: str = "1G"
    machine: str = "q35"
    image: str = None                          # root image: the first disk
    disks: list = field(default_factory=list)  # more disks: files, or None for a scratch disk
    blk_queues: int = None                     # default: as many as CPUs, at most 64
    net_queues: int = None                     # pairs; default: min(CPUs, 8); 0: no NIC
    append: str = ""
    app: list = field(default_factory=list)    # what follows "--" on the kernel's command line
    accel: str = "auto"
    kernel: str = KERNEL
    net: str = "auto"
    snapshot: bool = False                     # throw writes to all disks away at the end
    smp_options: str = ""                      # e.g. "sockets=16,cores=3"
    qemu_extra: list = field(default_factory=list)
    debug_exit: bool = True                    # the device that carries the guest's status; else ACPI's way out
    watch_resets: bool = False                 # for Vm.unexpected_resets()
    # False: one host thread runs all CPUs in turn. With more, QEMU 7.2 under TCG often dies, in
    # memory_region_dispatch_write, when a device leaves under load. Why is inferred: a stale translation meets the new map.
    mttcg: bool = True
    icount: bool = False                       # one instruction is one ns of guest time (one CPU)

    @property
    def use_kvm(self):
        if self.accel == "auto":
            return os.access("/dev/kvm", os.R_OK | os.W_OK)
        return self.accel == "kvm"

    def qemu_command(self, network, scratch_dir):
        queues = self.blk_queues or min(self.smp, 64)
        smp = str(self.smp) + ("," + self.smp_options if self.smp_options else "")
        accel = "kvm" if self.use_kvm else "tcg,thread=" + ("multi" if self.mttcg and not self.icount else "single")
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-accel", accel, "-machine", self.machine, "-smp", smp, "-m", self.mem,
                # TCG runs "rep stosb" one byte at a time, so ERMS is a trap there.
                "-cpu", "host" if self.use_kvm else "max,erms=off"]
        if self.debug_exit:
            argv += ["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]
        if self.icount:
            argv += ["-icount", "shift=0,sleep=on"]
        disks = ([self.image] if self.image else []) + list(self.disks)
        for i, path in enumerate(disks):
            serial = ""
            if path is None:
                serial = f",serial=scratch{i}"  # self-tests write to disks with such a serial, and to no other
                path = os.path.join(scratch_dir, f"scratch{i}.img")
                with open(path, "wb") as f:
                    f.truncate(1 << 30)
            snapshot = ",snapshot=on" if self.snapshot else ""
            argv += ["-drive", f"if=none,id=d{i},format=raw,file={path.replace(',', ',,')}{snapshot}",
                     "-device", f"virtio-blk-pci,id=disk{i},drive=d{i},num-queues={queues}{serial}"]
        if self.watch_resets:
            argv += ["-d", "cpu_reset", "-D", os.path.join(scratch_dir, "resets")]
        argv += network.qemu_args() + self.qemu_extra
        return argv + ["-kernel", self.kernel, "-append", self.kernel_command_line(network)]

    def kernel_command_line(self, network):
        words = self.append.split()
        if not self.use_kvm and not any(w.startswith("tsc=") for w in words):
            words.append("tsc=reliable")  # TCG's TSC is steady but not advertised as such
        if network.mode != "none" and not any(w.startswith("ip=") for w in words):
            words.append(f"ip={GUEST_IP}/{PREFIX},{HOST_IP}")
        if self.app:
            words += ["--", *self.app]
        return " ".join(words)


class Qmp:
    """QEMU's control socket. We listen, QEMU connects: its first answer means that all devices were made."""

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(1)
        self.stream = None
        self.events = []  # those that were read so far
        self.lock = threading.Lock()

    def accept(self, process, timeout):
        """True when QEMU answers; False when it ended before."""
        deadline = time.monotonic() + timeout
        self.listener.settimeout(0.1)
        while not self.stream:
            try:
                connection, _ = self.listener.accept()
                connection.settimeout(timeout)
                self.stream = connection.makefile("rw")
            except socket.timeout:
                if process.poll() is not None or time.monotonic() > deadline:
                    return False
        try:
            return bool(self.stream.readline()) and self.command("qmp_capabilities") is not None
        except OSError:
            return False

    def command(self, name, /, **arguments):
        """The answer, or None when QEMU has gone. Raises VmError when QEMU refuses."""
        with self.lock:
            try:
                self.stream.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
                self.stream.flush()
                while line := self.stream.readline():
                    answer = json.loads(line)
                    if "error" in answer:
                        raise VmError(f"QMP {name}: {answer['error']['desc']}")
                    if "return" in answer:
                        return answer["return"]
                    self.events.append(answer)
            except (BrokenPipeError, ConnectionResetError):
                pass
            return None

    def shutdown_reason(self):
        """What QEMU, which has ended, gave as the reason: guest-shutdown, guest-reset, host-qmp-quit, ... or None."""
        with self.lock:
            try:
                self.events += map(json.loads, self.stream)
            except (OSError, ValueError):
                pass
            reasons = [e["data"].get("reason") for e in self.events if e.get("event") == "SHUTDOWN"]
        return reasons[-1] if reasons else None

    def close(self):
        if self.stream:
            try:
                self.stream.close()
            except OSError:
                pass  # a command that QEMU did not live to read
        self.listener.close()


class Vm:
    """One run of a VmConfig. Use as a context manager: leaving it kills QEMU and removes the network.

    console_path: file that gets every console line with the seconds since start. passthrough: the console
    is this program's terminal (Ctrl-A X ends QEMU; Ctrl-C goes to the guest) and nothing is captured.
    """

    def __init__(self, config, console_path=None, passthrough=False, on_line=None):
        self.config, self.passthrough, self.on_line = config, passthrough, on_line
        self.console_path = console_path
        self.lines = []
        self.changed = threading.Condition()
        self.console_open = not passthrough
        self.dir = tempfile.mkdtemp(prefix="weir-vm-")
        self.network = self.process = self.qmp = None
        self.command_line = ""
        self.started_at = None
        self.answered = False

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def start(self):
        if not os.path.exists(self.config.kernel):
            raise VmError(f"no kernel image {self.config.kernel}: run make")
        queues = self.config.net_queues
        self.network = Network(min(self.config.smp, 8) if queues is None else queues, self.config.net)
        qmp_path = os.path.join(self.dir, "qmp")
        self.qmp = Qmp(qmp_path)
        argv = self.config.qemu_command(self.network, self.dir)
        self.command_line = shlex.join(argv)
        serial = ["-serial", "mon:stdio"] if self.passthrough else \
            ["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
        argv = self.network.wrap(argv + serial + ["-S", "-qmp", f"unix:{qmp_path}"])
        pipe = None if self.passthrough else subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=None if self.passthrough else
                                        subprocess.STDOUT, preexec_fn=die_with_parent)
        if not self.passthrough:
            self.reader = threading.Thread(target=self._read_console, daemon=True)
            self.reader.start()
        if not self.qmp.accept(self.process, 60):
            self.process.kill()
            self.process.wait()
            if not self.passthrough:
                self.reader.join()
            raise VmError("QEMU did not start:\n" + self.tail())
        self.answered = True
        self.started_at = time.monotonic()
        self.resets_before = self._resets()
        self.qmp.command("cont")

    def _read_console(self):
        out = open(self.console_path, "w", errors="replace") if self.console_path else None
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip("\r\n")
            now = time.monotonic() - (self.started_at or time.monotonic())
            if out:
                out.write(f"{now:9.3f} {line}\n")
                out.flush()
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
            if self.on_line:
                self.on_line(line)
        if out:
            out.close()
        with self.changed:
            self.console_open = False
            self.changed.notify_all()

    def tail(self, count=25):
        with self.changed:
            return "\n".join("  | " + line for line in self.lines[-count:]) or "  | (nothing on the console)"

    def mark(self):
        """Position in the console, to be given to wait_line as `since`."""
        with self.changed:
            return len(self.lines)

    def wait_line(self, pattern, timeout, since=0):
        """First console line from `since` on that matches; VmError at the deadline or when QEMU ends."""
        regex, deadline, seen = re.compile(pattern), time.monotonic() + timeout, since
        with self.changed:
            while True:
                for seen in range(seen, len(self.lines)):
                    if regex.search(self.lines[seen]):
                        return self.lines[seen]
                seen = len(self.lines)
                left = deadline - time.monotonic()
                why = "QEMU ended" if not self.console_open else f"{timeout} s passed" if left <= 0 else None
                if why:
                    break
                self.changed.wait(left)
        raise VmError(f"{why} before a console line matched /{pattern}/\n{self.tail()}")

    def wait_exit(self, timeout=None):
        """Guest status; TIMED_OUT when the deadline passes (QEMU still runs then); RESET after a triple fault."""
        if not self.passthrough:
            self.reader.join(timeout)  # the console ends with QEMU; Popen.wait would look every 50 ms
            if self.reader.is_alive():
                return TIMED_OUT
            timeout = None
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        if code == 0:  # power-off by ACPI; or a triple fault, which -no-reboot makes the end as well
            if self.qmp.shutdown_reason() == "guest-reset":
                return RESET
            said = [line for line in self.lines if re.search(r"exit status \d+$", line)]
            return int(said[-1].split()[-1]) if said and not self.config.debug_exit else 0
        return (code - 1) // 2 if code > 0 and code % 2 and self.answered else QEMU_FAILED

    def running(self):
        return self.process is not None and self.process.poll() is None

    def seconds(self):
        return time.monotonic() - self.started_at

    def trouble(self):
        """The first console line that no healthy run has, or None."""
        with self.changed:
            return next((line for line in self.lines if TROUBLE.search(line)), None)

    def _resets(self):
        """{CPU: how often QEMU logged its reset}"""
        path = os.path.join(self.dir, "resets")
        if not os.path.exists(path):
            return {}
        with open(path, errors="replace") as f:
            return collections.Counter(int(n) for n in re.findall(r"^CPU Reset \(CPU (\d+)\)", f.read(), re.M))

    def unexpected_resets(self):
        """CPUs that were reset since the start, other than by the INIT, sent twice at most, that starts a second CPU."""
        after, log_lines_of_init = self._resets() - self.resets_before, 2
        return sorted(cpu for cpu, times in after.items() if times > (2 * log_lines_of_init if cpu else 0))

    def write_console(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def power_button(self):
        self.qmp.command("system_powerdown")

    def kill(self):
        """As a power cut, except that what reached the host's page cache stays."""
        if self.running():
            self.process.kill()
        self.process.wait()

    # -- clients on the host's side --

    def client_environment(self):
        env = dict(os.environ, PGHOST=self.network.guest, PGPORT=str(self.network.port), PGUSER="postgres",
                   PGDATABASE="postgres", PGCONNECT_TIMEOUT="60", LC_ALL="C")
        env.pop("PGPASSWORD", None)
        return env

    def client(self, argv, timeout=None, **options):
        """subprocess.run on the host's side of the network, with PG* variables that name the guest."""
        return subprocess.run(self.network.wrap(argv), env=self.client_environment(), timeout=timeout,
                              stdin=subprocess.DEVNULL, text=True, preexec_fn=die_with_parent, **options)

    def start_client(self, argv, **options):
        return subprocess.Popen(self.network.wrap(argv), env=self.client_environment(),
                                text=True, preexec_fn=die_with_parent, **options)

    def sql(self, *statements, timeout=300):
        """Runs statements (one transaction each) and returns their rows as text, one row a line."""
        argv = [postgres_client("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        for statement in statements:
            argv += ["-c", statement]
        done = self.client(argv, timeout, capture_output=True)
        if done.returncode:
            raise VmError(f"psql left with {done.returncode}: {done.stderr.strip()}\n{self.tail()}")
        return done.stdout.strip()

    def pgbench(self, *options, timeout=600):
        """pgbench's output; VmError when it leaves with an error or reports one."""
        argv = [postgres_client("pgbench"), *map(str, options)]
        done = self.client(argv, timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode or re.search(r"^pgbench: (error|fatal)|aborted|number of failed transactions: [1-9]",
                                        done.stdout, re.M):
            raise VmError(f"{shlex.join(argv)} left with {done.returncode}:\n{done.stdout}\n{self.tail()}")
        return done.stdout

    def wait_postgres(self, timeout, since=0):
        """Seconds from start to the first answered query."""
        deadline = time.monotonic() + timeout
        self.wait_line(r"database system is ready to accept connections", timeout, since)
        self.sql("select 1", timeout=max(1, deadline - time.monotonic()))
        return self.seconds()

    def shut_down(self, timeout=120):
        """Power button, then the guest's status. VmError when it does not end."""
        self.power_button()
        status = self.wait_exit(timeout)
        if status == TIMED_OUT:
            raise VmError(f"no power-off {timeout} s after the power button\n{self.tail()}")
        return status

    def close(self):
        if self.process:
            self.kill()
            if not self.passthrough:
                self.reader.join()
                self.process.stdin.close()
        if self.qmp:
            self.qmp.close()
        if self.network:
            self.network.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def postgres_client(name):
    """pgbench and psql of PostgreSQL 15 if installed, else whatever PATH has."""
    path = f"/usr/lib/postgresql/15/bin/{name}"
    return path if os.path.exists(path) else name


def transactions_per_second(pgbench_output):
    match = re.search(r"^tps = ([\d.]+) \(", pgbench_output, re.M)
    return float(match[1]) if match else None


def latency_ms(pgbench_output):
    match = re.search(r"^latency average = ([\d.]+) ms", pgbench_output, re.M)
    return float(match[1]) if match else None
