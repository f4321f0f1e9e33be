#!/bin/sh
# Installs into a folder of its own and makes the Debian package, then looks at what is in them.
set -eu
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make -s install DESTDIR="$folder" PREFIX=/usr
for file in bin/towpath bin/towpath-bench share/man/man1/towpath.1 share/doc/towpath/LICENSE-MIT; do
    [ -f "$folder/usr/$file" ] || { echo "make install left out $file" >&2; exit 1; }
done
"$folder/usr/bin/towpath" --version
"$folder/usr/bin/towpath" bench --list | grep -x clock >/dev/null
if command -v pkg-config >/dev/null 2>&1 && [ -f "$folder/usr/lib/pkgconfig/towpath.pc" ]; then
    PKG_CONFIG_PATH=$folder/usr/lib/pkgconfig pkg-config --exists towpath
fi
if command -v dpkg-deb >/dev/null 2>&1; then
    make -s deb
    dpkg-deb --info target/deb/*.deb | grep "^ Package: towpath$" >/dev/null
    dpkg-deb --contents target/deb/*.deb | grep " ./usr/bin/towpath$" >/dev/null
fi
echo "installed and packaged"
