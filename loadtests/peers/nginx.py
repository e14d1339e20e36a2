"""nginx in front of replicas: its configuration and its command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from loadtests.peers.install import nginx

NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr error;
worker_processes 1;
worker_rlimit_nofile 20000;
{user}
events {{ worker_connections 16384; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  scgi_temp_path {folder}/scgi;
  uwsgi_temp_path {folder}/uwsgi;
  keepalive_requests 1000000000;
  upstream replicas {{
    {balance}
    {servers}
    keepalive 256;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    client_body_buffer_size 64k;
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


def _conf(port: int, replicas: Sequence[int], folder: Path, balance: str) -> str:
    servers = "\n    ".join(f"server 127.0.0.1:{replica};" for replica in replicas)
    # Started by root, a worker would otherwise run as nobody, who may not write here.
    user = "user root;" if os.geteuid() == 0 else ""
    return NGINX.format(folder=folder, port=port, servers=servers, user=user, balance=balance)


def nginx_command(port: int, replicas: Sequence[int], folder: Path, balance: str = "") -> list[str]:
    """The command line of nginx. Downloads it if needed, and writes its configuration into `folder`. Raises Skipped.

    `replicas` are ports of loopback; `balance` is a directive of its upstream module, by default round robin.
    """
    command, conf = nginx(), folder / "nginx.conf"
    conf.write_text(_conf(port, replicas, folder, balance))
    return [str(command), "-e", "stderr", "-c", str(conf)]
