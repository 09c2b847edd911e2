"""scripts/image: programs of the host arrive where the guest can see them."""
import os
import subprocess
import tempfile

import weirvm
from conftest import HERE, assert_no_trouble, machine, script

IMAGE = os.path.join(weirvm.ROOT, "scripts", "image")


def test_a_program_below_tmp_runs_though_the_guest_mounts_over_it(tmp_path):
    image = str(tmp_path / "root.img")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        program = os.path.join(directory, "mark")
        subprocess.run(["gcc", "-O1", "-o", program, os.path.join(weirvm.ROOT, "tests", "bench", "mark.c")], check=True)
        script("image", "--app", program, "--size", "64M", "-o", image)
    with weirvm.Vm(machine(smp=1, image=image), console_path=str(tmp_path / "console")) as vm:
        assert vm.wait_exit(120) == 0, vm.tail()
        assert_no_trouble(vm)


def test_a_place_that_the_guest_hides_is_refused(tmp_path):
    r = subprocess.run([IMAGE, "--app", "/bin/true", "--files", f"{HERE}:/proc/here", "-o", str(tmp_path / "x.img")],
                       capture_output=True, text=True)
    assert r.returncode != 0 and "/proc/here would not be seen" in r.stderr + r.stdout
    assert not (tmp_path / "x.img").exists()
