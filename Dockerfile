# The page and its API, see docs/serving.md: with the translators of the project as CTranslate2 has them, without torch; or
# with --target runs, which has torch, those of runs, such as your own mounted at /miyako/pickles.
FROM python:3.12-slim AS server
WORKDIR /miyako
USER 1000
EXPOSE 8000
HEALTHCHECK --start-period=1m CMD [".venv/bin/python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT [".venv/bin/python", "serve.py", "--host", "0.0.0.0"]

FROM python:3.12-slim AS poetry
RUN pip install --no-cache-dir "poetry>=2"
WORKDIR /miyako
COPY pyproject.toml poetry.lock poetry.toml ./

FROM poetry AS packages
RUN poetry install --only main,serve,export --compile

FROM server AS runs
COPY --from=packages /miyako/.venv .venv
COPY . .

FROM packages AS exported
COPY . .
RUN for run in kftt_ja_en kftt_en_ja everyday_ja_en everyday_en_ja; do \
      .venv/bin/python export.py "$run" --to ctranslate2 --quantization int8 --output "exported/$run" || exit 1; done

FROM poetry AS few_packages
RUN poetry install --only engine,serve --compile

FROM server AS serve
COPY --from=few_packages /miyako/.venv .venv
COPY config config
COPY const const
COPY utils utils
COPY serve.py serve.py
COPY --from=exported /miyako/exported exported
CMD ["--run", "exported/kftt_ja_en", "--run", "exported/kftt_en_ja", "--run", "exported/everyday_ja_en", "--run", "exported/everyday_en_ja"]
