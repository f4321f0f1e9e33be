# Shared by the scripts: where the tree is, and installing the packages that packages.txt names.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)

say() { printf '\n== %s\n' "$*"; }

# The package names of packages.txt, one a line.
packages() { sed 's/#.*//; s/[[:space:]]*$//; /^$/d' packages.txt; }

# Installs those that are missing. Without apt or without root it says what is missing and goes on:
# a test that needs one of them then says that it was skipped.
install_packages() {
    command -v dpkg-query >/dev/null 2>&1 || { echo "not a Debian system: install by hand: $(packages | tr '\n' ' ')"; return 0; }
    missing=
    for name in $(packages); do
        state=$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null || true)
        [ "$state" = installed ] || missing="$missing $name"
    done
    [ -n "$missing" ] || return 0
    as=
    if [ "$(id -u)" != 0 ]; then
        if sudo -n true 2>/dev/null; then as="sudo -n"; else
            echo "not root, so these packages are not installed and their tests are skipped:$missing"
            return 0
        fi
    fi
    say "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    # Services that come with a package are not to be started or enabled here.
    $as apt-get -qq update
    # shellcheck disable=SC2086
    RUNLEVEL=1 $as apt-get -qq install -y --no-install-recommends $missing >/dev/null
}
