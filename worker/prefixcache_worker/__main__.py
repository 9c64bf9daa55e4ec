"""`python -m prefixcache_worker`: serve one model. Exit codes: 0 stopped, 1 cannot serve, 2 wrong usage."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from prefixcache_worker.config import WorkerConfig, load_config
from prefixcache_worker.errors import ConfigError, EngineStoppedError


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    try:
        config = load_config(arguments, os.environ)
        logging.basicConfig(
            level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        _serve(config)
    except (ConfigError, EngineStoppedError) as error:
        print(f"prefixcache_worker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while the model was loading; later it stops the server in good order
        return 130
    return 0


def _serve(config: WorkerConfig) -> None:
    # gRPC would print its own lines about a busy port, which we answer with one sentence.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Here, because torch takes seconds to import: --help and a wrong flag must not wait for it.
    from prefixcache_worker.server.build import Worker, build_worker
    from prefixcache_worker.server.service import serve_until_signal

    def announce(address: str, worker: Worker) -> None:
        print(f"pool: {worker.pool_size}")
        print(f"listening on {address}", flush=True)

    asyncio.run(
        serve_until_signal(
            config.address,
            build=lambda: build_worker(config),
            drain_seconds=config.drain_seconds,
            announce=announce,
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
