# Pannier's build. Needs Go, git and make; the tests of mounts need root.
# Tools are built into a cache outside the tree (tools/tool).

SHELL := /bin/sh
.DEFAULT_GOAL := help
TOOL := tools/tool

# Roots of protobuf files, each with a buf.gen.yaml of its own; buf refuses an
# empty one, so one that has no file yet is left out.
PROTO_ROOTS := $(patsubst %/buf.gen.yaml,%,$(wildcard sdk/proto/buf.gen.yaml host/api/proto/buf.gen.yaml))

.PHONY: help
help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: proto
proto: ## Generate Go code from the protobuf files, beside them
	@tools/generate $(PROTO_ROOTS)
