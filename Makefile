# Motet's front door. Each target is a script in scripts/, which says what it does; `make` alone lists them.
#
# V=1 shows the full output of every step; otherwise it is in target/logs/.

SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=
V ?= 0
ARGS ?=
export V

# Steps print their own progress and failures; two of them must not write over one another.
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help setup build test torture demo bench install uninstall man fmt lint clean

help: ## this list
	@echo "make TARGET [V=1]"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

setup: ## install what is missing: Debian packages, crates (Rust itself is expected)
	@scripts/setup

build: setup ## build all into target/release; then `target/release/motet run -- CMD` works
	@scripts/build

test: ## every check and test; FAST=1: unit and protocol tests and one program for each adapter
	@scripts/setup --tests && scripts/test $(if $(FAST),--fast)

torture: setup ## whatever programs do to sockets, for TORTURE_SECONDS (60) of random schedules
	@scripts/build --core && scripts/torture

demo: setup ## the coupled simulation, without and with Motet, with a report (ARGS="…" go to it); a study; a GridFTP transfer
	@scripts/build && scripts/demo $(ARGS)

bench: ## measure against this machine's own floor and plain TCP, and write docs/figures (ARGS="--all" for all groups; others go to `motet bench`)
	@scripts/setup --programs && scripts/build --core && { $(TARGET)/release/motet tune --once || true; } && scripts/bench $(ARGS)

install: ## install what was built: PREFIX=/usr/local DESTDIR=
	@test -x $(TARGET)/release/motet || $(MAKE) build
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install

uninstall: ## remove exactly what was installed: PREFIX=/usr/local DESTDIR=
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install --uninstall

man: ## write the manual pages to target/man
	@test -x $(TARGET)/release/motet || $(MAKE) build
	@mkdir -p $(TARGET)/man && $(TARGET)/release/motet generate man $(TARGET)/man && echo "manual pages: $(TARGET)/man"

fmt: ## format the Rust code
	@cargo fmt --all

lint: ## formatting, clippy, layers, module cycles, retired words and stack use, without tests
	@scripts/test --lint

clean: ## remove what was built
	@cargo clean
	@for part in adapters/*/Makefile examples/*/Makefile; do \
	    test ! -f $$part || $(MAKE) -C $$(dirname $$part) clean; done
