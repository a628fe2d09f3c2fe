# A stand-in for the official image.
ARG BASE
FROM ${BASE}
COPY nats-server /usr/local/bin/nats-server
EXPOSE 4222 8222
ENTRYPOINT ["nats-server"]
CMD ["--js", "--store_dir", "/tmp/nats"]
