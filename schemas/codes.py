"""The stable list of refusal and failure codes, each with what to do about it.

A code never changes its meaning and is never removed within a major version. Programs branch on codes;
`ADVICE` is the sentence a person reads after the specific message.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    # what was sent
    COMMAND_MALFORMED = "COMMAND_MALFORMED"
    COMMAND_UNKNOWN = "COMMAND_UNKNOWN"
    COMMAND_NOT_DURABLE = "COMMAND_NOT_DURABLE"
    DUPLICATE_COMMAND = "DUPLICATE_COMMAND"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    UNKNOWN_STREAM = "UNKNOWN_STREAM"
    CREDENTIAL_REFUSED = "CREDENTIAL_REFUSED"
    CONFLICT = "CONFLICT"
    OVERLOADED = "OVERLOADED"
    UNAVAILABLE = "UNAVAILABLE"
    NAME_TAKEN = "NAME_TAKEN"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    # artifacts
    ARTIFACT_EMPTY = "ARTIFACT_EMPTY"
    ARTIFACT_TOO_MANY_FILES = "ARTIFACT_TOO_MANY_FILES"
    ARTIFACT_PATH_ESCAPES = "ARTIFACT_PATH_ESCAPES"
    ARTIFACT_PATH_DUPLICATE = "ARTIFACT_PATH_DUPLICATE"
    ARTIFACT_SYMLINK = "ARTIFACT_SYMLINK"
    ARTIFACT_PICKLE_REFUSED = "ARTIFACT_PICKLE_REFUSED"
    ARTIFACT_FILE_MISSING = "ARTIFACT_FILE_MISSING"
    ARTIFACT_FILE_UNEXPECTED = "ARTIFACT_FILE_UNEXPECTED"
    ARTIFACT_FILE_UNREADABLE = "ARTIFACT_FILE_UNREADABLE"
    ARTIFACT_DIGEST_MISMATCH = "ARTIFACT_DIGEST_MISMATCH"
    ARTIFACT_OUTSIDE_ROOT = "ARTIFACT_OUTSIDE_ROOT"
    ARTIFACT_NOT_VERIFIED = "ARTIFACT_NOT_VERIFIED"
    # gates
    RUNTIME_INCOMPATIBLE = "RUNTIME_INCOMPATIBLE"
    ENVIRONMENT_CHANGED = "ENVIRONMENT_CHANGED"
    CANDIDATE_NOT_APPROVED = "CANDIDATE_NOT_APPROVED"
    APPROVAL_MISMATCH = "APPROVAL_MISMATCH"
    # nodes, work, leases
    NODE_DISABLED = "NODE_DISABLED"
    NODE_ABSENT = "NODE_ABSENT"
    NODE_FULL = "NODE_FULL"
    WORK_ENDED = "WORK_ENDED"
    WORK_NOT_YOURS = "WORK_NOT_YOURS"
    LEASE_HELD = "LEASE_HELD"
    LEASE_ENDED = "LEASE_ENDED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    LEASE_TOKEN_WRONG = "LEASE_TOKEN_WRONG"  # noqa: S105 - a code, no secret
    LEASE_RENEWAL_EARLY = "LEASE_RENEWAL_EARLY"
    GENERATION_FENCED = "GENERATION_FENCED"
    SIGNATURE_INVALID = "SIGNATURE_INVALID"
    EVIDENCE_MISPLACED = "EVIDENCE_MISPLACED"
    WORKER_LOST = "WORKER_LOST"
    WORK_DEADLINE = "WORK_DEADLINE"
    WORK_ATTEMPTS_EXHAUSTED = "WORK_ATTEMPTS_EXHAUSTED"
    WORK_CANCELLED = "WORK_CANCELLED"
    # residency and serving
    RESIDENCY_CONFLICT = "RESIDENCY_CONFLICT"
    NOT_RESIDENT = "NOT_RESIDENT"
    DRAINING = "DRAINING"
    INPUT_INVALID = "INPUT_INVALID"
    INPUT_TOO_LARGE = "INPUT_TOO_LARGE"
    PAYLOAD_UNAVAILABLE = "PAYLOAD_UNAVAILABLE"
    OUTPUT_NOT_FINITE = "OUTPUT_NOT_FINITE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    LOAD_FAILED = "LOAD_FAILED"
    LOAD_TIMEOUT = "LOAD_TIMEOUT"
    HEALTH_FAILED = "HEALTH_FAILED"
    GOLDEN_MISSED = "GOLDEN_MISSED"
    INVOCATION_CANCELLED = "INVOCATION_CANCELLED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    CHILD_DIED = "CHILD_DIED"
    RUNTIME_CRASH_LOOP = "RUNTIME_CRASH_LOOP"
    DEVICE_MEMORY_SHORT = "DEVICE_MEMORY_SHORT"
    OFFLINE_NOT_PROVEN = "OFFLINE_NOT_PROVEN"
    RECLAIM_INCOMPLETE = "RECLAIM_INCOMPLETE"


ADVICE: dict[Code, str] = {
    Code.COMMAND_MALFORMED: "Compare the body with the schema of this subject in docs/reference/bus.md.",
    Code.COMMAND_UNKNOWN: "Use a subject from docs/reference/bus.md.",
    Code.COMMAND_NOT_DURABLE: "Send this command by request on tenure.rpc.v1; its reply carries a secret.",
    Code.DUPLICATE_COMMAND: "This command_id was used with another body. Use a new command_id for a new command.",
    Code.MESSAGE_TOO_LARGE: "Send fewer or smaller items in one message.",
    Code.UNKNOWN_STREAM: "List what exists (for example `tenure artifact list`) and use an id from there.",
    Code.CREDENTIAL_REFUSED: "Start the worker with the credential that was enrolled for this node.",
    Code.CONFLICT: "Somebody else changed the same thing at the same time. Send the command again.",
    Code.OVERLOADED: "Wait and send again; the queue is at its bound.",
    Code.UNAVAILABLE: "Run `tenure doctor`. Sent again under the same command_id, a command has one outcome.",
    Code.NAME_TAKEN: "Choose another name, or use what already has this one.",
    Code.INTERNAL_ERROR: "This is a defect. Keep the control plane's log of this moment and report it.",
    Code.ARTIFACT_EMPTY: "Point at a folder that holds the model's files.",
    Code.ARTIFACT_TOO_MANY_FILES: "Register only the files the model needs; see the limit in the message.",
    Code.ARTIFACT_PATH_ESCAPES: "Use relative paths inside the folder, without `..`, drive or root.",
    Code.ARTIFACT_PATH_DUPLICATE: "Name each file once, and keep names apart by more than their case.",
    Code.ARTIFACT_SYMLINK: "Replace the link by the file it points to.",
    Code.ARTIFACT_PICKLE_REFUSED: "Convert the weights to safetensors, or leave the pickled file out of the folder.",
    Code.ARTIFACT_FILE_MISSING: "Restore the file, or register the folder as it is now.",
    Code.ARTIFACT_FILE_UNEXPECTED: "Remove the extra file, or register the folder as it is now.",
    Code.ARTIFACT_FILE_UNREADABLE: "Make the file readable for the worker's user.",
    Code.ARTIFACT_DIGEST_MISMATCH: "The bytes changed. Restore the original file, or register the new bytes.",
    Code.ARTIFACT_OUTSIDE_ROOT: "Put the folder under the node's artifact root, or use `tenure artifact add --copy`.",
    Code.ARTIFACT_NOT_VERIFIED: "Run `tenure artifact verify` for this set on this node first.",
    Code.RUNTIME_INCOMPATIBLE: "Choose an adapter that supports this model; `tenure assess` gives the reasons.",
    Code.ENVIRONMENT_CHANGED: "The node's software or device changed. Assess and probe again on what it is now.",
    Code.CANDIDATE_NOT_APPROVED: "Have a person run `tenure approve` for this exact digest.",
    Code.APPROVAL_MISMATCH: "Approve or deploy the digest that `tenure candidate list` shows.",
    Code.NODE_DISABLED: "Enable the node, or choose another.",
    Code.NODE_ABSENT: "Start the node's worker, or choose another node.",
    Code.NODE_FULL: "Wait for work to end, or unload a deployment on that node.",
    Code.WORK_ENDED: "The work has already ended; look at its result.",
    Code.WORK_NOT_YOURS: "This work is for another node.",
    Code.LEASE_HELD: "Another holder has the lease; wait for it to end.",
    Code.LEASE_ENDED: "The lease is over. Stop the work; what you hold of it does not count.",
    Code.LEASE_EXPIRED: "The holder did not renew in time. The work is offered again until its attempts are used up.",
    Code.LEASE_TOKEN_WRONG: "Use the token from the claim that granted this lease.",
    Code.LEASE_RENEWAL_EARLY: "Renew after half of the term has passed.",
    Code.GENERATION_FENCED: "A newer worker runs on this node. This process must stop.",
    Code.SIGNATURE_INVALID: "Sign with the session key that was registered for this generation.",
    Code.EVIDENCE_MISPLACED: "Evidence must match the work, node and attempt it is sent for.",
    Code.WORKER_LOST: "Look at the node: its worker stopped answering. Work is offered again when it is back.",
    Code.WORK_DEADLINE: "The work took longer than it may. Look at the worker's log, or raise the profile's limit.",
    Code.WORK_ATTEMPTS_EXHAUSTED: "Each attempt ended early. Look at the causes before asking again.",
    Code.WORK_CANCELLED: "It was cancelled on request. Ask again when you want it.",
    Code.RESIDENCY_CONFLICT: "Wait for the running transition to end, or choose the step that fits the state.",
    Code.NOT_RESIDENT: "Load the deployment first.",
    Code.DRAINING: "The deployment no longer takes requests. Load it again, or use another.",
    Code.INPUT_INVALID: "Correct the input as the message says.",
    Code.INPUT_TOO_LARGE: "Send less at once; the profile's limits say how much.",
    Code.PAYLOAD_UNAVAILABLE: "Store the payload again and send a new reference; objects end after a while.",
    Code.OUTPUT_NOT_FINITE: "The model gave NaN or infinity for this input. Nothing was returned.",
    Code.DEADLINE_EXCEEDED: "Try again with less input, or raise the profile's limit.",
    Code.LOAD_FAILED: "Read the detail: the runtime refused these files with these settings.",
    Code.LOAD_TIMEOUT: "Raise the profile's load limit, or look at why the disk or device is slow.",
    Code.HEALTH_FAILED: "The model loaded but did not answer soundly. Look at the detail before using it.",
    Code.GOLDEN_MISSED: "The model's answer is not the one the profile expects. Compare library, dtype and device.",
    Code.INVOCATION_CANCELLED: "It was cancelled on request. Ask again when you want it.",
    Code.OUT_OF_MEMORY: "Free memory on the node, choose a smaller dtype or model, or another node.",
    Code.CHILD_DIED: "The process with the model ended by itself. The detail says how.",
    Code.RUNTIME_CRASH_LOOP: "It ended by itself too often. Find the cause, then wait or run `tenure circuit close`.",
    Code.DEVICE_MEMORY_SHORT: "Unload something on that device, or choose a smaller dtype or model, or another node.",
    Code.OFFLINE_NOT_PROVEN: "This kernel cannot prove isolation. Use one with Landlock, or allow it in the profile.",
    Code.RECLAIM_INCOMPLETE: "Memory was not given back. Look at the node's processes before loading again.",
}


class Refusal(Exception):
    """A coded refusal on its way out of code that cannot return one. Never raised by `domain`."""

    def __init__(self, code: Code, message: str, detail: dict[str, str] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.detail = detail or {}
