# Does a test notice when the code is made wrong? Read by `run`, whose words are used here.
#
# Each patch beside this file makes one rule of `src` wrong. Its head says what it `breaks:` and, one a line, which tests must go `red:`, as the
# target they are in and their name. All of them must, and must be green without the patch. Quick ones come first: the rotation looks at no others.

# What stands at a key in the head of a patch file.
head_of() { sed -n "/^diff /q; s/^$2: *//p" "$1"; }

# What is built and done within seconds.
quick='^--(lib|test (group|vectors|transcripts)) '
# What needs no servers.
alone='^--(lib|test (group|vectors|transcripts|sim|check|registry|scripts|fuzz|demo)) '

# The tests of a patch that count here: in the rotation only the quick ones.
reds_of() { if [ "$reach" = quick ]; then head_of "$1" red | grep -E "$quick" || true; else head_of "$1" red; fi; }

# The lines `target test` of these patches, each once.
tests_of() {
    local patch
    for patch in "$@"; do reds_of "$patch"; done | awk '!seen[$0]++ { name = $NF; $NF = ""; sub(/ +$/, ""); print $0 "\t" name }'
}

wants_servers() { reds_of "$1" | grep -qvE "$alone"; }

# A copy of the working tree as it is. What is the same stays untouched, so that only what differs is built again, and what differs becomes
# new: a file that went back to an old time would not be built.
copy_tree() {
    local file
    mkdir -p "$tree"
    git -C "$top" ls-files -z --cached --others --exclude-standard >"$work/files"
    while IFS= read -r -d '' file; do
        [ -f "$top/$file" ] || continue
        cmp -s "$top/$file" "$tree/$file" && continue
        mkdir -p "$tree/$(dirname "$file")"
        cp "$top/$file" "$tree/$file"
    done <"$work/files"
    (cd "$tree" && find . -type f -print0) | while IFS= read -r -d '' file; do
        [ -f "$top/${file#./}" ] || rm "$tree/$file"
    done
}

# The copy is no repository, nor part of that around it.
apply() { (cd "$tree" && GIT_CEILING_DIRECTORIES=$work git apply "$@"); }

# What others made is built already if it was built for the tests. Only links are made: none of these files is written again.
borrow_builds() {
    local built=${CARGO_TARGET_DIR:-$top/target}/debug
    [ ! -e "$work/target" ] && [ -e "$built/build" ] || return 0
    mkdir -p "$work/target/debug"
    cp -al "$built/deps" "$built/build" "$built/.fingerprint" "$work/target/debug/"
    rm -rf "$work"/target/debug/{deps,build,.fingerprint}/{,lib}evenkeel-*
}

# Runs these lines `target test` in the copy, one command a target; what was said is in $log.
#
# Simulated are those seeds of `run tests` that are always the same: what is caught here is caught there, whatever the commit.
run_tests() {
    local target name names features
    : >"$log"
    while IFS= read -r target; do
        names=()
        while IFS= read -r name; do names+=("$name"); done < <(awk -F '\t' -v of="$target" '$1 == of { print $2 }' <<<"$1")
        features=testing
        [ "$target" != "--test demo" ] || features=cli
        # shellcheck disable=SC2086  # one word an argument
        (cd "$tree" && CARGO_TARGET_DIR=$work/target EVENKEEL_SEED=300 EVENKEEL_FIXED=300 EVENKEEL_SEEDS=0 EVENKEEL_CHAOS_SEED=1 \
            timeout --kill-after 10 1200 \
            cargo test --locked --features $features --no-fail-fast $target -- --exact "${names[@]}") </dev/null >>"$log" 2>&1 || true
    done < <(cut -f 1 <<<"$1" | sort -u)
}

# Prints those of these lines whose test did not end with the word $2.
others_than() {
    local target name
    while IFS=$'\t' read -r target name; do
        grep -qE "^test ${name//./\\.} \.\.\. $2\$" "$log" || echo "$name"
    done <<<"$1"
}

