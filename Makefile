# The commands of the README. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help install runtime demo test rehearse check bench figures site

POETRY := .poetry/bin/poetry
RUN := $(POETRY) run
# Poetry's own client requests JSON from an index, which plain mirrors and proxies do not offer; with the mirror plugin
# it reads the same pages as pip, from the same place.
.venv/installed: export POETRY_PYPI_MIRROR_URL ?= $(shell python3 -c "import os, subprocess, sys; from pip._internal.models.index import PyPI; found = subprocess.run([sys.executable, '-m', 'pip', 'config', 'get', 'global.index-url'], capture_output=True, text=True).stdout.strip(); print(os.environ.get('PIP_INDEX_URL') or found or PyPI.simple_url)" 2>/dev/null)

# Poetry downloads to the home folder; where that cannot be written, to this one.
ifneq ($(shell test -w ~ || echo read-only),)
export POETRY_CACHE_DIR ?= $(CURDIR)/.poetry/cache
endif

help:  ## list the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

install: .venv/installed  ## install Poetry and all packages inside this folder

$(POETRY):
	python3 -m venv .poetry
	.poetry/bin/pip install --quiet --disable-pip-version-check poetry poetry-plugin-pypi-mirror

.venv/installed: pyproject.toml poetry.lock | $(POETRY)
	$(POETRY) install --no-interaction --compile
	touch $@

# the package and the version that utils/export/web.py names
RUNTIME := $(shell sed -n 's/^PACKAGE, VERSION = "\(.*\)", "\(.*\)".*/\1@\2/p' utils/export/web.py)

runtime: node_modules/onnxruntime-web  ## get what pages compute with that translate in a browser, by npm

node_modules/onnxruntime-web:
	mkdir -p node_modules/.pack
	cd node_modules/.pack && npm pack --silent $(RUNTIME) && tar -xzf *.tgz
	mv node_modules/.pack/package $@
	rm -r node_modules/.pack

demo: install  ## train on the embedded corpus, translate, draw: about two minutes
	$(RUN) python train.py --config demo

test: install  ## run the tests, on all processors
	$(RUN) pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

rehearse: install  ## the tests and the demo as on an older processor: AS=avx2 or AS=sse
	env $$(python3 -m tests.processors $(or $(AS),avx2)) $(MAKE) test demo

bench: install  ## compare the newest run's decoding speed with CTranslate2's: some minutes
	$(RUN) python -m bench.decode

figures: install  ## draw the pictures of docs/: a minute
	$(RUN) python -m docs.figures

site: install runtime  ## build a site of the guide, with pages that translate and look inside
	$(RUN) python -m docs.site --output site
	rm -rf site/live
	$(RUN) python export.py everyday_ja_en everyday_en_ja kftt_ja_en kftt_en_ja --to web --output site/live

check: install  ## check lint, formatting, types and import floors
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(RUN) oxlint
	$(RUN) oxfmt --check utils/web
	$(RUN) pytest -q tests/test_floors.py
