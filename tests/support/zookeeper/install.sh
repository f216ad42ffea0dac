#!/usr/bin/env bash
# Puts the jars of the ZooKeeper server that the tests start into .tools/zookeeper of the repository.
# Does nothing when they are there already; installs Java and Maven with apt-get when they are missing.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
target="$(cd "$here/../../.." && pwd)/.tools/zookeeper"
stamp="$target/installed.pom"

if cmp -s "$here/pom.xml" "$stamp"; then
    exit 0
fi

missing=()
command -v java >/dev/null || missing+=(default-jre-headless)
command -v mvn >/dev/null || missing+=(maven)
if ((${#missing[@]})); then
    sudo=()
    ((EUID == 0)) || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

rm -rf "$target"
mkdir -p "$target"
mvn -q -B -f "$here/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$target"
cp "$here/pom.xml" "$stamp"
