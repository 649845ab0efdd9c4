"""The package as it is installed."""

import dcr


def test_format_version() -> None:
    assert dcr.format_version == 0
