"""48 CPUs with 8 disks of 48 queues and a NIC of 16 pairs want 480 interrupt vectors, and only 224 exist."""
import pytest

from conftest import SOAK, script

BOOTS = 100 if SOAK else 20


@pytest.mark.parametrize("more", [[], ["--append", "irq.vectors=8"]], ids=["all-vectors", "8-vectors"])
def test_every_boot_answers_a_query(more, postgres_image):
    print(script("bootstorm", "--boots", BOOTS, "--smp", 48, "--mem", "2G", "--disks", 7, "--blk-queues", 48,
                 "--net-queues", 16, "--image", postgres_image, "--timeout", 300, *more))


def test_load_with_8_vectors(postgres_image):
    print(script("bootstorm", "--boots", 1, "--load", 30, "--smp", 48, "--mem", "2G", "--disks", 7, "--blk-queues", 48,
                 "--net-queues", 16, "--image", postgres_image, "--append", "irq.vectors=8"))
