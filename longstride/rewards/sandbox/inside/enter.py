"""Builds the jail's root for the `unshare` backend, and becomes the supervisor in it.

Runs as the first process of namespaces of its own, with the rights to mount in them. The result is
the same as bubblewrap's: a small root of what is needed, read-only but for a private /tmp.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
_MNT_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_ROOT = "/tmp"

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Build the root, enter it, run the supervisor."""
    plan = json.loads(sys.argv[1])
    # Held open, because the new root is built over /tmp, in which they may lie.
    binds = [(os.open(source, os.O_PATH), target) for source, target in plan["binds"]]
    devices = [(os.open(path, os.O_PATH), path) for path in plan["devices"]]
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", _ROOT, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for source, target in binds:
        _bind(source, _ROOT + target, read_only=True)
    for target, link in plan["links"]:
        os.symlink(target, _ROOT + link)
    os.mkdir(_ROOT + "/dev")
    for source, target in devices:
        _bind(source, _ROOT + target, read_only=False)
    os.mkdir(_ROOT + "/tmp")
    _mount(
        "tmpfs", _ROOT + "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={plan['size']},mode=1777"
    )
    os.mkdir(_ROOT + "/tmp/old")
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    old = (_ROOT + "/tmp/old").encode()
    _check(_libc.syscall(number, _ROOT.encode(), old), "pivot_root")
    os.chdir("/tmp")
    _check(_libc.umount2(b"/tmp/old", _MNT_DETACH), "umount")
    os.rmdir("/tmp/old")
    _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    os.closerange(3, 256)
    os.execve(plan["argv"][0], plan["argv"], plan["environment"])


def _bind(source: int, target: str, *, read_only: bool) -> None:
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT))
    _mount(f"/proc/self/fd/{source}", target, None, _MS_BIND | _MS_REC)
    if read_only:
        flags = _flags(target)
        _mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


def _flags(target: str) -> int:
    """Flags of a mount that a user namespace may not take away."""
    found = os.statvfs(target).f_flag
    return sum(
        mount for mount, seen in ((_MS_NOSUID, os.ST_NOSUID), (_MS_NODEV, os.ST_NODEV),
                                  (8, os.ST_NOEXEC), (1024, os.ST_NOATIME),
                                  (2048, os.ST_NODIRATIME), (1 << 21, os.ST_RELATIME))
        if found & seen
    )  # fmt: skip


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    texts = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    _check(_libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), target)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
