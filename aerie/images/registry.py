"""What a registry says of an image, by the protocol of OCI: the digest of its manifest."""

import re
from urllib.parse import urlencode

import httpx2

from aerie.errors import DataError

_TIMEOUT_S = 20.0
# What a multi-platform image is, first: a digest is pinned for all platforms.
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# Docker Hub answers under another name than images are called by.
_HOSTS = {"docker.io": "registry-1.docker.io"}


def registry_digest(image: str) -> str:
    """The digest that a registry has for `HOST/NAME:TAG` or `HOST/NAME@DIGEST`. Nothing is pulled.

    Raises:
        DataError: the registry does not answer, or does not know the image.
    """
    host, _, path = image.partition("/")
    name, _, reference = path.partition("@") if "@" in path else path.rpartition(":")
    scheme = "http" if re.match(r"(127\.0\.0\.1|localhost)(:|$)", host) else "https"
    url = f"{scheme}://{_HOSTS.get(host, host)}/v2/{name}/manifests/{reference}"
    try:
        with httpx2.Client(timeout=_TIMEOUT_S, follow_redirects=True) as client:
            headers = {"Accept": ", ".join(_MANIFESTS)}
            response = client.head(url, headers=headers)
            if response.status_code == 401:
                token = _token(client, response.headers.get("WWW-Authenticate", ""))
                response = client.head(url, headers={**headers, "Authorization": f"Bearer {token}"})
            response.raise_for_status()
            return str(response.headers["Docker-Content-Digest"])
    except (httpx2.HTTPError, KeyError, ValueError) as error:
        raise DataError(
            f"the registry {host} does not say what {name}:{reference} is",
            saw=f"{type(error).__name__}: {error}",
            remedy="ask again where the registry is reachable, or give the proxy by HTTPS_PROXY",
        ) from error


def _token(client: httpx2.Client, challenge: str) -> str:
    """A token for reading, from where the registry's challenge sends for it; nobody logs in."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm")
    response = client.get(f"{realm}?{urlencode(fields)}")
    response.raise_for_status()
    content = response.json()
    return str(content.get("token") or content["access_token"])
