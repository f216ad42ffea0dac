"""Why the sidecar has refused a call or ended a stream: the ``ErrorReason`` in the details of the status.

The details are messages of ``google.rpc``, whose Python code is in a package that the library does without. So the
three fields of them that count are declared here, in a pool of their own, which knows nothing of that package.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

__all__ = ["details_of", "reason_of"]

#: The domain of the reasons that ``ErrorReason`` lists.
DOMAIN = "sidekeeper"

_DETAILS_KEY = "grpc-status-details-bin"
_ERROR_INFO = "/google.rpc.ErrorInfo"

_FILE = """
name: "sidekeeper/reason.proto" package: "sidekeeper.reason" syntax: "proto3"
message_type {
  name: "Status"
  field { name: "details" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".sidekeeper.reason.Any" }
}
message_type {
  name: "Any"
  field { name: "type_url" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES }
}
message_type {
  name: "ErrorInfo"
  field { name: "reason" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "domain" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
}
"""

_pool: Any = descriptor_pool.DescriptorPool()
_pool.Add(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()))
_Status: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("sidekeeper.reason.Status"))
_ErrorInfo: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("sidekeeper.reason.ErrorInfo"))


def reason_of(error: grpc.RpcError) -> str:
    """Returns the reason, as in ``ErrorReason`` without its prefix. Empty: the sidecar has given none."""
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailing:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return _decoded(value)
    return ""


def details_of(reason: str) -> tuple[str, bytes]:
    """Returns the trailing metadata from which ``reason_of`` reads this reason."""
    info = _ErrorInfo(reason=reason, domain=DOMAIN).SerializeToString()
    status = _Status(details=[{"type_url": f"type.googleapis.com{_ERROR_INFO}", "value": info}])
    return _DETAILS_KEY, status.SerializeToString()


def _decoded(status: bytes) -> str:
    try:
        for detail in _Status.FromString(status).details:
            if detail.type_url.endswith(_ERROR_INFO):
                info = _ErrorInfo.FromString(detail.value)
                if info.domain == DOMAIN:
                    return str(info.reason)
    except DecodeError:
        pass  # it is not a sidecar's
    return ""
