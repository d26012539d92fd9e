"""Opens what the commands that look and change need, with a message that helps when it is not there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stereorl.config import Config
from stereorl.errors import NotFoundError, VersionError

if TYPE_CHECKING:
    from stereorl.store.store import Store
    from stereorl.store.versions import Versions


@contextmanager
def opened(config: Config) -> Iterator[Store]:
    """The existing store of this home; it is closed afterwards."""
    if config.store.url is None and not (config.home_path / "stereorl.db").exists():
        raise NotFoundError(
            f"Nothing is stored in {config.home_path}. Start with 'stereorl up', or give the folder with --home."
        )
    from stereorl.store.store import Store

    store = Store.open(config.store_url)
    try:
        yield store
    finally:
        store.close()


def versions_of(config: Config) -> Versions:
    from stereorl.store.versions import Versions

    return Versions(config.versions_path)


def current_of(versions: Versions) -> int | None:
    """The number that serves; None, and a warning, when that cannot be told."""
    try:
        return versions.current()
    except VersionError as error:
        logging.getLogger(__name__).warning("%s", error)
        return None
