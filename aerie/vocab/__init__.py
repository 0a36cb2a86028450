"""The reduced vocabulary: counts of supervised tokens, and the map made from them."""
