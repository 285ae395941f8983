# Other ORBs, for the tests and the measuring: steps of scripts/setup, which sources this. Debian has neither. Each does nothing, and needs
# no network, when its files are there; where they cannot be fetched it says so, and the tests skip.
# shellcheck shell=bash

# A file of Maven's central repository, by its ordinary client, which knows the user's mirrors: maven COORDINATES FOLDER
maven() {
    mvn --batch-mode --quiet -Dmaven.repo.local="$TOOLS/maven" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
        -Dartifact="$1" -DoutputDirectory="$2"
}

is_intact() { # is_intact FILE SUM
    [ -f "$1" ] && printf '%s  %s\n' "$2" "$1" | sha256sum --check --status
}

# --- JacORB --------------------------------------------------------------------------------------------------------
# An ORB in Java. Each file with its SHA-256 sum; slf4j-nop keeps the ORB from logging, the last is the run time of the IDL compiler's parser.
jacorb_files() {
    cat <<'END'
cb833df39c6e30caca29f2c244901c2d5566c8c6aac3ea59842024c5f5264ee2 org.jacorb:jacorb:3.9
247f565dfd4b0c1ee54b1e0a6288be84fc66ae961c34715171ca2867c6857447 org.jacorb:jacorb-omgapi:3.9
cc2ff5b6751eb6767a5d3f4e05c330ff6791d04c12609e09cf25459bbba829d7 org.jacorb:jacorb-idl-compiler:3.9
b030a29e088dea60b07c7299d25f43cbd120502e10dcae3f382435ecd5de5ddd org.slf4j:slf4j-api:1.7.14
5059274bb1f70079e65d36fbf4857855145fed5bca045dd4028f7238b6534192 org.slf4j:slf4j-nop:1.7.14
07615653320a010a648d164e77751daddcfea5602148aa4da2f052bc6af0689e org.jboss.spec.javax.rmi:jboss-rmi-api_1.0_spec:1.0.6.Final
e58a2604a85ab985fb94037c889bef90b0c2a862030c03b0e830aa54a4931037 java_cup:java_cup:0.9e
END
}

fetch_jacorb() {
    local sum what file
    mkdir -p "$TOOLS/jacorb"
    while read -r sum what; do
        file=$(cut -d : -f 2,3 --output-delimiter=- <<<"$what").jar
        if is_intact "$TOOLS/jacorb/$file" "$sum"; then continue; fi
        say "fetching $what"
        maven "$what" "$TOOLS/fresh" || skip "JacORB cannot be fetched from Maven's central repository ($what): its tests will skip"
        is_intact "$TOOLS/fresh/$file" "$sum" || { rm -f "$TOOLS/fresh/$file"; say "$file is not the file that is expected here (SHA-256)"; return 1; }
        mv "$TOOLS/fresh/$file" "$TOOLS/jacorb/" # only a whole and right file ever has the name that the tests look for
    done < <(jacorb_files)
    rm -rf "$TOOLS/maven" "$TOOLS/fresh"
    say "JacORB 3.9 is in $TOOLS/jacorb"
}

# --- omniORBpy -----------------------------------------------------------------------------------------------------
# omniORB 4.3, its Python mapping and its C++ headers. There is a wheel for Python 3.10 alone, which Debian 12 has not: files of that
# interpreter come from Maven's repository. Both share a folder, in whose lib/ that interpreter looks for libraries.
OMNIORBPY=4.3.0.post5 OMNIORBPY_SUM=a46aa1a9533498913562a567171823d26e638f79839c7f93b16976f677f00900
CPYTHON=3.10.8-1.5.8 CPYTHON_SUM=2f101b1aa06effdbda3c318c1728b13f22b571707c7b7704abaf5d19a33aa981

install_omniorbpy() {
    local to=$TOOLS/omniorbpy new=$TOOLS/omniorbpy.new stamp="omniorb-py $OMNIORBPY, cpython $CPYTHON" jar wheel
    if [ "$(cat "$to/stamp" 2>/dev/null)" = "$stamp" ]; then say "$stamp: there"; return; fi
    [ "$(uname -m)" = x86_64 ] || skip "omniORBpy is to be had for x86-64 only: its tests will skip, no adapter for omniORB 4.3"
    rm -rf "$new" "$to"
    mkdir -p "$new"
    jar=$new/cpython-$CPYTHON-linux-x86_64.jar
    maven "org.bytedeco:cpython:$CPYTHON:jar:linux-x86_64" "$new" ||
        skip "Python 3.10 cannot be fetched from Maven's central repository: the tests of omniORBpy will skip, no adapter for omniORB 4.3"
    is_intact "$jar" $CPYTHON_SUM || { say "$jar is not the file that is expected here (SHA-256)"; return 1; }
    python3 -m zipfile -e "$jar" "$new"
    mv "$new/org/bytedeco/cpython/linux-x86_64" "$new/all"
    chmod +x "$new/all/bin/python3.10"
    "$new/all/bin/python3.10" -m pip download -q --no-deps --only-binary :all: -d "$new" "omniorb-py==$OMNIORBPY" ||
        skip "omniORBpy cannot be fetched (pip download omniorb-py==$OMNIORBPY): its tests will skip, no adapter for omniORB 4.3"
    wheel=$(echo "$new"/omniorb_py-*.whl)
    is_intact "$wheel" $OMNIORBPY_SUM || { say "$wheel is not the file that is expected here (SHA-256)"; return 1; }
    "$new/all/bin/python3.10" -m pip --isolated install -q --root-user-action ignore --no-compile --no-deps --no-index "$wheel"
    slim_python "$new/all"
    printf '%s\n' "$stamp" >"$new/all/stamp"
    mv "$new/all" "$to"
    rm -rf "$new" "$TOOLS/maven"
}

# Tests copy the folder for an unprivileged user: what no CORBA program needs goes, and modules are compiled once.
slim_python() { # slim_python FOLDER
    local part
    for part in test idlelib turtledemo tkinter lib2to3 ensurepip distutils/tests config-3.10-x86_64-linux-gnu \
        site-packages/{pip,setuptools,pkg_resources,OmniORB,bin,setup.py}; do
        rm -rf "$1/lib/python3.10/$part"
    done
    rm -rf "$1/libjnipython.so" "$1"/lib/{*.a,engines-3,ossl-modules,*.so} "$1"/lib/python3.10/lib-dynload/_{ssl,hashlib}.*
    "$1/bin/python3.10" -m compileall -qq --invalidation-mode unchecked-hash "$1/lib/python3.10"
}
