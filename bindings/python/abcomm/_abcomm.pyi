"""Types of the extension; src/*.c define what is declared here."""
import builtins
from collections.abc import Callable, Generator, Iterable
from typing import Any, ClassVar, Final, Self, SupportsIndex

Callback = Callable[[Error | None], object]

version: Final[str]
# name: (number, bytes of an element, NumPy's or ml_dtypes' name or None)
types: Final[dict[str, tuple[int, int, str | None]]]
ops: Final[dict[str, int]]
collectives: Final[dict[str, int]]

class Error(Exception):
    status: ClassVar[str]
    code: ClassVar[int]

class ArgumentError(Error, ValueError): ...
class ArgumentTypeError(ArgumentError, TypeError): ...
class HandleError(Error, RuntimeError): ...
class OutOfMemoryError(Error, MemoryError): ...
class SystemCallError(Error): ...
class LaunchError(Error, RuntimeError): ...
class AddressError(Error, ValueError): ...
class AuthenticationError(Error): ...
class TimeoutError(Error, builtins.TimeoutError): ...
class PeerError(Error, ConnectionError): ...
class MismatchError(Error): ...
class AbortedError(Error): ...
class StateError(Error, RuntimeError): ...
class UnsupportedError(Error, NotImplementedError): ...
class PlanError(Error, ValueError): ...
class VersionError(Error): ...
class InternalError(Error): ...

class Memory:
    def __init__(self, nbytes: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class ScaledSum:
    def __init__(self, scalar: Any) -> None: ...

class Received(tuple[int, int, int]):
    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def count(self) -> int: ...  # type: ignore[override]  # hides the method of tuple

class Request:
    def start(self) -> Self: ...
    def test(self) -> bool: ...
    def wait(self) -> Any: ...
    def __await__(self) -> Generator[None, None, Any]: ...
    @property
    def active(self) -> bool: ...
    @property
    def communicator(self) -> Communicator: ...

class Completions:
    def add(self, request: Request, item: object, /) -> None: ...
    def put(self, item: object, /) -> None: ...
    def take(self, seconds: float = -1.0, /) -> Any: ...

class Communicator:
    def __init__(
        self,
        rank: int = -1,
        size: int = 0,
        address: str | None = None,
        key: bytes | str | None = None,
        exchange: object = None,
        connect_timeout: float = 0.0,
        timeout: float = 0.0,
        progress_thread: int = -1,
    ) -> None: ...
    def run(
        self,
        collective: int | str,
        array: Any = None,
        out: Any = None,
        op: int | str | ScaledSum | None = None,
        root: int | None = None,
        timeout: float | None = None,
        algorithm: str | None = None,
        tag: int | None = None,
        preserve: bool | None = None,
        callback: None = None,
        in_counts: Iterable[SupportsIndex] | None = None,
        in_offsets: Iterable[SupportsIndex] | None = None,
        out_counts: Iterable[SupportsIndex] | None = None,
        out_offsets: Iterable[SupportsIndex] | None = None,
    ) -> Any: ...
    def start(
        self,
        collective: int | str,
        array: Any = None,
        out: Any = None,
        op: int | str | ScaledSum | None = None,
        root: int | None = None,
        timeout: float | None = None,
        algorithm: str | None = None,
        tag: int | None = None,
        preserve: bool | None = None,
        callback: Callback | None = None,
        in_counts: Iterable[SupportsIndex] | None = None,
        in_offsets: Iterable[SupportsIndex] | None = None,
        out_counts: Iterable[SupportsIndex] | None = None,
        out_offsets: Iterable[SupportsIndex] | None = None,
    ) -> Request: ...
    def prepare(
        self,
        collective: int | str,
        array: Any = None,
        out: Any = None,
        op: int | str | ScaledSum | None = None,
        root: int | None = None,
        timeout: float | None = None,
        algorithm: str | None = None,
        tag: int | None = None,
        preserve: bool | None = None,
        callback: Callback | None = None,
        in_counts: Iterable[SupportsIndex] | None = None,
        in_offsets: Iterable[SupportsIndex] | None = None,
        out_counts: Iterable[SupportsIndex] | None = None,
        out_offsets: Iterable[SupportsIndex] | None = None,
    ) -> Request: ...
    def explain(
        self,
        collective: int | str,
        array: Any = None,
        out: Any = None,
        op: int | str | ScaledSum | None = None,
        root: int | None = None,
        timeout: float | None = None,
        algorithm: str | None = None,
        tag: int | None = None,
        preserve: bool | None = None,
        callback: None = None,
        in_counts: Iterable[SupportsIndex] | None = None,
        in_offsets: Iterable[SupportsIndex] | None = None,
        out_counts: Iterable[SupportsIndex] | None = None,
        out_offsets: Iterable[SupportsIndex] | None = None,
    ) -> str: ...
    def split(self, color: int, key: int = 0) -> Self | None: ...
    def load_plan(self, text: str, check: bool = True) -> None: ...
    def abort(self, reason: str | None = None) -> None: ...
    def close(self) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def status(self) -> str: ...
    @property
    def error(self) -> str: ...

def _end_all() -> None: ...
