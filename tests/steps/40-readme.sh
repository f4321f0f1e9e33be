#!/bin/sh
# Runs the commands that README.md shows in its ```sh blocks, a line at a time, so that what a newcomer copies works.
# `make test` itself is left out, and so are lines that only a person at a terminal can end (marked `# stop with Ctrl-C`).
set -eu
cd "$(dirname "$0")/../.."
PATH=$(pwd)/target/release:$PATH
export PATH
lines=$(awk '/^```sh$/{on=1; next} /^```/{on=0} on' README.md)
count=0
log=$(mktemp)
trap 'rm -f "$log"; towpath net down --name towpath0 >/dev/null 2>&1 || true' EXIT
# Where not everything is required, a line that needs root or a package that is not there is left out aloud.
runnable() {
    [ "${TOWPATH_REQUIRE:-}" != all ] || return 0
    case $1 in
        'towpath net'*) [ "$(id -u)" = 0 ] ;;
        *) command -v "${1%% *}" >/dev/null 2>&1 ;;
    esac
}
while IFS= read -r line; do
    case $line in
        '' | '#'* | *'make test'* | *'make bench'* | *'make soak'* | *'# stop with Ctrl-C'*) continue ;;
    esac
    if ! runnable "$line"; then
        echo "skipped, needs root or a package: $line"
        continue
    fi
    printf '$ %s\n' "$line"
    if ! timeout 300 sh -c "$line" >"$log" 2>&1 </dev/null; then
        tail -30 "$log"
        echo "README.md: this command fails: $line" >&2
        exit 1
    fi
    count=$((count + 1))
done <<LINES
$lines
LINES
[ "$count" -gt 0 ] || { echo "README.md shows no command" >&2; exit 1; }
echo "$count commands of README.md work"
