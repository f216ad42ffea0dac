"""How an execution ended, and how an exception becomes text that the sidecar accepts."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from sidekeeper._proto.v1 import completion_pb2
from sidekeeper.errors import Cancelled, Reject

__all__ = ["SUCCESS", "Outcome", "failed", "interrupted", "of_exception", "rejected"]

#: The longest failure message, in bytes of UTF-8; the sidecar refuses longer ones.
MAX_MESSAGE_BYTES = 16 * 1024

#: How much of it the exception's own text may take; the rest is for the traceback, which says where.
MAX_SUMMARY_BYTES = 4 * 1024

_CUT = "\n[...]\n"

#: The lowest API level of a sidecar that knows interruptions.
_LEVEL_OF_INTERRUPTIONS = 2


@dataclass(frozen=True)
class Outcome:
    """How an execution ended, as it is reported."""

    kind: completion_pb2.ExecutionOutcome.ValueType
    message: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the item was begun and failed."""
        return self.kind == completion_pb2.EXECUTION_OUTCOME_FAILURE

    def for_level(self, api_level: int) -> Outcome:
        """The same for a sidecar of this API level: one that does not know interruptions takes them for failures."""
        if self.kind == completion_pb2.EXECUTION_OUTCOME_INTERRUPTED and api_level < _LEVEL_OF_INTERRUPTIONS:
            return failed(self.message)
        return self


SUCCESS = Outcome(completion_pb2.EXECUTION_OUTCOME_SUCCESS)


def failed(message: str) -> Outcome:
    """The item was begun and failed."""
    return Outcome(completion_pb2.EXECUTION_OUTCOME_FAILURE, _head(message, MAX_MESSAGE_BYTES))


def rejected(message: str) -> Outcome:
    """The item was not begun."""
    return Outcome(completion_pb2.EXECUTION_OUTCOME_REJECTED, _head(message, MAX_MESSAGE_BYTES))


def interrupted(message: str) -> Outcome:
    """The item was stopped or not begun because another instance might have owned it; it may be executed again."""
    return Outcome(completion_pb2.EXECUTION_OUTCOME_INTERRUPTED, _head(message, MAX_MESSAGE_BYTES))


def of_exception(error: BaseException) -> Outcome:
    """What an exception that left a handler means."""
    if isinstance(error, Reject):
        return rejected(str(error))
    if isinstance(error, Cancelled):
        return failed(str(error))
    return failed(_describe(error))


def _describe(error: BaseException) -> str:
    """Returns type and message, and the end of the traceback, which is where the error was raised."""
    told = traceback.TracebackException.from_exception(error)
    summary = _head("".join(told.format_exception_only()).strip(), MAX_SUMMARY_BYTES)
    trace = "".join(told.format()).strip()
    room = MAX_MESSAGE_BYTES - len(summary.encode()) - len(_CUT)
    encoded = trace.encode("utf-8", "replace")
    if len(encoded) <= room:
        return f"{summary}\n{encoded.decode()}"
    return summary + _CUT + encoded[-room:].decode("utf-8", "ignore")


def _head(text: str, limit: int) -> str:
    """Returns the beginning of a text, valid as UTF-8, of at most ``limit`` bytes."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - len(_CUT)].decode("utf-8", "ignore") + _CUT
