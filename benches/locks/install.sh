#!/usr/bin/env bash
# Puts the contenders in Java and Go of the measurement of locks into .tools/locks of the repository. Needs a JDK, Maven and Go
# (.ci/setup java go). Does little when all is there and unchanged.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
target="$(cd "$here/../.." && pwd)/.tools/locks"

if ! cmp -s "$here/java/pom.xml" "$target/jars/installed.pom"; then
    rm -rf "$target"
    mkdir -p "$target/jars"
    mvn -q -B -f "$here/java/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$target/jars"
    cp "$here/java/pom.xml" "$target/jars/installed.pom"
fi
if ! [[ $target/classes/Contenders.class -nt $here/java/Contenders.java ]]; then
    javac -Xlint:all,-processing,-classfile -Werror --release 17 -proc:none -cp "$target/jars/*" -d "$target/classes" \
        "$here/java/Contenders.java"
fi
go -C "$here/go" build -o "$target/contenders" .
