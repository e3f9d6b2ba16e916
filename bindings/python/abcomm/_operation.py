"""_operation.py - reductions by a Python function. It gets NumPy arrays; NumPy is imported by the first operation, not by the package."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from abcomm._abcomm import UserOperation, types
from abcomm._arrays import _dtype

if TYPE_CHECKING:
    import numpy as np

Function: TypeAlias = "Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], Any]"


def _dtype_of(number: int) -> np.dtype[Any]:
    name, row = next((name, row) for name, row in types.items() if row[0] == number)
    if row[2] is None:  # a pair with padding behind it
        import numpy as np

        return np.dtype("f8,i4", align=True)
    return _dtype(name)


class Operation(UserOperation):
    """A reduction by a function of the program: function(lower, higher), element by element on NumPy arrays of one dimension.

    `lower` holds the elements of lower ranks and is read-only; pairs have fields f0 and f1. The result is what the function returns, or what it has left in `higher`
    when that is None. It must be associative; unless `commutes`, operands stay in the order of the ranks. All ranks make theirs alike.

    It is called for some thousand elements at a time, with the GIL, by the thread that drives the operation, and must not use the
    package. When it raises, the communicator ends on all ranks with the exception's text, for nobody has the result.
    """

    def __new__(cls, function: Function, commutes: bool = False) -> Self:
        import numpy as np

        dtypes: dict[int, np.dtype[Any]] = {}

        def on_bytes(lower: memoryview, inout: memoryview, number: int) -> None:
            dtype = dtypes.get(number) or dtypes.setdefault(number, _dtype_of(number))
            low, high = (np.frombuffer(view, np.uint8).view(dtype) for view in (lower, inout))
            result = function(low, high)
            if result is not None and result is not high:
                if np.shape(result) not in ((), high.shape):
                    raise ValueError(f"the function made {np.shape(result)} of {high.shape}; it must keep the number of elements")
                high[...] = result

        if not callable(function):
            raise TypeError(f"the function {function!r} cannot be called")
        return super().__new__(cls, on_bytes, commutes)
