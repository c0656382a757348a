"""A config.json, whose values may be anything."""

from __future__ import annotations

from typing import Any

#: No size of a model is as large.
_LIMIT = 2**32


class Config:
    """A config.json. A key that is needed and not there, or is no size, raises KeyError."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def __getitem__(self, key: str) -> int:
        value = self.number(key)
        if not value:
            raise KeyError(key)
        return value

    def number(self, key: str, default: int = 0) -> int:
        """A number that may be missing; null is missing."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LIMIT:
            raise KeyError(key)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """What is true or false, and may be missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise KeyError(key)
        return default if value is None else value

    def items(self, key: str) -> list[Any]:
        """A list that may be missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise KeyError(key)
        return value or []

    @property
    def width(self) -> int:
        """The width of a head."""
        given = self.number("head_dim")
        return given or max(1, self["hidden_size"] // self["num_attention_heads"])

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.number("num_key_value_heads") or self["num_attention_heads"]

    def kind(self, layer: int) -> str:
        """The kind of a layer, where the config lists them."""
        kinds = self.items("layer_types")
        return str(kinds[layer]) if layer < len(kinds) else "full_attention"
