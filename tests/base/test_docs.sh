#!/bin/sh
# test_docs.sh ABCOMM DOCS - the generated pages in DOCS are what ABCOMM prints today.
set -eu
code=0
for page in errors settings; do
    if ! "$1" docs "$page" | cmp -s - "$2/$page.md"; then
        echo "$2/$page.md is out of date: run ./dev docs"
        code=1
    fi
done
exit $code
