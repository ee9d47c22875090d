"""ACCL-P, a collective communication library, for Python: the back end "accl" of PyTorch is in `accl.torch`."""

from accl.library import Library, find

__all__ = ["Library", "find"]
__version__ = "0.1.0"
