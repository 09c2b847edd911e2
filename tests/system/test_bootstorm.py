"""48 CPUs with 8 disks of 48 queues and a NIC of 16 pairs want 480 interrupt vectors, and only 224 exist."""
import glob
import os
import re
import subprocess

import pytest

import weirvm
from conftest import SOAK, script

BOOTS = 100 if SOAK else 20


@pytest.mark.parametrize("more", [[], ["--append", "irq.vectors=8"]], ids=["all-vectors", "8-vectors"])
def test_every_boot_answers_a_query(more, postgres_image):
    print(script("bootstorm", "--boots", BOOTS, "--smp", 48, "--mem", "2G", "--disks", 7, "--blk-queues", 48,
                 "--net-queues", 16, "--image", postgres_image, "--timeout", 300, *more))


def test_load_with_8_vectors(postgres_image):
    print(script("bootstorm", "--boots", 1, "--load", 30, "--smp", 48, "--mem", "2G", "--disks", 7, "--blk-queues", 48,
                 "--net-queues", 16, "--image", postgres_image, "--append", "irq.vectors=8"))


@pytest.mark.parametrize("kind, boots, bad, reason", [
    ("panic", 100, 73, "status 101"),
    ("hang", 3, 2, "no power-off after 15 s"),
    ("triple", 3, 1, "triple fault"),
])
def test_one_bad_boot_turns_it_red_and_is_kept(kind, boots, bad, reason, tmp_path):
    done = subprocess.run([os.path.join(weirvm.ROOT, "scripts", "bootstorm"), "--boots", str(boots), "--mem", "128M",
                           "--net-queues", "0", "--timeout", "15", "--append", f"crash={kind} crash.boot={bad}",
                           "--output", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert f"{boots - 1} passed, 1 failed" in done.stdout
    assert re.search(rf"boot {bad}: {reason}", done.stdout), done.stdout
    (kept,) = glob.glob(str(tmp_path / "*"))
    with open(os.path.join(kept, "command")) as f:
        assert f"boot={bad}" in f.read()
    with open(os.path.join(kept, "console")) as f:
        console = f.read()
    assert kind != "panic" or "panic on CPU 0: on purpose" in console
