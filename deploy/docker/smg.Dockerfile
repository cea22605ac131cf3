# The public router smg, from its own package; deploy/gateway says what it does.
# docker build -t smg:1.13.0 - < deploy/docker/smg.Dockerfile
FROM python:3.11-slim-bookworm
RUN pip install --no-cache-dir smg==1.13.0
USER 10001:10001
ENTRYPOINT ["smg", "launch"]
