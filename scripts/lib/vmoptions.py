"""The options that every script which starts a machine has in common."""
import os

import weirvm


def add_machine_options(parser, smp="1", snapshot=False):
    add = parser.add_argument
    add("--smp", default=smp, metavar="N", help=f"virtual CPUs, or N,sockets=S,cores=C ({smp})")
    add("--mem", default="1G", metavar="SIZE", help="memory (1G)")
    add("--machine", default="q35", metavar="M", help="QEMU machine: q35, pc, microvm,pcie=on (q35)")
    add("--image", metavar="FILE", help="root image, the first disk; made by scripts/image")
    add("--disks", default="0", metavar="N|FILE[,FILE...]", help="more disks: N scratch disks, or these files")
    add("--blk-queues", type=int, metavar="N", help="queues of each disk (as many as CPUs, at most 64)")
    add("--net-queues", type=int, metavar="N", help="queue pairs of the NIC; 0: no NIC (CPUs, at most 8)")
    add("--append", action="append", default=[], metavar="\"...\"", help="more words for the kernel's command line")
    add("--accel", choices=("auto", "kvm", "tcg"), default="auto", help="auto: KVM where it can be used")
    add("--kernel", default=weirvm.KERNEL, metavar="FILE", help="kernel image (build/weir.elf)")
    add("--net", choices=("auto", "user", "none"), default="auto", help="user: force QEMU's user-mode network")
    add("--qemu", action="append", default=[], metavar="ARG", help="one more argument for QEMU (repeat)")
    if snapshot:
        add("--keep-writes", action="store_true", help="let the guest's writes reach the image (no: thrown away)")
    else:
        add("--snapshot", action="store_true", help="throw writes to the disks away at the end")


def machine_config(options, parser, app=()):
    """VmConfig from parsed options; ends the program with a message when they make no sense."""
    smp, _, smp_options = options.smp.partition(",")
    if not smp.isdigit() or int(smp) < 1:
        parser.error("--smp wants a number of CPUs")
    disks = [None] * int(options.disks) if options.disks.isdigit() else options.disks.split(",")
    for path in filter(None, [options.image, *disks]):
        if not os.path.exists(path):
            parser.error(f"no such image: {path}")
    keep = getattr(options, "keep_writes", True) and not getattr(options, "snapshot", False)
    return weirvm.VmConfig(
        smp=int(smp), smp_options=smp_options, mem=options.mem, machine=options.machine, image=options.image,
        disks=disks, blk_queues=options.blk_queues, net_queues=options.net_queues, append=" ".join(options.append),
        app=list(app), accel=options.accel, kernel=options.kernel, net=options.net, snapshot=not keep,
        qemu_extra=options.qemu)
