"""System calls that are forbidden to commands in a sandbox, as a program for the kernel's filter.

The filter forbids calls that reach beyond namespaces and limits: sockets other than Unix and internet sockets (a
virtual machine's host listens on `AF_VSOCK`), memory that belongs to no process (`memfd`, System V), new namespaces
and mounts, keys, kernel modules, io_uring, and typing into a terminal.
Source: linux/filter.h, linux/seccomp.h and the system call tables of Linux 6.12.
"""

import errno
import os
import struct

_CALLS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
"""Numbers on x86-64 and arm64 of calls that fail with EPERM."""
_ABSENT = {
    "clone3": (435, 435),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "msgget": (68, 186),
    "semget": (64, 190),
    "shmget": (29, 194),
}
"""Numbers of calls that fail with ENOSYS, so that libraries use others: `clone3` hides its flags from the
filter."""
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
    for calls, code in ((_CALLS, errno.EPERM), (_ABSENT, errno.ENOSYS)):
        for numbers in calls.values():
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
    """Return the lines for one call, decided by an argument that is compared with `values`.

    If the argument matches a value, the call fails with `code`, or is allowed if `code` is `None`. If no
    value matches, the result is `otherwise`.
    """
    verdict = _ALLOW if code is None else _FAIL | code
    body: list[Line] = [(_LOAD, 0, 0, argument)]
    for value in values:
        body += [(test, 0, 1, value), (_RETURN, 0, 0, verdict)]
    body.append((_RETURN, 0, 0, otherwise))
    return [(_EQUAL, 0, len(body), number), *body]