# Applies one patch, runs what must go red and takes the patch back. Prints nothing if all went red, else what is wrong.
try_patch() {
    local tests missed
    tests=$(tests_of "$1")
    apply "$1" 2>"$log" || { echo "does not apply"; return; }
    run_tests "$tests"
    apply -R "$1"
    if grep -q '^error: could not compile' "$log"; then echo "does not compile"; return; fi
    missed=$(others_than "$tests" FAILED | paste -sd ' ')
    [ -z "$missed" ] || echo "NOT CAUGHT by $missed"
}

# From a ring of the patches that a quick test notices, so many, beginning where the id says.
in_turn() {
    local id=$1 count=$2 ring=() patch at
    for patch in "$beside"/*.patch; do [ -z "$(reds_of "$patch")" ] || ring+=("$patch"); done
    at=$(cksum <<<"$id" | cut -d ' ' -f 1)
    for ((; count > 0 && count <= ${#ring[@]}; count--, at++)); do chosen+=("${ring[at % ${#ring[@]}]}"); done
}

choose() {
    local number found
    if [ "${1:-}" = --rotate ]; then
        [[ ${3:-3} =~ ^[0-9]+$ && $# -le 3 ]] || refuse "--rotate wants an id and a count"
        reach=quick
        in_turn "${2:-$(git -C "$top" rev-parse HEAD)}" "${3:-3}"
    elif [ $# = 0 ]; then
        chosen=("$beside"/*.patch)
    fi
    for number in "$@"; do
        [ "$number" = --rotate ] && break
        found=("$beside/$number"-*.patch)
        [ -e "${found[0]}" ] || refuse "there is no sabotage $number"
        chosen+=("${found[@]}")
    done
    [ ${#chosen[@]} -gt 0 ] || refuse "no sabotage was chosen"
}

sabotages() {
    beside=$top/tests/sabotage work=${CARGO_TARGET_DIR:-$top/target}/sabotage
    tree=$work/tree log=$work/log
    local chosen=() patch number begun wrong missed caught=0 table='' lock reach=all
    choose "$@"
    for patch in "${chosen[@]}"; do if wants_servers "$patch"; then need_servers; export EVENKEEL_CACHE=$cache; break; fi; done
    mkdir -p "$work"
    exec {lock}>"$work/lock"
    flock "$lock"
    borrow_builds
    copy_tree
    for patch in "$beside"/*.patch; do apply --check "$patch" || reds+=("$(basename "$patch") does not apply"); done

    step "without a patch"
    begun=$SECONDS
    run_tests "$(tests_of "${chosen[@]}")"
    missed=$(others_than "$(tests_of "${chosen[@]}")" ok | paste -sd ' ')
    [ -z "$missed" ] || { cat "$log" >&2; reds+=("red without a patch: $missed"); return; }
    say "green, $((SECONDS - begun)) s"

    for patch in "${chosen[@]}"; do
        number=$(basename "$patch" .patch)
        step "$number"
        begun=$SECONDS
        wrong=$(try_patch "$patch")
        cp "$log" "$work/$number.log"
        if [ -z "$wrong" ]; then caught=$((caught + 1)); else say "$wrong: $work/$number.log"; reds+=("$number"); fi
        table+="$number"$'\t'"${wrong:-$(tests_of "$patch" | cut -f 2 | paste -sd ' ')}"$'\t'"$((SECONDS - begun))"$'\n'
    done
    step "sabotages"
    printf '%s' "$table" | awk -F '\t' '{ n = split($2, tests, " "); if ($2 ~ /^(NOT|does)/) { tests[1] = $2; n = 1 }
        for (i = 1; i <= n; i++) printf "%-44s %4s  %s\n", (i == 1 ? $1 : ""), (i == 1 ? $3 " s" : ""), tests[i] }'
    say "$caught of ${#chosen[@]} caught"
}
