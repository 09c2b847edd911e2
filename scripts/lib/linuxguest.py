"""The Linux guest that Weir is measured against: Debian's cloud kernel on the same root images.

The kernel is unpacked from its package below build/cache; tests/bench/linux_init.c is its first process, so the guest
runs the same program, on the same image, with the same QEMU command line, and nothing else.
"""
import glob
import os
import re
import shutil
import subprocess

import weirvm

CACHE = os.environ.get("WEIR_CACHE") or os.path.join(weirvm.BUILD, "cache")
OUT = os.path.join(CACHE, "linux")
# evdev and button are for the power button.
MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "button", "evdev")


def _run(argv, **options):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def _fetch_kernel():
    """Directory of the unpacked kernel package."""
    text = _run(["apt-cache", "show", "--no-all-versions", "linux-image-cloud-amd64"])
    name = re.search(r"^Depends: (linux-image-\S+)", text, re.M)[1]
    tree = os.path.join(OUT, name)
    if not os.path.exists(tree):
        shutil.rmtree(OUT, ignore_errors=True)
        os.makedirs(OUT)
        _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name], cwd=OUT)
        (deb,) = glob.glob(os.path.join(OUT, "*.deb"))
        _run(["dpkg-deb", "-x", deb, tree + ".part"])
        os.unlink(deb)
        os.rename(tree + ".part", tree)
    return tree


def _unpack_vmlinux(tree, path):
    """QEMU starts an ELF with a PVH note directly; vmlinuz holds it compressed by lz4 (old format)."""
    (vmlinuz,) = glob.glob(os.path.join(tree, "boot", "vmlinuz-*"))
    with open(vmlinuz, "rb") as f:
        data = f.read()
    # lz4 complains about what follows the stream, but has written everything by then.
    done = subprocess.run(["lz4", "-dc"], input=data[data.index(b"\x02\x21\x4c\x18"):], capture_output=True)
    if not done.stdout.startswith(b"\x7fELF"):
        raise weirvm.VmError(f"no ELF in {vmlinuz}: {done.stderr.decode(errors='replace')}")
    with open(path, "wb") as f:
        f.write(done.stdout)


def _module_order(tree):
    """Paths of MODULES and what they depend on, dependencies first."""
    paths = {os.path.basename(p)[:-3].replace("-", "_"): p for p in
             glob.glob(os.path.join(tree, "lib", "modules", "*", "kernel", "**", "*.ko"), recursive=True)}
    order = []

    def add(name):
        path = paths.get(name)
        if not path or path in order:
            return
        with open(path, "rb") as f:
            depends = re.search(rb"\0depends=([^\0]*)\0", f.read())
        for other in depends[1].decode().split(",") if depends else []:
            add(other.replace("-", "_"))
        order.append(path)

    for name in MODULES:
        add(name)
    return order


def _cpio(entries):
    """newc archive of (name, mode, data)."""
    out = bytearray()
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
        out += b"\0" * (-len(out) % 4) + data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def prepare():
    """(vmlinux, initrd), made when they are not there yet."""
    tree = _fetch_kernel()
    vmlinux, initrd, init = (os.path.join(OUT, n) for n in ("vmlinux", "initrd", "init"))
    if not os.path.exists(vmlinux):
        _unpack_vmlinux(tree, vmlinux)
    source = os.path.join(weirvm.ROOT, "tests", "bench", "linux_init.c")
    if not os.path.exists(initrd) or os.stat(initrd).st_mtime < os.stat(source).st_mtime:
        _run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-static", "-o", init, source])
        entries = [(d, 0o40755, b"") for d in ("dev", "proc", "new", "modules")]
        entries.append(("init", 0o100755, open(init, "rb").read()))
        for i, path in enumerate(_module_order(tree)):
            entries.append((f"modules/{i:02}-{os.path.basename(path)}", 0o100644, open(path, "rb").read()))
        with open(initrd, "wb") as f:
            f.write(_cpio(entries))
    return vmlinux, initrd


class LinuxConfig(weirvm.VmConfig):
    """A VmConfig that boots Linux. append="linux.huge=160" reserves huge pages."""

    def __init__(self, **options):
        vmlinux, initrd = prepare()
        super().__init__(**{**options, "kernel": vmlinux})
        self.qemu_extra = [*self.qemu_extra, "-initrd", initrd]

    def kernel_command_line(self, network):
        words = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "tsc=reliable", "no_timer_check",
                 *self.append.split()]
        if network.mode != "none":
            words.append(f"ip={weirvm.GUEST_IP}/{weirvm.PREFIX}")
        return " ".join(words)
