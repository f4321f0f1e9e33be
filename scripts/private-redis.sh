#!/bin/sh
# scripts/private-redis.sh: private copies of redis-server, redis-cli and redis-benchmark under target/private/redis,
# with the libraries that this system lacks. Nothing is installed, no root is needed, no service is started.
# Prints the folder of the programs; each is a wrapper that finds its libraries.
. "$(dirname "$0")/lib.sh"
to=$root/target/private/redis
bin=$to/bin
if [ -x "$bin/redis-server" ] && "$bin/redis-server" --version >/dev/null 2>&1; then echo "$bin"; exit 0; fi

# Two builds may come here at once: the second waits for the first.
mkdir -p "$root/target/private"
exec 9>"$root/target/private/.redis.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if [ -x "$bin/redis-server" ] && "$bin/redis-server" --version >/dev/null 2>&1; then echo "$bin"; exit 0; fi

work=$root/target/private/redis.new
rm -rf "$work"
mkdir -p "$work/deb" "$work/tree" "$work/bin"

wrap() { # wrap NAME PROGRAM: a script that starts PROGRAM with the private libraries, wherever the folder lies
    # shellcheck disable=SC2016
    printf '#!/bin/sh\nhere=$(cd "$(dirname "$0")/.." && pwd)\nlib="$here/tree/usr/lib/%s:$here/tree/lib/%s"\nLD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec %s "$@"\n' \
        "$multiarch" "$multiarch" "$2" > "$work/bin/$1"
    chmod 755 "$work/bin/$1"
}

fetch() { # fetch PACKAGE...: into the private root
    command -v apt-get >/dev/null 2>&1 || { echo "apt-get is missing: this needs a Debian system" >&2; exit 1; }
    (cd "$work/deb" && apt-get -qq download "$@" >apt.log 2>&1) || {
        # The lists of packages may be missing; private ones do not touch the system's.
        lists=$work/lists
        mkdir -p "$lists/partial"
        apt-get -qq -o Dir::State::lists="$lists" -o Dir::Cache="$work" update >"$work/deb/apt.log" 2>&1 || true
        (cd "$work/deb" && apt-get -qq -o Dir::State::lists="$lists" -o Dir::Cache="$work" download "$@" >>apt.log 2>&1) || {
            echo "cannot download $*: $(tail -3 "$work/deb/apt.log")" >&2
            exit 1
        }
    }
    for package in "$work"/deb/*.deb; do dpkg -x "$package" "$work/tree"; rm "$package"; done
}

# The package whose library this is; the names of the ones redis is linked against.
provider() {
    case $1 in
        liblzf.so.*) echo liblzf1 ;;
        libjemalloc.so.*) echo libjemalloc2 ;;
        liblua5.1.so.*) echo liblua5.1-0 ;;
        libhiredis.so.*) apt-cache pkgnames libhiredis 2>/dev/null | grep -E '^libhiredis[0-9]' | sort -V | tail -1 ;;
        libatomic.so.*) echo libatomic1 ;;
        libsystemd.so.*) echo libsystemd0 ;;
        libssl.so.3 | libcrypto.so.3) echo libssl3 ;;
        *) echo "no package is known for the library $1" >&2; return 1 ;;
    esac
}

multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -print-multiarch 2>/dev/null || echo "$(uname -m)-linux-gnu")
fetch redis-server redis-tools
library_path=$work/tree/usr/lib/$multiarch:$work/tree/lib/$multiarch
for round in 1 2 3; do
    missing=$(LD_LIBRARY_PATH=$library_path ldd "$work/tree/usr/bin/redis-check-rdb" "$work/tree/usr/bin/redis-benchmark" \
        "$work/tree/usr/bin/redis-cli" 2>/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\) => not found$/\1/p' | sort -u)
    [ -n "$missing" ] || break
    wanted=$(for library in $missing; do provider "$library"; done | sort -u)
    # shellcheck disable=SC2086
    fetch $wanted
done
[ -z "$missing" ] || { echo "these libraries of redis could not be found: $missing" >&2; exit 1; }
# redis-check-rdb is the same file as redis-server (Debian's redis-server is a link to it).
# shellcheck disable=SC2016
for program in redis-cli redis-benchmark redis-check-aof; do wrap $program '"$here/tree/usr/bin/'$program'"'; done
server=$work/tree/usr/bin/redis-check-rdb
[ ! -e "$work/tree/usr/bin/redis-server" ] && ln "$server" "$work/tree/usr/bin/redis-server"
# shellcheck disable=SC2016
wrap redis-server '"$here/tree/usr/bin/redis-server"'
"$work/bin/redis-server" --version >/dev/null
rm -rf "$work/deb" "$work/lists" "$to"
mv "$work" "$to"
echo "$bin"
