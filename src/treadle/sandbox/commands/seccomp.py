"""System calls that are forbidden to commands in a sandbox, as a program for the kernel's filter.

The filter forbids calls that reach beyond namespaces and limits: sockets other than Unix and internet sockets (a
virtual machine's host listens on `AF_VSOCK`), memory that belongs to no process (`memfd`, System V), new namespaces
and mounts, keys, kernel modules, io_uring, and typing into a terminal. `system_calls.toml` has the numbers.
Source: linux/filter.h, linux/seccomp.h.
"""

import errno
import os
import struct

from treadle.core.texts.documents import read_data

_CLONE, _SOCKET, _IOCTL = (56, 220), (41, 198), (16, 29)
_NEW_NAMESPACES = 0x7E020000
_SOCKETS = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
_TYPING = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX."""

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column in the tables, and the kernel's number, of each architecture."""
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24

Line = tuple[int, int, int, int]


def make_filter(machine: str | None = None) -> bytes | None:
    """Return the filter program for `machine`, by default this one, or `None` for an unknown architecture."""
    machine = machine or os.uname().machine
    if machine not in _MACHINES:
        return None
    column, architecture = _MACHINES[machine]
    lines: list[Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    calls = read_data(__package__, "system_calls")
    for section, code in (("refused", errno.EPERM), ("absent", errno.ENOSYS)):
        for numbers in calls[section].values():
            lines += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _FAIL | code)]
    lines += _about(_CLONE[column], _FIRST_ARGUMENT, _HAS_BITS, (_NEW_NAMESPACES,), _ALLOW, errno.EPERM)
    lines += _about(_IOCTL[column], _SECOND_ARGUMENT, _EQUAL, _TYPING, _ALLOW, errno.EPERM)
    refused = _FAIL | errno.EAFNOSUPPORT
    lines += _about(_SOCKET[column], _FIRST_ARGUMENT, _EQUAL, _SOCKETS, refused, None)
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _about(
    number: int, argument: int, test: int, values: tuple[int, ...], otherwise: int, code: int | None
) -> list[Line]:
    """Return the lines for one call, decided by an argument that is compared with `values`. If the argument matches
    a value, the call fails with `code`, or is allowed if `code` is `None`. If no value matches, the result is
    `otherwise`."""
    verdict = _ALLOW if code is None else _FAIL | code
    body: list[Line] = [(_LOAD, 0, 0, argument)]
    for value in values:
        body += [(test, 0, 1, value), (_RETURN, 0, 0, verdict)]
    body.append((_RETURN, 0, 0, otherwise))
    return [(_EQUAL, 0, len(body), number), *body]
