"""Damage for files that somebody else may have written."""

from hypothesis import strategies as st


def damaged(data: st.DataObject, content: bytes) -> bytes:
    """`content` with some bytes changed, cut off, doubled or swapped; or nothing to do with it."""
    raw = bytearray(content)
    how = data.draw(st.sampled_from(["change", "change", "cut", "repeat", "swap", "other"]))
    places = st.integers(0, max(len(raw) - 1, 0))
    if how == "other":
        return data.draw(st.binary(max_size=64))
    if how == "cut":
        return bytes(raw[: data.draw(places)])
    if how == "repeat":
        at = data.draw(places)
        return bytes(raw[:at] + raw[max(at - 8, 0) :])
    if how == "swap":
        first, second = sorted((data.draw(places), data.draw(places)))
        return bytes(raw[:first] + raw[second : second + 4] + raw[first:second] + raw[second + 4 :])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(places)] = data.draw(st.integers(0, 255))
    return bytes(raw)
