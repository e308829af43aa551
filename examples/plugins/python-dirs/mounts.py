"""Bind mounts, by the kernel's own calls: there is no child process to end with the plugin."""

import ctypes
import os
import re

MS_RDONLY, MS_REMOUNT, MS_BIND = 0x1, 0x20, 0x1000  # mount(2)

_libc = ctypes.CDLL(None, use_errno=True)


def bind(source: str, target: str, read_only: bool) -> None:
    """Mounts a folder at another place, unless it is there."""
    if not os.path.samefile(source, target):
        _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(MS_BIND), None), target)
    if read_only:
        flags = ctypes.c_ulong(MS_REMOUNT | MS_BIND | MS_RDONLY)
        _check(_libc.mount(None, os.fsencode(target), None, flags, None), target)


def unmount(target: str) -> None:
    """Removes all that is mounted on a folder, also if it is nothing."""
    while mounted(target):
        _check(_libc.umount2(os.fsencode(target), 0), target)


def mounted(target: str) -> bool:
    """Searches the kernel's mount table, in which some characters are octal escapes (proc_pid_mountinfo(5))."""
    with open("/proc/self/mountinfo", "rb") as table:
        points = (line.split(b" ")[4] for line in table)
        return os.fsencode(target) in (re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), p) for p in points)


def _check(result: int, target: str) -> None:
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), target)
