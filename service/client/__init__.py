"""A client with the interface of sentence-transformers: `LLNClient().encode(texts)`.

The folder needs only NumPy and the standard library, and no other module of this package.
"""

from service.client.client import LivingDocument, LLNClient, Vectors
from service.client.connection import LLNClientError, LLNConnectionError

__all__ = ["LLNClient", "LLNClientError", "LLNConnectionError", "LivingDocument", "Vectors"]
