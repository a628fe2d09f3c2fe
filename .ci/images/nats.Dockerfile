# A stand-in for the official image.
ARG BASE
FROM ${BASE}
COPY nats-server /usr/local/bin/nats-server
RUN ln -s /bin/busybox /usr/local/bin/wget
EXPOSE 4222 8222
ENTRYPOINT ["nats-server"]
CMD ["--js", "--store_dir", "/tmp/nats"]
