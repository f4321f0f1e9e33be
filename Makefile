# Two commands do everything on a machine with Rust: `make demo` and `make test`.

CARGO   ?= cargo
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

.DEFAULT_GOAL := help

help: ## Show what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

build: ## Build everything that ships, optimised
	$(CARGO) build --release --locked --workspace

demo: ## Build, then run a key-value server beside redis-server and compare them (about a minute after the build)
	scripts/demo

test: ## Install what the tests need, build, run every test
	scripts/test

check: ## Formatting, lints with warnings as errors, crate arrows, documented unsafe
	scripts/check

bench: build ## Run every benchmark in full with its baselines; BENCH=name runs one
	scripts/bench $(BENCH)

soak: ## The long campaigns: fuzzing, long seeds, model checks (hours)
	TOWPATH_SOAK=1 scripts/test

install: ## Install below $(DESTDIR)$(PREFIX)
	scripts/install "$(DESTDIR)" "$(PREFIX)"

deb: ## Build a Debian package under target/
	scripts/deb "$(VERSION)"

clean: ## Remove what was built
	$(CARGO) clean

.PHONY: help build demo test check bench soak install deb clean
