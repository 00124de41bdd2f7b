"""What is measured is a release build: `maturin develop --release`."""

from poolplan._core import build_profile

assert build_profile == "release", "measure a release build: maturin develop --release"
