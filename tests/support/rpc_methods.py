"""Every call that the protos name."""

from __future__ import annotations

from google.protobuf.descriptor import MethodDescriptor

from prefixcache.v1 import cache_pb2, diagnosis_pb2, inference_pb2

METHODS: list[MethodDescriptor] = [
    method
    for file in (inference_pb2, cache_pb2, diagnosis_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
