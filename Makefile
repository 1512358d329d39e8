# Every target makes the virtual environment first, when it is missing or older than what it is
# made from. Nothing is needed beforehand but a clone and Python 3.11 or later.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
PROGRAMS := .venv-programs
PROGRAMS_INSTALLED := $(PROGRAMS)/.installed
PEERS := .venv-peers
PEERS_INSTALLED := $(PEERS)/.installed
# What runs on GPUs that the profiler takes for real ones: all of it, and a minute of it.
ALL_BLIND := $(addprefix test/,cli courtesy devices history integrations line_profiler notebook profiles pytest_memlab reporter scopes)
# fit and the trials of remedies simulate GPUs, also where there are real ones.
ALL_BLIND += --ignore-glob='test/cli/commands/test_fit*' --ignore=test/notebook/test_remedies_in_cells.py
BLIND := $(addprefix test/,devices line_profiler scopes history/test_cuda_history.py history/test_recorder.py)

.PHONY: help demo test test-blind test-gpu programs lint bench opinfo compiled-graphs advice accuracy published bounds recording docs picture
.DEFAULT_GOAL := help

help:
	@echo "make demo      run an example out of memory, try remedies, write a page; then profile another"
	@echo "make test      run the tests"
	@echo "make test-blind  run the tests that need no simulation as on a real GPU"
	@echo "make test-gpu  run the tests that need a CUDA GPU"
	@echo "make programs  run programs of other libraries, simulated"
	@echo "make test-ipython8  run the notebook's tests with IPython 8"
	@echo "make lint      ruff, mypy, the contracts on imports, plain words"
	@echo "make bench     run the benchmarks, peers beside them"
	@echo "make opinfo    compare all of PyTorch's samples of its operators with a CPU, simulated, and their memory with and without values"
	@echo "make compiled-graphs  compare the memory of compiled graphs with the text of Inductor, simulated"
	@echo "make advice    run programs with faults, apply what is advised, and compare with what was promised"
	@echo "make accuracy  compare the simulation with recordings of real GPUs, for the documentation"
	@echo "make published [NAMES=...]  predict peaks that others published, for the documentation"
	@echo "make bounds    prove that no recording and no published figure lies outside of its bounds"
	@echo "make recording FILE=wrong.json.gz  add the file of pytorch-memlab verify to the tests"
	@echo "make docs      build the documentation into build/docs"
	@echo "make picture   draw the pictures of the README and the documentation"
	@echo "make notebook  run demo.ipynb, and keep its outputs"

$(INSTALLED): pyproject.toml constraints.txt
	@version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2] + " new" * (sys.version_info >= (3, 11)))' 2>&1); \
	case "$$version" in \
		*" new") ;; \
		*) echo "error: Python 3.11 or later is needed, $(PYTHON) is: $$version" >&2; \
		   echo "       name another one: make PYTHON=/path/to/python3" >&2; exit 1 ;; \
	esac
	@echo "Making $(VENV): pip downloads PyTorch, which takes some minutes"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The example fails, with exit code 1: it shows what the tool says then.
demo: $(INSTALLED)
	@mkdir -p build
	@$(VENV)/bin/pytorch-memlab run --gpu 2GiB -o build/demo.html examples/out_of_memory.py; [ $$? -eq 1 ]
	@printf '\nThe page is build/demo.html: open it in a browser.\n'
	@printf 'And the table of pytorch_memlab 0.3, of examples/quickstart.py:\n\n'
	@$(VENV)/bin/pytorch-memlab run examples/quickstart.py

# Byte code is kept, whatever the shell says: each process that a test starts would compile all.
test: $(INSTALLED)
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n auto --dist worksteal
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n auto --dist worksteal --blind $(BLIND)

test-blind: $(INSTALLED)
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n auto --dist worksteal --blind -rx $(ALL_BLIND)

test-gpu: $(INSTALLED)
	$(PY) -m pytest -m gpu test/gpu

# The first environment's packages, and those of the extra `programs` on top of them.
$(PROGRAMS_INSTALLED): $(INSTALLED)
	$(PY) -m venv $(PROGRAMS)
	@packages='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	$(PY) -c "$$packages" > "$$($(PROGRAMS)/bin/python -c "$$packages")/first_environment.pth"
	$(PROGRAMS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[programs]'
	@touch $@

programs: $(PROGRAMS_INSTALLED)
	$(PROGRAMS)/bin/python -m pytest -m 'not gpu' test/simulation/dry_run/test_transformers.py test/simulation/third_party/test_triton.py test/simulation/third_party/test_bitsandbytes.py test/simulation/third_party/test_liger.py test/integrations test/fitting test/project/test_documents.py test/advice/test_programs.py test/jobs/test_started_ranks.py

# PYTHONPATH goes before site-packages, and reaches the kernels that tests start.
test-ipython8: $(INSTALLED)
	$(PY) -m pip install --quiet --disable-pip-version-check --upgrade --target build/ipython8 'ipython>=8.18,<9'
	PYTHONPATH=build/ipython8 $(PY) -m pytest test/notebook

lint: $(INSTALLED)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo
	$(PY) scripts/plain_words.py

# Other profilers, beside the first environment's packages. One that cannot be installed is left
# out of the benchmark, by its name.
$(PEERS_INSTALLED): $(INSTALLED)
	$(PY) -m venv $(PEERS)
	@packages='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	$(PY) -c "$$packages" > "$$($(PEERS)/bin/python -c "$$packages")/first_environment.pth"
	-$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check memray
	-$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check scalene
	@touch $@

bench: $(PEERS_INSTALLED)
	$(PEERS)/bin/python -m benchmarks

opinfo: $(INSTALLED)
	$(PY) -m benchmarks.opinfo
	$(PY) -m benchmarks.opinfo --memory

compiled-graphs: $(INSTALLED)
	$(PY) -m benchmarks.compiled_graphs

advice: $(PROGRAMS_INSTALLED)
	$(PROGRAMS)/bin/python -m benchmarks.advice

recording: $(INSTALLED)
	$(PY) scripts/add_recording.py $(FILE)

accuracy: $(INSTALLED)
	$(PY) -m benchmarks.accuracy

published: $(PROGRAMS_INSTALLED)
	$(PROGRAMS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement benchmarks/published/requirements.txt
	$(PROGRAMS)/bin/python -m benchmarks.published $(NAMES)

bounds: $(INSTALLED)
	$(PY) -m benchmarks.bounds

docs: $(INSTALLED)
	$(PY) -m sphinx --quiet --fail-on-warning --keep-going docs build/docs

picture: $(INSTALLED)
	$(PY) scripts/readme_picture.py
	$(PY) scripts/report_pictures.py
	$(VENV)/bin/pytorch-memlab run --dry-run --gpu 2GiB -o docs/pictures/timeline.png examples/memory_history.py
	@rm -f snapshot.pickle

notebook: $(INSTALLED)
	$(PY) scripts/run_notebook.py
