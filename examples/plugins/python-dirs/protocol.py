"""The messages and the services of the wire, made from descriptors.binpb at start.

That file is a FileDescriptorSet, which pannier's build makes of its protobuf files. Code that protoc generates works
with some versions of the protobuf package only, and has to be generated on each change; descriptors work with all
versions, and nobody needs protoc.
"""

import pkgutil
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_pool = descriptor_pool.DescriptorPool()

if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22 and later
    message_class = message_factory.GetMessageClass
else:
    message_class = message_factory.MessageFactory(_pool).GetPrototype


def load(name: str) -> None:
    """Adds the files of a FileDescriptorSet, which lies beside this module."""
    for file in descriptor_pb2.FileDescriptorSet.FromString(pkgutil.get_data(__name__, name)).file:
        _pool.AddSerializedFile(file.SerializeToString())


def package(path: str) -> Any:
    """Returns a file's message classes, enum values and services, by name."""
    file = _pool.FindFileByName(path)
    return SimpleNamespace(
        **{name: message_class(descriptor) for name, descriptor in file.message_types_by_name.items()},
        **{value.name: value.number for enum in file.enum_types_by_name.values() for value in enum.values},
        **file.services_by_name,
    )


load("descriptors.binpb")
plugin = package("pannier/plugin/v1/plugin.proto")
events = package("pannier/plugin/v1/events.proto")
host = package("pannier/plugin/v1/host.proto")
storage = package("pannier/plugin/storage/v1/storage.proto")
frontend = package("pannier/plugin/frontend/v1/frontend.proto")
