# vLLM for Gaudi (RHEL or UBI) with the fixes built in. The base is what the plugin's
# .cd/Dockerfile.rhel.ubi.vllm builds. From the root of a checkout:
#   docker build -f docker/gaudi-ubi.Dockerfile -t vllm-fixed-gaudi-ubi:v0.26.0 .
# Where the profile has no fixes for the plugin that is installed, the build ends with 1 and says
# so (docs/gaudi.md).
ARG RELEASE=v0.26.0
FROM vllm-gaudi-ubi:${RELEASE}
ARG RELEASE
ENV FIXES_PROFILE=${RELEASE}
COPY fixes /opt/vllm-fixes/fixes
COPY profiles /opt/vllm-fixes/profiles
COPY patches /opt/vllm-fixes/patches
# The image runs as UID 2000 over packages of root's: as that user this ends with 6.
USER 0
RUN python3 /opt/vllm-fixes/fixes/apply_all.py --profile "$FIXES_PROFILE" pipeline-parallel
USER 2000
# Found in place, this takes 0.1 s and writes nothing; not in place, no engine starts.
ENTRYPOINT ["sh", "-ec", "python3 /opt/vllm-fixes/fixes/apply_all.py --quiet --profile \"$FIXES_PROFILE\" pipeline-parallel; exec vllm serve \"$@\"", "serve"]
