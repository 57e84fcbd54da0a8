"""What a machine refuses: a full disk, too many open files, rights that a user does not have."""

from __future__ import annotations

import errno

_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
    | {errno.EAGAIN, errno.EIO, errno.EFBIG}
)
"""What a system call says where the machine, or the user's rights on it, do not suffice."""


def refused_by_machine(error: OSError) -> bool:
    """Whether the machine, or the user's rights on it, do not suffice: the fault of neither prism nor a kernel."""
    return error.errno in _MACHINE
