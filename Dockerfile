# The page and its API, see docs/serving.md, with the translators of the project; mount other runs at /miyako/pickles.
FROM python:3.12-slim AS packages
RUN pip install --no-cache-dir "poetry>=2"
WORKDIR /miyako
COPY pyproject.toml poetry.lock poetry.toml ./
RUN poetry install --only main,serve --compile

FROM python:3.12-slim
WORKDIR /miyako
COPY --from=packages /miyako/.venv .venv
COPY . .
USER 1000
EXPOSE 8000
HEALTHCHECK --start-period=1m CMD [".venv/bin/python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT [".venv/bin/python", "serve.py", "--host", "0.0.0.0"]
