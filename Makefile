# The short names of everything that is done here; docs/HACKING.md says more.
# `make` builds the programs to build/release/bin/.

.PHONY: release setup python wheels test test-long test-arm64 lint demo demo-cluster cluster fuzz \
  bench spec mutants clean training-run

release:
	cmake --preset release
	cmake --build --preset release

setup:
	tools/setup.sh

# All that proves it: the release build's tests whole, the same thinned under AddressSanitizer and
# UndefinedBehaviorSanitizer, those labelled `threads` under ThreadSanitizer, the simulator, and the
# Python package.
test: setup
	tools/test.sh release dev tsan sim python

# The Python package with what its tests and demos need, in build/venv.
python: setup
	tools/python.sh

# A wheel for each CPython, tested; PYTHONS names interpreters that are not on the path.
wheels: setup
	tools/wheels.sh $(PYTHONS)

# Python tests that are left out of `test`.
test-long: python
	build/venv/bin/python -m pytest -q -rs -m long

test-arm64:
	tools/setup.sh arm64
	tools/test.sh arm64

lint: setup
	tools/lint.sh

# Reinforcement learning, from a trainer of PyTorch's to engines of vLLM's that are killed on the way;
# and a demo of the programs alone, without Python packages.
demo: python
	build/venv/bin/python python/training/run.py demo

demo-cluster: setup release
	demo/run.sh

# Long runs of real processes: one in which they are killed and stopped at random (the seed is
# printed), one through so many transitions that memory would show what grows.
CLUSTER_REFITS ?= 50
CLUSTER_TRANSITIONS ?= 2500
CLUSTER_SEED := $(or $(CLUSTER_SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
cluster: setup release
	@echo "CLUSTER_SEED=$(CLUSTER_SEED)"
	CLUSTER_SEED=$(CLUSTER_SEED) CLUSTER_REFITS=$(CLUSTER_REFITS) \
	  CLUSTER_TRANSITIONS=$(CLUSTER_TRANSITIONS) python3 tests/cluster_test.py \
	  build/release/bin/dcr ClusterTest.test_random_kills ClusterTest.test_memory_stays_as_it_is

# Reinforcement learning with rollouts by vLLM, its arms compared bit for bit; with this many seeds.
SEEDS ?= 1
training-run: python
	build/venv/bin/python python/training/run.py full --seeds $(SEEDS)

# FUZZ_SECONDS for each target.
FUZZ_SECONDS ?= 300
fuzz: setup
	tools/fuzz.sh $(FUZZ_SECONDS)

bench: setup release
	build/release/bin/dcr-bench codec
	build/release/bin/dcr-bench payload
	build/release/bin/dcr-bench construct
	build/release/bin/dcr-bench decode
	build/release/bin/dcr-bench apply
	build/release/bin/dcr-bench refit
	build/release/bin/dcr-bench modes
	build/release/bin/dcr-bench protocol
	build/release/bin/dcr-bench tools

# Exhaustive searches of the protocol's model.
spec:
	tools/setup.sh spec
	spec/run.py

# Every fault that is built into the simulator on purpose has to be seen by it.
mutants: setup
	cmake --preset sim
	cmake --build --preset sim --target dcr-sim
	sim/mutants.py build/sim/bin/dcr-sim

clean:
	rm -rf build
