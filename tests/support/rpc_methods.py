"""Every call that the protos name."""

from __future__ import annotations

from google.protobuf.descriptor import MethodDescriptor

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.server.cache_servicer import CacheServicer
from prefixcache_worker.server.inference_servicer import InferenceServicer

METHODS: list[MethodDescriptor] = [
    method
    for file in (inference_pb2, cache_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
_SERVICERS = {"InferenceService": InferenceServicer, "CacheService": CacheServicer}
SERVED = [method for method in METHODS if method.name in vars(_SERVICERS[method.containing_service.name])]
