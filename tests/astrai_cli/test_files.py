import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from astrai_cli.files import file_lock, partial_folder, sha256_of

HOLD = """
import sys, time
from pathlib import Path
from astrai_cli.files import partial_folder
with partial_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


def hold_partial(target: Path) -> subprocess.Popen[str]:
    """A process that has a partial folder of `target` open."""
    command = [sys.executable, "-c", HOLD, str(target)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with hold_partial(tmp_path / "target") as process:
        process.send_signal(number)
        process.communicate()
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with hold_partial(target) as process:
        process.kill()
        process.communicate()
    (leftover,) = tmp_path.iterdir()
    with partial_folder(tmp_path / "other"):
        assert leftover.exists()
    with partial_folder(target) as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_what_a_live_process_writes_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with hold_partial(target) as process:
        (theirs,) = tmp_path.iterdir()
        with partial_folder(target) as ours:
            assert {*tmp_path.iterdir()} == {ours, theirs}
        assert (theirs / "half").exists()
        process.terminate()
        process.communicate()


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with partial_folder(tmp_path / "target") as folder:
            (folder / "sub").mkdir()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_names_with_pattern_characters(tmp_path: Path) -> None:
    with partial_folder(tmp_path / "a[1]*?") as folder:
        assert folder.is_dir()


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path, waited, order = tmp_path / "lock", threading.Event(), []

    def second() -> None:
        with file_lock(path, waited.set):
            order.append("second")

    with file_lock(path, lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert waited.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_digest(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert sha256_of(tmp_path / "empty").startswith("e3b0c44298fc1c14")
    assert os.listdir(tmp_path) == ["empty"]
