"""`python -m api.main`: serve the gateway on the configured address."""

import uvicorn

from api.app import create_app
from infra import failpoints
from infra.logging import configure
from infra.settings import Settings


def main() -> None:
    """Serve until terminated."""
    settings = Settings.from_env()
    configure("api", settings.log_level)
    failpoints.configure("api")
    uvicorn.run(
        create_app(settings),
        host=settings.api_host,
        port=settings.api_port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=3,
    )


if __name__ == "__main__":
    main()
