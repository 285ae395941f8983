"""The part of the driver `python` that is Python. Each function returns an error in one line, a zero byte, and what was printed."""

import contextlib
import importlib.util
import io
import os
import sys
import traceback

modules = {}


def guarded(act):
    def call(*arguments):
        printed, error = io.StringIO(), ""
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                act(*arguments)
            except BaseException as why:
                traceback.print_exc()
                error = f"{type(why).__name__}: {why}".replace("\0", "?")
        text = printed.getvalue()
        return (error + "\0" + text).encode("utf-8", "replace").decode()

    return call


@guarded
def load(name, path, *attributes):
    # Only the node's own name for it: two modules may come from files of the same name.
    spec = importlib.util.spec_from_file_location("motet_module_" + name, path, submodule_search_locations=None)
    if spec is None:
        raise ImportError("the file's name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    module.motet_attributes = dict(zip(attributes[::2], attributes[1::2]))
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    modules[name] = module


def run(name, function):
    act = getattr(modules[name], function, None)
    code = act() if act is not None else None
    if isinstance(code, int) and code != 0:
        raise RuntimeError(f"{function}() returns {code}")


@guarded
def start(name):
    run(name, "start")


@guarded
def stop(name):
    run(name, "stop")


@guarded
def unload(name):
    module = modules.pop(name)
    sys.modules.pop(module.__name__, None)
