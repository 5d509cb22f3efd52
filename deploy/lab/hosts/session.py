"""One command or login shell on a lab machine: started, fed, and its exit status handed back.

With a terminal asked for, the program gets a real pseudo-terminal; without one, three pipes. A program's
output is passed on to its last byte before its status is told.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

import asyncssh

_CHUNK_BYTES = 65536
# A program that has ended may have left a child behind that still holds its output; waiting longer would
# keep a client from learning that its command is done.
_LAST_OUTPUT_WITHIN_SECONDS = 1.0

Process = asyncssh.SSHServerProcess[bytes]


async def run_session(process: Process, home: Path, environment: Mapping[str, str]) -> None:
    """Run what the client asked for in `home`, and tell it the exit status."""
    argv = ["/bin/sh", "-c", process.command] if process.command else ["/bin/sh", "-l"]
    term = process.get_terminal_type()
    try:
        if term:
            status = await _on_terminal(process, argv, home, {**environment, "TERM": term})
        else:
            status = await _on_pipes(process, argv, home, environment)
    except OSError as error:
        process.stderr.write(f"{error}\n".encode())
        status = 126
    # The shell's way to tell a signal: 128 and its number.
    process.exit(status if status >= 0 else 128 - status)


async def _on_pipes(process: Process, argv: Sequence[str], home: Path, environment: Mapping[str, str]) -> int:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd=home, env=environment, start_new_session=True
    )
    assert child.stdin and child.stdout and child.stderr
    feeding = asyncio.ensure_future(_feed(process, child.stdin))
    passing_on = [
        asyncio.ensure_future(_pass_on(child.stdout, process.stdout)),
        asyncio.ensure_future(_pass_on(child.stderr, process.stderr)),
    ]
    return await _end(child, feeding, passing_on)


async def _on_terminal(process: Process, argv: Sequence[str], home: Path, environment: Mapping[str, str]) -> int:
    master, terminal = os.openpty()
    _resize(master, process.get_terminal_size())
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=home,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    finally:
        os.close(terminal)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(master), "rb", buffering=0)
    )
    feeding = asyncio.ensure_future(_feed_terminal(process, master))
    passing_on = [asyncio.ensure_future(_pass_on(reader, process.stdout))]
    try:
        return await _end(child, feeding, passing_on)
    finally:
        transport.close()
        os.close(master)


async def _end(
    child: asyncio.subprocess.Process, feeding: asyncio.Future[None], passing_on: Sequence[asyncio.Future[None]]
) -> int:
    try:
        status = await child.wait()
        await asyncio.wait(passing_on, timeout=_LAST_OUTPUT_WITHIN_SECONDS)
        return status
    finally:
        for task in (feeding, *passing_on):
            task.cancel()


async def _feed(process: Process, stdin: asyncio.StreamWriter) -> None:
    try:
        while data := await process.stdin.read(_CHUNK_BYTES):
            stdin.write(data)
            await stdin.drain()
        stdin.close()
    except (OSError, asyncssh.Error):
        stdin.close()  # The program has stopped reading, or the client has gone.


async def _feed_terminal(process: Process, master: int) -> None:
    while True:
        try:
            data = await process.stdin.read(_CHUNK_BYTES)
        except asyncssh.TerminalSizeChanged as change:
            _resize(master, (change.width, change.height, change.pixwidth, change.pixheight))
            continue
        except (asyncssh.Error, OSError):
            return
        if not data:
            return
        # What a person or a script types is small; the terminal takes it without making us wait.
        os.write(master, data)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncssh.SSHWriter[bytes]) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except (OSError, asyncssh.Error):
        pass  # A terminal whose program has ended answers EIO; a client that has gone wants nothing more.


def _resize(master: int, size: tuple[int, int, int, int]) -> None:
    width, height, pixel_width, pixel_height = size
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixel_width, pixel_height))
