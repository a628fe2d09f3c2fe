# The public NATS image, with our configuration and a store that an ordinary user may write.
ARG NATS_IMAGE=nats:2-alpine
FROM ${NATS_IMAGE}
USER root
RUN mkdir -p /data && chown 10001:10001 /data
COPY services/nats.conf /etc/nats/nats.conf
USER 10001:10001
ENTRYPOINT ["nats-server"]
CMD ["--config", "/etc/nats/nats.conf"]
