#!/usr/bin/python3
"""Shows that the unit tests can fail: each mutant breaks one rule of the source, and its test must turn red.

A mutant that no longer applies, because the source changed, is a failure as well: write it anew.
"""
import concurrent.futures
import contextlib
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
JOBS = min(os.cpu_count() or 1, 4)
PLANNER = ("planner", "core/irq/planner.c")
VIRTIO = ("virtio", "drivers/virtio/virtio.c")
MUTANTS = [  # test, source, what stands there, what takes its place, the rule that this breaks
    (*PLANNER, "while (plan->used < pool && ", "while (plan->used <= pool && ", "the total stays within the pool"),
    (*PLANNER, "plan->config_shared = plan->used < pool", "plan->config_shared = plan->used <= pool",
     "the vector of configuration changes comes out of the pool"),
    (*PLANNER, "plan->system_shared = left.msix != 0", "plan->system_shared = false", "no device is without service"),
    (*PLANNER, "return plan->line_shared ? IRQ_GRANT_SYSTEM_SHARED", "return plan->line_shared ? IRQ_GRANT_POLLED",
     "a shared line has its vector"),
    (*PLANNER, "return a->class < b->class", "return a->class > b->class", "a disk has its floor before a NIC"),
    (*PLANNER, "return strcmp(a->name, b->name) < 0", "return false", "the same demands give the same plan"),
    (*PLANNER, "if (mine >= its)", "if (mine > its)", "the odd vector goes to the disk"),
    (*PLANNER, "[IRQ_CLASS_NET] = 2", "[IRQ_CLASS_NET] = 8", "a NIC does not push a disk below its share"),
    (*PLANNER, "unsigned shared = 0; shared < 4", "unsigned shared = 2; shared < 4",
     "nothing is shared while there is one for each"),
    ("virtio_blk", "drivers/virtio/blk_queue.c", "slot->status = BLK_S_PRESET", "slot->status = BLK_S_OK",
     "a status that was not written is an error"),
    ("virtio_blk", "drivers/virtio/virtio_blk.c", "b->has_flush &= virtio", "b->has_flush |= virtio",
     "a disk that writes through is not flushed"),
    ("block_split", "core/block/split.c", "        atomic_fetch_add(&r->pieces, 1);\n    return true", "        ;\n    return true",
     "a request ends when all its parts have"),
    ("virtio_blk", "core/block/block.c", "return served + this_cpu()", "return this_cpu()",
     "polled requests go to polled queues"),
    ("virtio_net", "drivers/virtio/virtio_net_rx.c", "nic->rss && i < nic->pairs", "false && i < nic->pairs",
     "with RSS a doorbell for one receive ring is one for all"),
    ("virtio_net", "drivers/virtio/virtio_net_rx.c", "bool hashed = nic->hashes &&", "bool hashed =",
     "a hash is believed only where it was agreed on"),
    ("net_steer", "core/net/steer.c", "rotate_right(adds[sum >> 12], 12)", "rotate_right(adds[sum >> 12], 8)",
     "the hash is the device's"),
    ("bench_blk", "core/block/bench_pattern.c", "w[i] ^ (sum += GOLDEN)", "0 * (sum += GOLDEN)",
     "every damaged bit of a sector shows"),
    ("ring", "drivers/virtio/ring_split.c", "empty |= len - 1;", "", "an empty buffer is refused"),
    ("virtio_pci", "drivers/virtio/virtio_pci.c", "if (bytes < VIRTIO_PCI_CAP_BYTES ||", "if ((bytes != 16 && bytes != 20) ||",
     "4: a capability may be longer than we know"),
    ("virtio_pci", "drivers/virtio/virtio_pci.c", "common_write32(d, COMMON_DRIVER_FEATURE, bits)",
     "common_write32(d, COMMON_DEVICE_FEATURE, bits)", "7: read-only fields are never written"),
    (*VIRTIO, "    log_error(\"%s: stays fenced until the next boot: %s\", d->name, why);\n    virtio_fail(d);",
     "    log_error(\"%s: stays fenced until the next boot: %s\", d->name, why);",
     "19: a device that does not come back is FAILED"),
    (*VIRTIO, "else if (status & VIRTIO_STATUS_NEEDS_RESET)", "else if (false)", "20: a device that asks for a reset is fenced"),
    (*VIRTIO, "1ULL << VIRTIO_F_VERSION_1 | 1ULL << VIRTIO_F_ACCESS", "1ULL << 42 | 1ULL << VIRTIO_F_VERSION_1 | 1ULL << VIRTIO_F_ACCESS",
     "21: what we cannot do, suspending among it, is not accepted"),
    (*VIRTIO, "int entry = irq_entry_of(d->irq, IRQ_CONFIG);", "int entry = 1 + irq_entry_of(d->irq, IRQ_CONFIG);",
     "58: configuration changes may share their entry with a queue"),
    (*VIRTIO, "if (d->transport->config_vector(d, vector) != vector)", "if (false)", "61: a reset device has forgotten its vectors"),
    ("virtio", "drivers/virtio/virtqueue.c", "    if (d->transport->queue_vector(d, q->index, wanted) != wanted)\n        return -EIO;",
     "", "61: and those of its queues"),
    ("ring", "drivers/virtio/ring_packed.c", "return avail == used && used == r->used_wrap;", "return avail == used && used;",
     "51: the device's wrap counter turns over"),
    ("ring", "drivers/virtio/ring_packed.c", "        to -= size;\n        *wrap = !*wrap;", "        to -= size;",
     "51: and ours"),
    ("virtio", "drivers/virtio/virtqueue.c", "busy = d->transport->queue_reset(d, q->index, true); busy;",
     "busy = d->transport->queue_reset(d, q->index, true) && false; busy;", "62: a queue is in reset until the device says so"),
    ("virtio", "drivers/virtio/virtqueue.c", "if (virtio_has(d, VIRTIO_F_RING_RESET) && d->on", "if (d->on",
     "62: only with RING_RESET"),
    ("virtio_pci", "drivers/virtio/virtio_pci.c", "length < need || offset % align", "length < need", "6: fields are aligned"),
    ("virtio_net", "drivers/virtio/virtio_net.c", "resets) >= QUEUE_RESETS_MAX", "resets) >= 99", "62: a queue is reset a few times only"),
    ("virtio_net", "drivers/virtio/virtio_net_rx.c", "    p->posted = 0;\n", "", "62: a queue that was reset is filled again"),
    ("virtio_pci", "drivers/virtio/virtio_pci.c", "v->common.length >= COMMON_QUEUE_RESET", "v->common.length >= 0 * COMMON_QUEUE_RESET",
     "62: only where the register is"),
    ("virtio", "drivers/virtio/ring_split.c", "r->avail_index = r->kicked_index = r->used_index = r->detach_next = 0;",
     "r->detach_next = 0;", "a queue starts anew with an empty ring"),
    (*VIRTIO, "bool runs = !d->stopped;", "bool runs = true;", "a device that is being taken out is not resumed"),
    (*VIRTIO, "        d->recoveries++;", "", "a device is recovered a bounded number of times"),
    ("virtio_blk", "drivers/virtio/virtio_blk.c", "    (void)config_changed(disk);", "", "a recovered disk is read anew"),
]


