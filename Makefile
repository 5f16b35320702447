# Everything sets up what it needs by itself. `make help` lists the targets.
VENV ?= .venv
TORCH ?= auto
PYTHON_BIN = $(VENV)/bin/python
PROTOC = $(PYTHON_BIN) -m grpc_tools.protoc -I service/pb=proto
PROTOS = $(wildcard proto/*/v1/*.proto)
ARGS ?=
WORKERS ?= 2
# In the order of tests/longest_first.py.
SIDE_BY_SIDE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
GPU_PYTHON ?= python3

.DEFAULT_GOAL := help
.PHONY: help serve test coverage check format proto bench bench-gpu fuzz audit image stack clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s  %s\n", $$1, $$2}' Makefile

# A mark in the environment says which profile it holds; it is remade when the pins change.
$(VENV)/installed-%: pyproject.toml constraints.txt tools/setup.sh tools/install.py
	@tools/setup.sh $(VENV) $* --torch $(TORCH)

serve: $(VENV)/installed-run ## start the server: HTTP on port 8000, gRPC on 50051 (ARGS="--help")
	$(VENV)/bin/lln serve $(ARGS)

test: $(VENV)/installed-test ## run the tests except the long ones, two files at a time (ARGS="-k tokenizer", WORKERS=0)
	$(PYTHON_BIN) -m pytest $(SIDE_BY_SIDE) -m "not slow and not long" $(ARGS)

coverage: $(VENV)/installed-dev ## run it with the lines it reaches counted (takes twice as long)
	$(PYTHON_BIN) -m pytest $(SIDE_BY_SIDE) --timeout 3000 \
		--cov --cov-report term:skip-covered $(ARGS)

check: $(VENV)/installed-dev ## what CI holds the code to, apart from tests; rewrites nothing
	$(PYTHON_BIN) -m ruff check .
	$(PYTHON_BIN) -m ruff format --check .
	$(PYTHON_BIN) -m mypy
	tools/check_proto.sh $(VENV)
	$(PYTHON_BIN) tools/check_dependencies.py
	tools/check_deploy.sh $(VENV)

format: $(VENV)/installed-dev ## rewrite the code the way `make check` wants it
	$(PYTHON_BIN) -m ruff check --fix-only --quiet .
	$(PYTHON_BIN) -m ruff format .

proto: $(VENV)/installed-dev ## generate service/pb from proto/
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

bench: $(VENV)/installed-bench ## measure this machine and print the tables (ARGS="--help")
	$(PYTHON_BIN) -m benchmarks $(ARGS)

# The kernels need torch and Triton only, so that a plain copy of this tree and python3 will do.
bench-gpu: ## check and time the kernels on a GPU, within 9 minutes (GPU_PYTHON=python3)
	$(GPU_PYTHON) -m kernels.bench --check --budget-s 440 $(ARGS)

fuzz: $(VENV)/installed-test ## throw made-up requests at a server, over both protocols (ARGS="--help")
	$(PYTHON_BIN) -m tests.fuzz $(ARGS)

audit: $(VENV)/installed-test ## look what is installed up in the advisory database (needs network)
	$(PYTHON_BIN) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet pip-audit
	$(VENV)-audit/bin/pip-audit --path "$$($(PYTHON_BIN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

stack: ## bring compose up without a daemon and prove it (root, podman; deploy/image/prove_stack.sh)
	deploy/image/prove_stack.sh $(ARGS)

image: ## build the image without a daemon and prove it (root, buildah, runc; deploy/image/prove.sh)
	deploy/image/prove.sh $(ARGS)

clean: ## remove caches and build output; the environment stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
