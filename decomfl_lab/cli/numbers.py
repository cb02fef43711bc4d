"""Numbers as people type them."""


def integer(text: str) -> int:
    """1206590, 1_206_590 or 1e6; ValueError for what is no integer."""
    if "e" not in text.lower():
        return int(text)
    number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)
