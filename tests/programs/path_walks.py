"""Random paths with links, `..`, `.` and double slashes, in, out of and across the folder argv[1], from random current directories. Prints what each path is."""

import os
import random
import sys

top = sys.argv[1]
above = os.path.dirname(top)
rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
inside = ["", "a", "a/b", "a/b/c", "d", "d/e"]
outside = ["o", "o/p"]
for name in inside[1:]:
    os.mkdir(f"{top}/{name}")
for name in outside:
    os.mkdir(f"{above}/{name}")
folders = [f"{top}/{name}".rstrip("/") for name in inside] + [f"{above}/{name}" for name in outside] + [above]
files = []
for number, folder in enumerate(folders[:-1]):
    files.append(f"{folder}/f{number}")
    with open(files[-1], "w", encoding="ascii") as file:
        file.write(str(number))
links = []
for number in range(24):
    at, to = rng.choice(folders[:-1]), rng.choice(folders + files + links + [f"{top}/none"])
    # The kernel follows a relative link out of the real folder.
    relative = rng.random() < 0.5 and (at.startswith(top) == to.startswith(top) or not at.startswith(top))
    text = os.path.relpath(to, at) if relative else to
    if rng.random() < 0.2:
        text += "/" + rng.choice([".", "a", ""] if relative and at.startswith(top) else [".", "..", "a", ""])
    links.append(f"{at}/l{number}")
    os.symlink(text, links[-1])

names = ["a", "b", "c", "d", "e", "o", "p", "..", "..", "..", ".", "", os.path.basename(top)] + [f"l{n}" for n in range(24)] + [f"f{n}" for n in range(8)]


def random_path():
    steps = [rng.choice(names) for _ in range(rng.randint(1, 6))]
    kind = rng.random()
    if kind < 0.5:
        return "/".join(steps).lstrip("/") or "."
    return "/".join([rng.choice(folders + links)] + steps)


def shown(path):
    return path.replace(top, "TOP").replace(above, "ABOVE").replace(os.path.dirname(above), "HIGHER")


def tell(what, call):
    try:
        result = call()
    except OSError as error:
        result = os.strerror(error.errno)
    print(" ", what, shown(str(result)))


def content(path):
    with open(path, encoding="ascii") as file:
        return file.read()


def made(path):
    if not os.path.realpath(path).startswith(above):
        return "elsewhere"
    os.mkdir(path + "/new")
    # A list of the folder above does not show the prefix.
    held = [name for name in sorted(os.listdir(path)) if name != os.path.basename(top)]
    os.rmdir(path + "/new")
    return held


for number in range(400):
    if number % 8 == 0:
        try:
            os.chdir(rng.choice(folders + links))
        except OSError:
            os.chdir(top)
        print(shown(os.getcwd()))
    path = random_path()
    print(shown(path))
    tell("mode", lambda: oct(os.stat(path).st_mode))
    tell("own mode", lambda: oct(os.lstat(path).st_mode))
    tell("content", lambda: content(path))
    tell("folder", lambda: made(path))
    tell("text", lambda: os.readlink(path))
    tell("real", lambda: os.path.realpath(path, strict=True))
    if rng.random() < 0.1:
        fd = os.open(rng.choice(folders), os.O_RDONLY)
        tell("at", lambda: oct(os.stat(path, dir_fd=fd).st_mode))
        os.close(fd)
