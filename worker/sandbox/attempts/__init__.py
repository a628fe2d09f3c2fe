"""The table of attempts: what is tried, which layers refuse it, and whether a proof can do without it.

A proof needs those that can be tried on every supported machine, by root and by anybody, in a container
and without. The others count where they can be tried: a container may have no io_uring, an ordinary user
no groups to set, a machine no second address, and then there is nothing to take away.
"""

from __future__ import annotations

import errno

from worker.sandbox.attempts import files, network, processes, rights
from worker.sandbox.escape import REFUSALS, Trial


def _alone(*layers: str) -> tuple[frozenset[str], ...]:
    """Each of these layers is enough by itself."""
    return tuple(frozenset({layer}) for layer in layers)


_INTO_ANOTHER = _alone("landlock_files", "landlock_tcp", "landlock_scopes", "seccomp", "capabilities")

TRIALS: tuple[Trial, ...] = (
    Trial("tcp_connect", network.tcp_connect, _alone("network_namespace", "landlock_tcp", "seccomp")),
    Trial(
        "tcp_connect_far",
        network.tcp_connect_far,
        _alone("network_namespace", "landlock_tcp", "seccomp"),
        needed=False,
    ),
    Trial("tcp_bind", network.tcp_bind, _alone("landlock_tcp", "seccomp")),
    Trial("udp_send", network.udp_send, _alone("network_namespace", "seccomp")),
    Trial("resolve_name", network.resolve_name, _alone("network_namespace", "seccomp")),
    Trial("unix_connect", network.unix_connect, _alone("seccomp")),
    Trial(
        "abstract_connect",
        network.abstract_connect,
        _alone("network_namespace", "landlock_scopes", "seccomp"),
        refusals=REFUSALS | {errno.ECONNREFUSED},  # in another network namespace there is no such name
    ),
    Trial("netlink_socket", network.netlink_socket, _alone("seccomp"), needed=False),
    Trial("io_uring", network.io_uring, _alone("seccomp"), needed=False),
    Trial("read_outside", files.read_outside, _alone("landlock_files")),
    Trial("read_system_file", files.read_system_file, _alone("landlock_files"), needed=False),
    Trial("read_by_link", files.read_by_link, _alone("landlock_files")),
    Trial(
        "read_by_descriptor",
        files.read_by_descriptor,
        _alone("descriptors"),
        refusals=frozenset({errno.EBADF}),
    ),
    Trial("list_outside", files.list_outside, _alone("landlock_files")),
    Trial("write_outside", files.write_outside, _alone("landlock_files")),
    Trial("write_artifact", files.write_artifact, _alone("landlock_files"), needed=False),
    Trial("truncate_outside", files.truncate_outside, _alone("landlock_files", "seccomp")),
    Trial("change_mode", files.change_mode, _alone("seccomp")),
    Trial("link_outside", files.link_outside, _alone("landlock_files"), needed=False),
    Trial("grow_file", files.grow_file, _alone("rlimits"), needed=False),
    Trial("run_program", processes.run_program, _alone("landlock_files", "seccomp")),
    Trial("make_process", processes.make_process, _alone("seccomp")),
    Trial("replace_itself", processes.replace_itself, _alone("landlock_files", "seccomp"), needed=False),
    Trial(
        "replace_itself_from_scratch",
        processes.replace_itself_from_scratch,
        _alone("landlock_files", "seccomp"),
        needed=False,
    ),
    Trial("replace_itself_from_memory", processes.replace_itself_from_memory, _alone("seccomp"), needed=False),
    Trial("signal_process", processes.signal_process, _alone("landlock_scopes", "seccomp")),
    Trial("read_process", processes.read_process, _INTO_ANOTHER, needed=False),
    Trial("trace_process", processes.trace_process, _INTO_ANOTHER, needed=False),
    Trial("unshare", processes.unshare, _alone("seccomp"), needed=False),
    Trial("raise_limit", rights.raise_limit, (frozenset({"rlimits", "capabilities"}),), needed=False),
    Trial("change_groups", rights.change_groups, _alone("capabilities"), needed=False),
    Trial("gain_rights", rights.gain_rights, _alone("no_new_privs"), needed=False),
    Trial("shared_memory", rights.shared_memory, _alone("seccomp"), needed=False),
    Trial("keyring", rights.keyring, _alone("seccomp"), needed=False),
)
