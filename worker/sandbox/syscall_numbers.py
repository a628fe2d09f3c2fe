"""The system calls that seccomp refuses to a model process, with their numbers on x86_64 and aarch64.

None is where the machine has no such call (aarch64 has only the newer form of many). Calls from 424 on
have the same number on both.
"""

from __future__ import annotations

# Sockets of every family, AF_UNIX included: a datagram socket can name any path. io_uring makes them by other means.
_SOCKETS: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}

# Programs and processes. `clone` without CLONE_THREAD and `clone3` are in `seccomp`, which looks at arguments.
_PROGRAMS: dict[str, tuple[int | None, int | None]] = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "uselib": (134, None),
}

# Other processes: their memory, descriptors and signals. `kill` and its like are in `seccomp`, by argument.
_OTHER_PROCESSES: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
}

# Memory and messages shared by a number and not by a file.
_SHARED: dict[str, tuple[int | None, int | None]] = {
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}

# What Landlock doesn't cover: a file's mode, owner, times and attributes, and (before ABI 3) its length.
_FILES: dict[str, tuple[int | None, int | None]] = {
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "open_by_handle_at": (304, 265),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
}

# Namespaces and mounts, also those of a user namespace that a process makes for itself.
_NAMESPACES: dict[str, tuple[int | None, int | None]] = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
}

# The kernel itself.
_KERNEL: dict[str, tuple[int | None, int | None]] = {
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
}

_ALL = {**_SOCKETS, **_PROGRAMS, **_OTHER_PROCESSES, **_SHARED, **_FILES, **_NAMESPACES, **_KERNEL}

REFUSED: dict[str, dict[str, int]] = {
    "x86_64": {name: number for name, (number, _) in _ALL.items() if number is not None},
    "aarch64": {name: number for name, (_, number) in _ALL.items() if number is not None},
}

# Calls that are refused by their arguments.
BY_ARGUMENT: dict[str, dict[str, int]] = {
    "x86_64": {
        "clone": 56,
        "clone3": 435,
        "kill": 62,
        "tkill": 200,
        "tgkill": 234,
        "rt_sigqueueinfo": 129,
        "rt_tgsigqueueinfo": 297,
        "prlimit64": 302,
    },
    "aarch64": {
        "clone": 220,
        "clone3": 435,
        "kill": 129,
        "tkill": 130,
        "tgkill": 131,
        "rt_sigqueueinfo": 138,
        "rt_tgsigqueueinfo": 240,
        "prlimit64": 261,
    },
}
