#!/bin/sh
# Downloads a release of Sluicegate, verifies it, and installs the sidecar and the filter:
#   install.sh VERSION [ADDRESS]
# ADDRESS is where the release's files are, by default on GitHub. The files are /usr/local/bin/sluicegate and
# /usr/local/lib/sluicegate/sluicegate.wasm; with PREFIX=FOLDER they are in FOLDER instead of /usr/local.
# An archive that does not match SHA256SUMS is refused, and so is one that GitHub has not attested, where `gh` is installed.
# The units for systemd are in the archive: docs/install/host.md.
set -eu
repository=sluicegate/sluicegate

fail() { echo "install: $1; nothing is installed" >&2; exit 1; }

# fetch NAME: downloads a file of the release into the current folder.
fetch() {
  curl --fail --silent --show-error --location --output "$1" "$address/$1" || fail "cannot download $address/$1"
}

# put MODE FILE TARGET: renames it into place, because a sidecar or an Envoy may have the old one open.
put() {
  install -D -m "$1" "$2" "$3.new"
  mv -f "$3.new" "$3"
}

# In a function, so that a script that is cut off on its way does nothing.
main() {
  [ $# = 1 ] || [ $# = 2 ] || { echo "usage: install.sh VERSION [ADDRESS]" >&2; exit 64; }
  version=${1#v}
  address=${2:-https://github.com/$repository/releases/download/v$version}
  prefix=${PREFIX:-/usr/local}
  case $address in
    https://* | http://127.0.0.1:* | file:///*) ;;
    *) fail "the address must begin with https://" ;;
  esac
  case $(uname -sm) in
    'Linux x86_64') architecture=amd64 ;;
    'Linux aarch64') architecture=arm64 ;;
    *) fail "there is no release for $(uname -sm)" ;;
  esac
  case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  cd "$folder"

  name=sluicegate-$version-linux-$architecture
  archive=$name.tar.gz
  fetch SHA256SUMS
  grep -F "  $archive" SHA256SUMS >expected || fail "SHA256SUMS has no $archive"
  fetch "$archive"
  sha256sum --check --strict --status expected || fail "$archive does not match SHA256SUMS"
  if command -v gh >/dev/null; then
    bundle=sluicegate-$version-attestation.json
    fetch "$bundle"
    gh attestation verify "$archive" --bundle "$bundle" --repo "$repository" >&2 \
      || fail "$archive has no valid attestation of $repository"
  else
    echo "install: the checksum is right; who built the archive is not verified, because gh is not installed" >&2
  fi

  tar -xzf "$archive"
  "$name/sluicegate" --version >/dev/null || fail "$archive has no program that runs here"
  [ -f "$name/sluicegate.wasm" ] || fail "$archive has no filter"
  put 755 "$name/sluicegate" "$prefix/bin/sluicegate"
  put 644 "$name/sluicegate.wasm" "$prefix/lib/sluicegate/sluicegate.wasm"
  echo "install: $("$prefix/bin/sluicegate" --version) in $prefix/bin, the filter in $prefix/lib/sluicegate"
}
main "$@"
