#!/usr/bin/env bash
# Apptainer on Debian 12 and 13, for tests, from the mirror that this machine uses.
#
# Debian packages it in unstable alone, and a plain install from there would draw a new C library
# into a stable machine. So the package is fetched with a state of apt of its own and unpacked. Where
# the machine's C library is too old (Debian 12), the two programs get unstable's in their own folder.
set -euo pipefail

if apptainer --version 2> /dev/null; then exit 0; fi
((EUID == 0)) || { echo "install-apptainer: that takes root: sudo $0" >&2; exit 1; }
fail() { echo "install-apptainer: $*" >&2; exit 1; }

arch=$(dpkg --print-architecture)
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2> /dev/null || echo "$(uname -m)-linux-gnu")
private=/usr/local/lib/apptainer-libc
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export DEBIAN_FRONTEND=noninteractive

apt-get update -qq
apt-get install -y -qq --no-install-recommends ca-certificates patchelf uidmap \
  squashfs-tools squashfuse libseccomp2 libsqlite3-0 < /dev/null > /dev/null

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/$') \
  || fail 'the sources of apt name no Debian mirror'
mkdir -p "$scratch"/state/lists/partial "$scratch"/cache/archives/partial
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" \
  > "$scratch/sources.list"
# A mirror may lag behind by weeks; the signature of what it serves is checked all the same.
unstable() {
  apt-get -qq -o Dir::Etc::sourcelist="$scratch/sources.list" -o Dir::Etc::sourceparts=- \
    -o Dir::State::lists="$scratch/state/lists" -o Dir::Cache="$scratch/cache" \
    -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false "$@"
}
cd "$scratch"
unstable update || fail "the mirror $mirror serves no unstable"
unstable download apptainer || fail "unstable has no package apptainer for $arch today"
dpkg -x apptainer_*.deb package
mkdir -p "/usr/lib/$triplet/apptainer" /var/lib/apptainer/mnt/session
cp -a package/etc/apptainer /etc/
cp -a "package/usr/lib/$triplet/apptainer/." "/usr/lib/$triplet/apptainer/"
cp -a package/usr/bin/apptainer /usr/bin/

if ! apptainer --version > /dev/null 2>&1; then
  unstable download libc6
  dpkg -x libc6_*.deb libc
  mkdir -p "$private"
  find libc/usr/lib libc/lib -name '*.so.*' -exec cp -a {} "$private/" \; 2> /dev/null || true
  loader=$(find "$private" -name 'ld-linux*.so.*' | head -n 1)
  [ -n "$loader" ] || fail 'the C library of unstable has no loader where it was looked for'
  for program in /usr/bin/apptainer "/usr/lib/$triplet/apptainer/bin/starter"; do
    patchelf --set-interpreter "$loader" --set-rpath "$private:/usr/lib/$triplet" "$program"
  done
fi

# A machine may keep capabilities from root, and Apptainer would ask for all of them; builds run in a
# user namespace (--fakeroot), which needs subordinate ids.
apptainer config global --set 'root default capabilities' no
for file in /etc/subuid /etc/subgid; do
  grep -qs '^root:' "$file" || echo 'root:100000:65536' >> "$file"
done
apptainer --version
