#!/usr/bin/env bash
# Puts what the tests of this folder start into .tools/interop of the repository: ElasticJob's jars and the compiled
# sources. Does nothing when all is there and unchanged; installs a JDK and Maven with apt-get when they are missing.
# SIDEKEEPER_ELASTICJOB=DIR: takes the jars of ElasticJob 3.0.5 or newer, and what they need, from there.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
target="$(cd "$here/../.." && pwd)/.tools/interop"

missing=()
command -v javac >/dev/null || missing+=(default-jdk-headless)
command -v mvn >/dev/null || missing+=(maven)
if ((${#missing[@]})); then
    sudo=()
    ((EUID == 0)) || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# Which of the two source folders fits: 3.0.5 moved the kernel's classes to other packages.
if [[ -n ${SIDEKEEPER_ELASTICJOB:-} ]]; then
    flavour=kernel
    jars=$(cd "$SIDEKEEPER_ELASTICJOB" && pwd)
else
    flavour=lite
    jars=$target/jars
    if ! cmp -s "$here/pom.xml" "$jars/installed.pom"; then
        rm -rf "$jars"
        mkdir -p "$jars"
        mvn -q -B -f "$here/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
            -DincludeScope=runtime -DoutputDirectory="$jars"
        cp "$here/pom.xml" "$jars/installed.pom"
    fi
fi

classes=$target/$flavour
mapfile -t sources < <(find "$here/src/main" "$here/src/$flavour" -name '*.java' | sort)
stamp=$(cat "${sources[@]}" "$here/src/$flavour"/resources/META-INF/services/* <(ls "$jars") | sha256sum)
[[ $stamp == "$(cat "$classes/installed.sum" 2>/dev/null)" ]] && exit 0
rm -rf "$classes"
mkdir -p "$classes"
javac -Xlint:all,-processing,-classfile -Werror --release 17 -proc:none -cp "$jars/*" -d "$classes" "${sources[@]}"
cp -r "$here/src/$flavour/resources/." "$classes"
echo "$stamp" >"$classes/installed.sum"
