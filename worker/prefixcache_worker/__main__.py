"""What `prefixcache serve` becomes: serve one model.

Exit codes: 0 stopped, 1 cannot serve or is broken, 2 wrong usage, 130 interrupted before it served.
"""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # Above all imports, since one could swallow a KeyboardInterrupt. Until we serve, ending at once loses
    # nothing; from then on the signal asks for a stop in good order.
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))

import asyncio
import logging
import sys
from collections.abc import Sequence

from prefixcache_worker.config import WorkerConfig, load_config
from prefixcache_worker.errors import AuditError, ConfigError, EngineStoppedError
from prefixcache_worker.server.access.access_settings import access_settings


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    try:
        config = load_config(arguments, os.environ)
        logging.basicConfig(
            level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        _serve(config)
    except (AuditError, ConfigError, EngineStoppedError) as error:
        print(f"prefixcache serve: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(config: WorkerConfig) -> None:
    # gRPC would print lines of its own about a busy port, which we answer with one sentence, and torch's
    # profiler two for each recording. Whoever debugs asks for them. Said before gRPC and torch are imported:
    # later it has no effect.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if config.audit and not __debug__:
        raise ConfigError("--audit: python -O leaves out what it checks; start python without it")
    callers = access_settings(config)
    # Here, because torch takes seconds to import: --help and a wrong flag must not wait for it.
    from prefixcache_worker.server.build import Worker, build_worker
    from prefixcache_worker.server.grpc.connections import connection_age
    from prefixcache_worker.server.service import serve_until_signal
    from prefixcache_worker.server.tls import tls_identity

    def announce(address: str, http_address: str | None, worker: Worker) -> None:
        print(f"pool: {worker.pool_size}")
        if http_address is not None:
            scheme = "http" if config.tls_certificate is None else "https"
            print(f"OpenAI-compatible HTTP on {scheme}://{http_address}/v1")
        print(f"listening on {address}", flush=True)

    async def serve() -> None:
        await serve_until_signal(
            config.address,
            callers=callers,
            http_address=config.http_address,
            tls=tls_identity(config.tls_certificate, config.tls_key, config.tls_client_ca),
            connection_age=connection_age(config),
            build=lambda: build_worker(config),
            drain_seconds=config.drain_seconds,
            audit=config.audit,
            announce=announce,
        )
        # All is done. A signal more must not make a failure of it while the interpreter ends.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
