"""Strategies for values of the codec's closed set."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sparkstorm.common.model.values.codec import INT_MAX, INT_MIN

whole_numbers = st.integers(INT_MIN, INT_MAX)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | whole_numbers
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=20)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(scalars, inner, max_size=4)
    ),
    max_leaves=12,
)
