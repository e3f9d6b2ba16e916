"""_arrays.py - NumPy arrays in memory that peers read without a copy. NumPy is imported by the first call, not by the package."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from abcomm._abcomm import ArgumentTypeError, Memory, types

if TYPE_CHECKING:
    import numpy as np


def _dtype(dtype: Any) -> np.dtype[Any]:
    """A NumPy dtype, also from the names that only this library ("bf16") or ml_dtypes ("bfloat16") knows."""
    import numpy as np

    name = types[dtype][2] if isinstance(dtype, str) and dtype in types else dtype
    if not isinstance(name, str) or hasattr(np, name):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(name)
    return np.dtype(getattr(ml_dtypes, name, name))


def empty(shape: int | tuple[int, ...], dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """An array with undefined contents in the arena; the memory lives as long as an array refers to it."""
    import numpy as np

    element = _dtype(dtype)
    if element.hasobject:
        raise ArgumentTypeError(f"dtype {element} holds Python objects, which mean nothing to other processes")
    count = math.prod((shape,) if isinstance(shape, int) else shape)
    memory = Memory(max(count * element.itemsize, 0))
    array: np.ndarray[Any, Any] = np.frombuffer(memoryview(memory), np.uint8, count * element.itemsize).view(element).reshape(shape)
    return array


def full(shape: int | tuple[int, ...], value: Any, dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """An array in the arena with one value everywhere."""
    array = empty(shape, dtype)
    array[...] = value
    return array


def zeros(shape: int | tuple[int, ...], dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """An array of zeros in the arena."""
    return full(shape, 0, dtype)


def ones(shape: int | tuple[int, ...], dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """An array of ones in the arena."""
    return full(shape, 1, dtype)
