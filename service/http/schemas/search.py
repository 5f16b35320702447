"""The body of a search."""

from __future__ import annotations

from pydantic import Field

from service.http.schemas.fields import AtLeastOne, Body, Text
from service.index.search import Ways


class SearchBody(Body):
    """A question in words."""

    query: Text
    limit: AtLeastOne = Field(10, description="Most passages in the answer, at most 100.")
    by: Ways = Field("both", description="Whether words, vectors or both find the passages.")
