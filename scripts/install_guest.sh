#!/usr/bin/env bash
# Installs what virtual machines of the `qemu` runtime are made of, on Debian and its relatives: QEMU, a
# static busybox, a C compiler, and the kernel for clouds, which is unpacked into this user's cache and
# not installed. Prints why and exits 3 where that cannot be done; nothing else needs any of it.
set -u -o pipefail

CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/venusrl/guest"

skip() { echo "no virtual machines here: $*"; exit 3; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi
}

[ "$(uname -m)" = x86_64 ] || skip "only x86-64 is supported, this is $(uname -m)"

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v busybox >/dev/null || missing+=(busybox-static)
command -v cc >/dev/null || missing+=(gcc libc6-dev)
has_kernel() {
    [ -n "${VENUS_GUEST_KERNEL:-}" ] || compgen -G "$CACHE/kernel/boot/vmlinuz-*" >/dev/null
}
if [ "${#missing[@]}" = 0 ] && has_kernel; then exit 0; fi

command -v apt-get >/dev/null || skip "there is no apt to install ${missing[*]:-a kernel} with"
as_root apt-get update -qq || skip "apt cannot update its lists"
if [ "${#missing[@]}" != 0 ]; then
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
        skip "apt cannot install ${missing[*]}"
fi
has_kernel && exit 0

package="$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: //p' | head -n 1)"
[ -n "$package" ] || skip "this distribution has no package linux-image-cloud-amd64"
mkdir -p "$CACHE"
work="$(mktemp -d "$CACHE/kernel.XXXXXX")"
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get download -qq "$package" 2>/dev/null) || skip "apt cannot download $package"
mkdir "$work/kernel"
dpkg-deb -x "$work"/*.deb "$work/kernel" || skip "cannot unpack $package"
rm -rf "$CACHE/kernel"
mv "$work/kernel" "$CACHE/kernel"
echo "guest kernel: $CACHE/kernel/boot"
