"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
Node = Annotated[str, typer.Option("--node", envvar="TENURE_NODE_ID", help="The node to do it on.", metavar="NODE")]
NodeMaybe = Annotated[str | None, typer.Option("--node", help="Only on this node; all of them otherwise.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Print the work id and do not wait for the end.")]
All = Annotated[bool, typer.Option("--all", "-a", help="Retired deployments as well.")]
Artifact = Annotated[str, typer.Argument(help="Name, id or id prefix of an ArtifactSet.", metavar="ARTIFACT")]
Profile = Annotated[str, typer.Argument(help="Id or id prefix of a RuntimeProfile.", metavar="PROFILE")]
Work = Annotated[str, typer.Argument(help="Id or id prefix of a work item.", metavar="WORK")]
Candidate = Annotated[str, typer.Argument(help="Id or id prefix of a DeploymentCandidate.", metavar="CANDIDATE")]
Deployment = Annotated[str, typer.Argument(help="Name, id or id prefix of a deployment.", metavar="DEPLOYMENT")]

LOCAL_NODE = "local"
