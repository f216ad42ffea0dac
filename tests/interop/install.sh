#!/usr/bin/env bash
# Puts ElasticJob's jars and the compiled sources of this folder into .tools/interop of the repository. Does nothing when all
# is there and unchanged; installs a JDK and Maven with apt-get when they are missing.
# SIDEKEEPER_ELASTICJOB=DIR: takes the jars of ElasticJob 3.0.5 or newer, and the jars that they need, from that folder. The jars
# of 3.0.5 have to be those of elasticjob-3.0.5.sha256.
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

# Compares a folder's jars with the digests of this repository, if they are those of ElasticJob 3.0.5.
check_digests() {
    local digests=$here/elasticjob-3.0.5.sha256 problem
    [[ -n $(find "$1" -maxdepth 1 -name 'elasticjob-*-3.0.5.jar' -print -quit) ]] || return 0
    if ! problem=$(cd "$1" && sha256sum --check --quiet --strict "$digests" 2>&1); then
        printf 'install: %s is not the ElasticJob 3.0.5 of %s:\n%s\n' "$1" "$digests" "$problem" >&2
        exit 1
    fi
    # All jars of the folder are on the classpath.
    if ! problem=$(diff <(cut -c 67- "$digests" | sort) <(cd "$1" && printf '%s\n' *.jar | sort)); then
        printf 'install: %s has other jars than %s:\n%s\n' "$1" "$digests" "$problem" >&2
        exit 1
    fi
}

# Which of the two source folders fits: 3.0.5 moved the kernel's classes to other packages.
if [[ -n ${SIDEKEEPER_ELASTICJOB:-} ]]; then
    flavour=kernel
    jars=$(cd "$SIDEKEEPER_ELASTICJOB" && pwd)
    check_digests "$jars"
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