def turns_red(tree, test, source, old, new):
    """"" if the test notices, else why not."""
    path = os.path.join(tree, source)
    with open(path) as f:
        text = f.read()
    if text.count(old) != 1:
        return f"{source} has {text.count(old)} times: {old}"
    try:
        with open(path, "w") as f:
            f.write(text.replace(old, new))
        done = subprocess.run(["make", "unit", f"UNIT_TESTS={test}"], cwd=tree, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        with open(path, "w") as f:
            f.write(text)
    if done.returncode == 0:
        return "the test stays green"
    failed = "[  FAILED" in done.stdout or re.search(r"unit \w+: [1-9]\d* ok, [1-9]\d* FAILED", done.stdout)
    return "" if failed else f"the test did not run:\n{done.stdout}"


def copy_of_sources(tree):
    for name in os.listdir(ROOT):
        source = os.path.join(ROOT, name)
        if name.startswith((".", "build")):
            continue
        (shutil.copytree if os.path.isdir(source) else shutil.copy2)(source, os.path.join(tree, name))
    return tree


def main():
    env = [name for name in os.environ if name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")]
    for name in env:
        del os.environ[name]
    failed = 0
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        trees = queue.SimpleQueue()
        for _ in range(JOBS):
            trees.put(copy_of_sources(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-mutants-"))))

        def run(mutant):
            tree = trees.get()
            try:
                return turns_red(tree, *mutant[:4])
            finally:
                trees.put(tree)

        for (test, *_, rule), why in zip(MUTANTS, pool.map(run, MUTANTS)):
            print(f"{'FAILED' if why else 'ok':6}  {test}: {rule}" + (f" -- {why}" if why else ""), flush=True)
            failed += bool(why)
    print(f"{len(MUTANTS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
