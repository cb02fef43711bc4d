#!/bin/sh
# Fetch an emulator of ARM's 64-bit processors, and a Python and numpy for them, into a folder: nothing of the system
# changes. It needs Debian's apt-get and pip.   usage: sh tests/anywhere/aarch64.sh FOLDER PIP
set -eu
command -v apt-get >/dev/null || { echo "no apt-get here: nothing is tried on ARM" >&2; exit 1; }
mkdir -p "$1"
cd "$1"
[ -x root/usr/bin/python3.11 ] && [ -d site/numpy ] && exit 0
here=$PWD
mkdir -p lists/partial cache/archives/partial root host
: > status
fetch="apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::lists=$here/lists
  -o Dir::Cache=$here/cache -o Dir::State::status=$here/status -o Debug::NoLocking=1 -o APT::Sandbox::User=root"
$fetch update
# Of an empty system, so that all that these need is fetched, too.
$fetch install --download-only --yes --no-install-recommends python3.11 libstdc++6
for package in cache/archives/*.deb; do dpkg -x "$package" root; done
apt-get -qq update
apt-get -qq -o APT::Sandbox::User=root download qemu-user-static
dpkg -x qemu-user-static_*.deb host
rm -rf lists cache qemu-user-static_*.deb
"$2" install --quiet --disable-pip-version-check --target site --python-version 3.11 --implementation cp \
  --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
  --only-binary=:all: numpy lazy_loader filelock
