"""The one error tree. Each member is a standard-library error too, named by the boundary it crosses.

Messages tell the user what to do. Our own broken invariants are asserts, and everything else propagates.
"""

from __future__ import annotations


class StereoError(Exception):
    """Base of every error that StereoRL raises on purpose."""


class ConfigError(StereoError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


class RequestError(StereoError, ValueError):
    """A client's request cannot be served. `status` and `code` go into the dialect's error body."""

    def __init__(
        self, message: str, *, status: int = 400, code: str = "invalid_request", param: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class ContextLengthError(RequestError):
    """Prompt plus requested reply do not fit into the model's context."""

    def __init__(self, message: str, *, param: str | None = "messages"):
        super().__init__(message, status=400, code="context_length_exceeded", param=param)


class ModelError(StereoError, RuntimeError):
    """A model or tokenizer cannot be found, verified or loaded."""


class EngineError(StereoError, RuntimeError):
    """The engine failed while generating or scoring."""


class EngineTimeout(EngineError, TimeoutError):
    """A wait on the engine ran out; the message says what was waited for."""


class JudgeError(StereoError, RuntimeError):
    """A judge or hint writer could not be reached, or all its votes abstained; it may be asked again later."""


class TeacherError(StereoError, RuntimeError):
    """A remote teacher could not be reached or answered nonsense; it may be asked again later."""


class StoreError(StereoError, OSError):
    """The store could not be opened, read or written (a full disk, a foreign schema)."""


class NotFoundError(StereoError, LookupError):
    """No such session, turn or version."""


class MisalignedError(StereoError, ValueError):
    """Token ids, log-probs and versions do not line up; the data is refused rather than padded."""


class VersionError(StereoError, RuntimeError):
    """A version cannot be published, promoted or served."""


class ProcessError(StereoError, RuntimeError):
    """A server or learner process could not be started, kept alive or reached."""
