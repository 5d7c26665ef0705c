from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from astrai_cli.worker.channel import PipeWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def test_a_reader_that_waits_gets_everything_in_order_and_the_writer_never_blocks(
    pipe: tuple[int, int],
) -> None:
    reader, fd = pipe
    writer = PipeWriter(fd)
    lines = [b"%d %s\n" % (number, b"x" * 999) for number in range(1000)]
    assert all(map(writer.write, lines))

    received = bytearray()

    def read() -> None:
        while data := os.read(reader, 65536):
            received.extend(data)

    thread = threading.Thread(target=read)
    thread.start()
    writer.close()
    thread.join()
    assert received == b"".join(lines)


def test_a_full_buffer_refuses_whole_lines_and_takes_forced_ones(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    writer = PipeWriter(fd, max_buffered=1000)
    line = b"y" * 499 + b"\n"
    taken = 0
    while writer.write(line):
        taken += 1
    assert writer.write(b"end\n", force=True)

    received = bytearray()
    while not received.endswith(b"end\n"):
        received += os.read(reader, 65536)
    assert received == line * taken + b"end\n"
    assert writer.write(line)
    writer.close()


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, fd = os.pipe()
    writer = PipeWriter(fd)
    os.close(reader)
    writer.write(b"lost\n")
    assert not writer.write(b"lost too\n")
    writer.close()


def test_prints_of_python_and_of_native_code_stay_out_of_the_claimed_stdout() -> None:
    code = (
        "import os; from astrai_cli.worker.channel import claim_stdout; fd = claim_stdout();"
        "print('stray', flush=True); os.system('echo native'); os.write(fd, b'frame')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"frame"
    assert done.stderr == b"stray\nnative\n"
